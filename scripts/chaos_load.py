"""What is asked of the bridges while they are hurt: timers with and without ids, cancels, replaces, rolls.

Each is due before the load ends or soon after, so that in the end nothing is pending.
"""

import random
import threading
import time
from collections import Counter
from uuid import uuid4

from schemas import headers as names
from scripts.kafka_io import Request, Sender, cancel, named_timer, timer

TARGETS = ("chaos.orders", "chaos.bills")
LONGEST_MS = 40_000
_EACH_S = 0.05
_MOST_AT_ONCE = 14


class ChaosLoad:
    """About 150 requests a second until the `with` ends. `sent`: how many of each kind, all of them acknowledged."""

    def __init__(self, bootstrap_servers: str, timer_topic: str, seed: int) -> None:
        self._sender = Sender(bootstrap_servers)
        self._topic = timer_topic
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.sent: Counter[str] = Counter()

    def __enter__(self) -> "ChaosLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._sender.flush()

    def _run(self) -> None:
        while not self._over.wait(_EACH_S):
            for _ in range(self._rng.randrange(_MOST_AT_ONCE)):
                self._rng.choices((self._plain, self._cancelled, self._replaced, self._far), (12, 3, 3, 2))[0]()
            self._sender.serve()

    def _due_ms(self, most_ms: int) -> int:
        return time.time_ns() // 1_000_000 + self._rng.randint(-500, most_ms)

    def _send(self, kind: str, request: Request) -> None:
        self._sender.send(self._topic, request)
        self.sent[kind] += 1

    def _target(self) -> str:
        return self._rng.choice(TARGETS)

    def _plain(self) -> None:
        key = b"%d" % self._rng.randrange(50)
        self._send("schedule", timer(self._target(), self._due_ms(4_000), uuid4().bytes, key))

    def _far(self) -> None:
        """Goes round several times."""
        id_ = uuid4().hex.encode()
        self._send("far schedule", named_timer(self._target(), self._due_ms(LONGEST_MS), uuid4().bytes, id_))

    def _cancelled(self) -> None:
        """At once, or so late that nobody can say who comes first."""
        id_ = uuid4().hex.encode()
        due_ms = self._due_ms(self._rng.choice((100, 5_000, LONGEST_MS)))
        self._send("schedule to be cancelled", named_timer(self._target(), due_ms, b"", id_))
        self._send("cancel", cancel(id_))

    def _replaced(self) -> None:
        id_ = uuid4().hex.encode()
        target = self._target()
        for kind, most_ms in (("schedule to be replaced", LONGEST_MS), ("replace", 10_000)):
            key, value, headers = named_timer(target, self._due_ms(most_ms), uuid4().bytes, id_)
            action = [(names.ACTION, b"replace")] if kind == "replace" else []
            self._send(kind, Request(key, value, [*headers, *action]))
