"""Load for chaos: timers with and without ids, cancels, replaces, moves, expiries, rolls.

Each is due before the load ends or soon after, so that in the end nothing is pending.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self
from uuid import uuid4

from kafka_timer import cancel_headers, headers_for, move_headers
from kafka_timer.control import DEFAULT_TOPIC, Paused, control_record
from scripts.common.kafka_io import TimerRequest, TimerSender, now_ms, timer

TARGETS = ("chaos.orders", "chaos.bills")
LIMITS = f'[targets."{TARGETS[1]}"]\nmax_per_s = 100\n'
"""Rate limit of a target: above the load's rate, below the backlog after a fault."""
LONGEST_MS = 40_000
_EACH_S = 0.05
_JOIN_S = 60.0
_MOST_AT_ONCE = 14
_WEIGHTS = {"plain": 12, "cancelled": 3, "replaced": 3, "moved": 2, "expiring": 2, "far": 2}


class Background:
    """Runs `_run` on a thread of its own until the `with` ends, which sets `_over`."""

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        raise NotImplementedError


class ChaosLoad(Background):
    """Sends about 150 requests per second until the `with` ends. `sent`: acknowledged requests by kind."""

    def __init__(self, bootstrap_servers: str, timer_topic: str, seed: int) -> None:
        self._sender = TimerSender(bootstrap_servers)
        self._topic = timer_topic
        self._rng = random.Random(seed)
        self.sent: Counter[str] = Counter()

    def pause(self) -> Callable[[], None]:
        """Make all bridges pause the first of TARGETS. Return what makes them resume it."""

        def send(*, on: bool) -> None:
            key, value = control_record(Paused(self._topic, TARGETS[0]), on=on)
            self._sender.send(DEFAULT_TOPIC, TimerRequest(key, value, []))

        send(on=True)
        return lambda: send(on=False)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._sender.flush()

    def _run(self) -> None:
        while not self._over.wait(_EACH_S):
            for _ in range(self._rng.randrange(_MOST_AT_ONCE)):
                for kind, request in self._drawn():
                    self._sender.send(self._topic, request)
                    self.sent[kind] += 1
            self._sender.serve()

    def _drawn(self) -> Iterator[tuple[str, TimerRequest]]:
        """Yield a timer, and the request that ends or changes it, if any. Most timers with ids roll several times."""
        rng, id_ = self._rng, uuid4().hex.encode()

        def due_ms(most_ms: int) -> int:
            return now_ms() + rng.randint(-500, most_ms)

        def named(most_ms: int = LONGEST_MS, *, replace: bool = False) -> TimerRequest:
            headers = headers_for(rng.choice(TARGETS), at=due_ms(most_ms), id=id_, replace=replace)
            return TimerRequest(id_, uuid4().bytes, headers)

        match rng.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]:
            case "plain":
                key = b"%d" % rng.randrange(50)
                yield "schedule", timer(rng.choice(TARGETS), due_ms(4_000), uuid4().bytes, key)
            case "cancelled":  # at once, or so close to the due time that either may win
                yield "schedule to be cancelled", named(rng.choice((100, 5_000, LONGEST_MS)))
                yield "cancel", TimerRequest(id_, b"", cancel_headers(id_))
            case "replaced":
                yield "schedule to be replaced", named()
                yield "replace", named(10_000, replace=True)
            case "moved":
                yield "schedule to be moved", named()
                yield "move", TimerRequest(id_, None, move_headers(id_, at=due_ms(10_000)))
            case "expiring":  # if its topic is paused when it is due, or no bridge is up
                due = due_ms(4_000)
                headers = headers_for(TARGETS[0], at=due, expire_at=due + 500)
                yield "schedule that expires", TimerRequest(None, uuid4().bytes, headers)
            case _:
                yield "far schedule", named()
