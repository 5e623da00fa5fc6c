"""What became of requests: one consumer follows receipts, rejected records and, if they are named, target topics.

    outcomes = Outcomes(config, targets=["orders"])       # before the requests are sent: it begins at the topics' ends
    with TimerProducer(config, outcomes=outcomes) as timers:
        sent = timers.schedule("orders", b"v", delay="5s").result()
        timers.outcome(sent).result(60)                   # Outcome(state="delivered", ...)
        timers.outcome(timers.cancel("reminder-7").result()).result(60)  # Outcome(state="cancelled", ...)

Deliveries are found on `targets`, or by receipts if the bridge's setting `receipts` is `all`. If it is `none`, give no
receipts topic: then only deliveries and rejections are known.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from kafka_timer.errors import BridgeError
from kafka_timer.headers import DELIVER_MS, ERROR, ERROR_DETAIL, ORIGIN, RELEASED_MS, decoded_headers
from kafka_timer.requests import Sent

_POLL_S = 0.1
_MOST_WAITING, _MOST_KNOWN = 100_000, 10_000
"""Futures, and latest outcomes, which are kept for requests that are asked about later."""
_ENDS = frozenset({"delivered", "cancelled", "replaced", "rejected"})
_DONE = frozenset({"cancelled", "moved", "paused", "resumed", "not-found", "too-late"})
"""Kinds of receipts that end a request about another timer."""


class Outcome(NamedTuple):
    """The outcome of a timer or of a request. Times are epoch ms by the bridge's clock, of rejections by the broker's.

    state: `delivered`, `cancelled`, `replaced`, `rejected`; of a request about another timer also `moved`, `paused`,
    `resumed`, `not-found` and `too-late`. due_ms: when the timer was due, or is after a move. code, detail: why it was
    rejected, as in docs/headers.md. The detail of a `not-found` names the other partition that may hold the timer.
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

    Give each wait a timeout: an outcome from before this object was made, or one that no followed topic shows, never
    comes. The futures cannot be cancelled; of more than 100,000, the oldest raises BridgeError.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        receipts_topic: str | None = "timer.receipts",
        rejected_topic: str | None = "timer.rejected",
        targets: Sequence[str] = (),
        consumer: Any = None,
    ) -> None:
        """Read the ends of the topics, on which it needs Read; None: not followed. Waits for a broker at most 10 s.

        config: as TimerProducer's. consumer: replaces Kafka in tests. Raises BridgeError if a topic cannot be read.
        """
        topics = [topic for topic in (receipts_topic, rejected_topic, *targets) if topic is not None]
        self._receipts, self._rejected = receipts_topic, rejected_topic
        self._known: dict[str, Outcome] = {}
        self._waiting: dict[str, Future[Outcome]] = {}
        self._failure = BridgeError("outcomes: closed; make new ones")
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        if consumer is None:
            from kafka_timer.kafka_client import topic_consumer  # only here: headers alone need no librdkafka

            consumer = topic_consumer(config, topics)
        self._consumer = consumer
        self._thread = threading.Thread(target=self._follow, name="timer-outcomes", daemon=True)
        self._thread.start()

    def outcome(self, request: Sent) -> "Future[Outcome]":
        """Return how the timer of a `schedule` or `replace` ends, or what a request about another timer did.

        A recurring timer: its first delivery, or its end. A `replace` that finds no timer: `not-found` or `too-late`.
        """
        return self._future("end", request)

    def answer(self, request: Sent) -> "Future[Outcome]":
        """Return what a request did at once: of a `replace`, `replaced` if it found a timer."""
        return self._future("answer", request)

    def close(self) -> None:
        """Stop. Futures that still wait raise BridgeError."""
        self._is_over.set()
        self._thread.join(10 * _POLL_S)

    def _future(self, kind: str, request: Sent) -> "Future[Outcome]":
        name, future, oldest = f"{kind} {'/'.join(map(str, request))}", Future[Outcome](), None
        future.set_running_or_notify_cancel()  # so that none of those who share it can cancel it
        with self._lock:
            if self._is_over.is_set():
                raise self._failure
            if name in self._known:
                future.set_result(self._known[name])
                return future
            future = self._waiting.setdefault(name, future)
            if len(self._waiting) > _MOST_WAITING:
                oldest = self._waiting.pop(next(iter(self._waiting)))
        if oldest is not None:
            oldest.set_exception(BridgeError(f"outcomes: more than {_MOST_WAITING} wait, this for the longest time"))
        return future

    def _follow(self) -> None:
        from kafka_timer.kafka_client import polled  # only here: see `__init__`

        try:
            while not self._is_over.is_set():
                message = polled(self._consumer, _POLL_S)
                if message is not None:
                    self._hear(message.topic(), message.value(), decoded_headers(message), message.timestamp()[1])
        except BridgeError as failure:
            self._failure = failure
        finally:
            self._is_over.set()
            self._consumer.close()
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                future.set_exception(self._failure)

    def _hear(self, topic: str, value: bytes | None, headers: Any, at_ms: int) -> None:
        for name, outcome in self._parsed(topic, value, dict(headers or ()), at_ms):
            with self._lock:
                future = self._waiting.pop(name, None)
                self._known.setdefault(name, outcome)
                if len(self._known) > _MOST_KNOWN:
                    del self._known[next(iter(self._known))]
            if future is not None:
                future.set_result(outcome)

    def _parsed(
        self, topic: str, value: bytes | None, headers: dict[str, bytes | None], at_ms: int
    ) -> Iterator[tuple[str, Outcome]]:
        """Return what one record says. The rejected record says why; its receipt does not."""
        try:
            if topic == self._receipts:
                said = json.loads(value or b"")
                state, origin = said["kind"], said.get("origin")
                outcome = Outcome(state, said["at_ms"], *map(said.get, ("due_ms", "code", "detail", "origin")))
                if state == "rejected" and self._rejected is not None:
                    return
                yield f"answer {said['request']}", outcome
                if state in _DONE:
                    yield f"end {said['request']}", outcome
            elif topic == self._rejected:
                code, detail, origin = ((headers.get(name) or b"").decode() for name in (ERROR, ERROR_DETAIL, ORIGIN))
                outcome = Outcome("rejected", at_ms, None, code, detail, origin)
                yield f"answer {origin}", outcome
            else:
                origin = (headers.get(ORIGIN) or b"").decode()
                released_ms, due_ms = (int(headers.get(name) or b"") for name in (RELEASED_MS, DELIVER_MS))
                outcome = Outcome("delivered", released_ms, due_ms, origin=origin)
            if origin and outcome.state in _ENDS:
                yield f"end {origin}", outcome
        except (ValueError, TypeError, KeyError):
            return  # not written by a bridge
