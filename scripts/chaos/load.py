"""Load for chaos: timers with and without ids, cancels, replaces, moves, expiries, rolls.

Each is due before the load ends or soon after, so that in the end nothing is pending.
"""

import random
import threading
import time
from collections import Counter
from uuid import uuid4

from kafka_timer import headers as names
from kafka_timer.control import DEFAULT_TOPIC, Paused, control_record
from scripts.common.kafka_io import TimerRequest, TimerSender, cancel, named_timer, timer

TARGETS = ("chaos.orders", "chaos.bills")
LIMITS = f'[targets."{TARGETS[1]}"]\nmax_per_s = 100\n'
"""Rate limit of a target: above the load's rate, below the backlog after a fault."""
LONGEST_MS = 40_000
_EACH_S = 0.05
_MOST_AT_ONCE = 14


class ChaosLoad:
    """Sends about 150 requests per second until the `with` ends. `sent`: acknowledged requests by kind."""

    def __init__(self, bootstrap_servers: str, timer_topic: str, seed: int) -> None:
        self._sender = TimerSender(bootstrap_servers)
        self._topic = timer_topic
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.sent: Counter[str] = Counter()

    def pause(self, on: bool) -> None:  # noqa: FBT001
        """Make all bridges pause the first of TARGETS, or resume it."""
        key, value = control_record(Paused(self._topic, TARGETS[0]), on=on)
        self._sender.send(DEFAULT_TOPIC, TimerRequest(key, value, []))

    def __enter__(self) -> "ChaosLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sender.flush()

    def _run(self) -> None:
        far = lambda: self._named("far schedule")  # noqa: E731
        kinds = (self._plain, self._cancelled, self._replaced, self._moved, self._expiring, far)
        while not self._over.wait(_EACH_S):
            for _ in range(self._rng.randrange(_MOST_AT_ONCE)):
                self._rng.choices(kinds, (12, 3, 3, 2, 2, 2))[0]()
            self._sender.serve()

    def _due_ms(self, most_ms: int) -> int:
        return time.time_ns() // 1_000_000 + self._rng.randint(-500, most_ms)

    def _send(self, kind: str, request: TimerRequest) -> None:
        self._sender.send(self._topic, request)
        self.sent[kind] += 1

    def _target(self) -> str:
        return self._rng.choice(TARGETS)

    def _plain(self) -> None:
        key = b"%d" % self._rng.randrange(50)
        self._send("schedule", timer(self._target(), self._due_ms(4_000), uuid4().bytes, key))

    def _named(self, kind: str, most_ms: int = LONGEST_MS) -> bytes:
        """Send a timer with an id, and return the id; most of these roll several times."""
        id_ = uuid4().hex.encode()
        self._send(kind, named_timer(self._target(), self._due_ms(most_ms), uuid4().bytes, id_))
        return id_

    def _cancelled(self) -> None:
        """Cancel at once, or so close to the due time that either may win."""
        id_ = self._named("schedule to be cancelled", self._rng.choice((100, 5_000, LONGEST_MS)))
        self._send("cancel", cancel(id_))

    def _expiring(self) -> None:
        """Send a timer that expires if its topic is paused when it is due, or no bridge is up."""
        due_ms = self._due_ms(4_000)
        key, value, headers = timer(TARGETS[0], due_ms, uuid4().bytes)
        self._send(
            "schedule that expires", TimerRequest(key, value, [*headers, (names.EXPIRE_MS, b"%d" % (due_ms + 500))])
        )

    def _replaced(self) -> None:
        id_ = self._named("schedule to be replaced")
        new = named_timer(self._target(), self._due_ms(10_000), uuid4().bytes, id_)
        self._send("replace", new._replace(headers=[*new.headers, (names.ACTION, b"replace")]))

    def _moved(self) -> None:
        id_, due = self._named("schedule to be moved"), (names.DELIVER_MS, b"%d" % self._due_ms(10_000))
        self._send("move", TimerRequest(id_, None, [(names.ACTION, names.MOVE), (names.ID, id_), due]))
