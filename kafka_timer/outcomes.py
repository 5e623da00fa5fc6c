"""What became of requests: one consumer follows receipts, rejected records and, if they are named, target topics.

    outcomes = Outcomes(config, targets=["orders"])       # before the requests are sent: it begins at the topics' ends
    with TimerProducer(config, outcomes=outcomes) as timers:
        sent = timers.schedule("orders", b"v", delay="5s").result()
        timers.outcome(sent).result(60)                   # Outcome(state="delivered", ...)
        timers.answer(timers.cancel("reminder-7").result()).result(60)  # Outcome(state="cancelled", ...)

The bridge's setting `receipts` decides what is known. `outcomes`, the default, has no receipts of accepted requests and
deliveries: deliveries are then found on `targets` alone. `none`: only rejections, and deliveries on `targets`.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from kafka_timer.errors import BridgeError
from kafka_timer.headers import DELIVER_MS, ERROR, ERROR_DETAIL, ORIGIN, RELEASED_MS
from kafka_timer.requests import Sent

_POLL_S = 0.1
_ENDS = frozenset({"delivered", "cancelled", "replaced", "rejected"})


class Outcome(NamedTuple):
    """What became of a timer or of a request. Times are epoch ms by the bridge's clock, of rejections by the broker's.

    state: `delivered`, `cancelled`, `replaced`, `rejected`; of an answer also `accepted`, `moved`, `not-found` and
    `too-late`. due_ms: when the timer was due, or is after a move. code, detail: why it was rejected (docs/headers.md).
    origin: topic/partition/offset of the timer's request; None if there was no timer.
    """

    state: str
    at_ms: int
    due_ms: int | None = None
    code: str | None = None
    detail: str | None = None
    origin: str | None = None


class Outcomes:
    """Safe to use from several threads; a thread of its own reads.

    Holds the latest `most_kept` (10,000) outcomes for requests that are asked about later than their outcome. If more
    than `most_waiting` (100,000) futures wait, the oldest raises BridgeError. Give each wait a timeout: an outcome from
    before this object was made, or one that no followed topic shows, never comes.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        receipts_topic: str | None = "timer.receipts",
        rejected_topic: str | None = "timer.rejected",
        targets: Sequence[str] = (),
        most_waiting: int = 100_000,
        most_kept: int = 10_000,
        consumer: Any = None,
    ) -> None:
        """Read the ends of the topics, which waits for a broker at most 10 s a topic. Needs Read on each.

        config: as TimerProducer's. consumer: replaces Kafka in tests. None for a topic: it is not followed.
        Raises BridgeError if a topic is missing or no broker answers.
        """
        topics = [topic for topic in (receipts_topic, rejected_topic, *targets) if topic is not None]
        self._receipts, self._rejected = receipts_topic, rejected_topic
        self._most_waiting, self._most_kept = most_waiting, most_kept
        self._kept: dict[tuple[str, str], Outcome] = {}
        self._waiting: dict[Future[Outcome], tuple[str, str]] = {}
        self._by_name: dict[tuple[str, str], list[Future[Outcome]]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._consumer = _kafka(config, topics) if consumer is None else consumer
        self._thread = threading.Thread(target=self._follow, name="timer-outcomes", daemon=True)
        self._thread.start()

    def outcome(self, request: Sent) -> "Future[Outcome]":
        """Return how the timer of a `schedule` or `replace` ends. A recurring timer: its first delivery, or its end."""
        return self._wait(("end", "/".join(map(str, request))))

    def answer(self, request: Sent) -> "Future[Outcome]":
        """Return what a `cancel`, `move`, `release` or `replace` did, or that it was rejected."""
        return self._wait(("answer", "/".join(map(str, request))))

    def close(self) -> None:
        """Stop. Futures that still wait raise BridgeError."""
        self._is_over.set()
        self._thread.join(10 * _POLL_S)

    def _wait(self, name: tuple[str, str]) -> "Future[Outcome]":
        future: Future[Outcome] = Future()
        oldest = None
        with self._lock:
            if self._is_over.is_set():
                raise BridgeError("outcomes: closed; make new ones")
            known = self._kept.get(name)
            if known is None:
                self._waiting[future] = name
                self._by_name.setdefault(name, []).append(future)
                if len(self._waiting) > self._most_waiting:
                    oldest = next(iter(self._waiting))
        if known is not None:
            future.set_result(known)
        future.add_done_callback(self._forget)  # also if the caller cancels it
        if oldest is not None:
            self._fail(oldest, f"more than {self._most_waiting} wait, this for the longest time; give waits a timeout")
        return future

    def _forget(self, future: "Future[Outcome]") -> bool:
        """Return True if it waited. The thread that gets True completes it."""
        with self._lock:
            name = self._waiting.pop(future, None)
            if name is None:
                return False
            self._by_name[name].remove(future)
            if not self._by_name[name]:
                del self._by_name[name]
        return True

    def _fail(self, future: "Future[Outcome]", why: str) -> None:
        if self._forget(future) and future.set_running_or_notify_cancel():
            future.set_exception(BridgeError(f"outcomes: {why}"))

    def _follow(self) -> None:
        try:
            while not self._is_over.is_set():
                message = self._consumer.poll(_POLL_S)
                if message is not None and message.error() is None:
                    self.hear(message.topic(), message.value(), message.headers(), message.timestamp()[1])
        finally:
            self._is_over.set()
            self._consumer.close()
            with self._lock:
                waiting = list(self._waiting)
            for future in waiting:
                self._fail(future, "closed before this one was known")

    def hear(self, topic: str, value: bytes | None, headers: Any, at_ms: int) -> None:
        """Take one record of a followed topic."""
        for name, outcome in self._parsed(topic, value, dict(headers or ()), at_ms):
            with self._lock:
                self._kept.setdefault(name, outcome)
                if len(self._kept) > self._most_kept:
                    del self._kept[next(iter(self._kept))]
                futures = list(self._by_name.get(name, ()))
            for future in futures:
                if self._forget(future) and future.set_running_or_notify_cancel():
                    future.set_result(outcome)

    def _parsed(
        self, topic: str, value: bytes | None, headers: dict[str, bytes | None], at_ms: int
    ) -> Iterator[tuple[tuple[str, str], Outcome]]:
        try:
            if topic == self._receipts:
                said = json.loads(value or b"")
                state, origin = said["kind"], said.get("origin")
                outcome = Outcome(state, said["at_ms"], said.get("due_ms"), said.get("code"), None, origin)
                if state == "rejected" and self._rejected is not None:
                    return  # the rejected record says why, too
                yield ("answer", said["request"]), outcome
            elif topic == self._rejected:
                code, detail, origin = ((headers.get(name) or b"").decode() for name in (ERROR, ERROR_DETAIL, ORIGIN))
                outcome = Outcome("rejected", at_ms, None, code, detail, origin)
                yield ("answer", origin), outcome
            else:
                origin = (headers.get(ORIGIN) or b"").decode()
                released_ms, due_ms = (int(headers.get(name) or b"") for name in (RELEASED_MS, DELIVER_MS))
                outcome = Outcome("delivered", released_ms, due_ms, origin=origin)
            if origin and outcome.state in _ENDS:
                yield ("end", origin), outcome
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # not written by a bridge


def _kafka(config: Mapping[str, Any], topics: Sequence[str]) -> Any:
    from kafka_timer.kafka_client import consumer_at_ends  # only here: headers alone need no librdkafka

    return consumer_at_ends(config, topics)
