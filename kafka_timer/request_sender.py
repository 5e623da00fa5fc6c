"""Send requests for `TimerProducer`, with a Kafka producer without transactions."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from kafka_timer.errors import BridgeError, BrokerUnavailableError, SettingsError
from kafka_timer.kafka_client import CALL_S, NO_NEW_TOPICS, error_of, is_denied, is_fatal, new_client, reason, unwrapped
from kafka_timer.requests import Sent

log = logging.getLogger(__name__)

_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_CUT_OFF = _PURGED | {KafkaError._FATAL, KafkaError._STATE}  # noqa: SLF001
"""Errors of records after a fatal error of the producer."""
_POLL_S = 0.1
_FLUSH_S = 0.5
"""One wait inside librdkafka, during which Python handles no Ctrl-C."""
_CLOSED = "this client is closed: make a new one"
_METADATA_AGE_S = 300.0
"""A topic's number of partitions is fetched again after this, as by Java clients."""


class ConfluentOutbox:
    """Implements `kafka_timer.producer.Outbox`. A thread of its own serves delivery reports."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        if "transactional.id" in config:
            raise SettingsError(
                "transactional.id: keep your transactional producer, and give it kafka_timer.headers_for's headers"
            )
        own = {
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "topic.metadata.propagation.max.ms": 5000,
            **NO_NEW_TOPICS,
            "error_cb": self._hear,
        }
        self._heard: str | None = None
        self._fatal: KafkaError | None = None
        self._producer = new_client(Producer, {**own, **config})
        self._partitions: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._failed = 0
        self._first_failure: BridgeError | None = None
        self._is_closed = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="timer-client", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> "Future[Sent]":
        future: Future[Sent] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._count += 1
        while self._fatal is None:
            if self._is_closed:
                raise BridgeError(f"{topic}: {_CLOSED}")
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=partial(self._reported, future, topic),
                    headers=list(headers),
                )
            except BufferError:
                self._call(self._producer.poll, _POLL_S)
            except KafkaException as refused:
                self._fail(future, topic, error_of(refused))
                return future
            else:
                return future
        self._fail(future, topic, self._fatal)
        return future

    def partitions(self, topic: str) -> int:
        count, asked_s = self._partitions.get(topic, (0, 0.0))
        if not count or time.monotonic() - asked_s >= _METADATA_AGE_S:
            count = self._asked_partitions(topic)
            self._partitions[topic] = count, time.monotonic()
        return count

    def flush(self, timeout_s: float | None) -> None:
        left = self._left(timeout_s)
        with self._lock:
            first, failed, count = self._first_failure, self._failed, self._count
            self._first_failure, self._failed, self._count = None, 0, 0
        if first is not None:
            raise BridgeError(f"{failed} of {count} were not taken: {first}", code=first.code) from first
        if self._fatal is not None:
            raise BridgeError(self._remedy(self._fatal), code=self._fatal.name())
        if left:
            raise BrokerUnavailableError(
                f"{left} are not acknowledged after {timeout_s} s: flush again, or wait longer"
            )

    def close(self, timeout_s: float | None = None) -> None:
        self._is_closed = True
        self._left(timeout_s)
        self._producer.purge()  # also what another thread has sent meanwhile, which librdkafka would still deliver
        self._left(CALL_S)
        self._is_over.set()
        self._thread.join(2 * CALL_S)

    @property
    def is_broken(self) -> bool:
        return self._fatal is not None

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                self._call(self._producer.poll, _POLL_S)
            except Exception:  # noqa: PERF203  (raised by a callback of the sender; this thread completes the futures)
                log.exception("a callback in the producer's settings has failed: fix it")

    def _left(self, timeout_s: float | None) -> int:
        """Wait; return how many records are neither acknowledged nor refused after `timeout_s`."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _FLUSH_S if end_s is None else max(0.0, end_s - time.monotonic())
            left = self._call(self._producer.flush, min(left_s, _FLUSH_S))
            if left == 0 or (left is not None and left_s == 0):
                return left

    def _call(self, serve: Callable[[float], int], timeout_s: float) -> int | None:
        """Serve callbacks. Return None if an error ended the call early; delivery reports may follow after it.

        The first call that serves callbacks raises a fatal error, and errors of the sender's own callbacks.
        """
        try:
            with unwrapped():
                return serve(timeout_s)
        except KafkaException as failure:
            error = error_of(failure)
            if is_fatal(error):
                self._fatal = error
            else:
                self._heard = reason(error, self._heard)
            return None

    def _hear(self, error: KafkaError) -> None:
        """Receive an error of librdkafka's background threads, often the reason of a timeout."""
        self._heard = reason(error, self._heard)

    def _reported(self, future: "Future[Sent]", topic: str, error: KafkaError | None, message: Any) -> None:
        if error is None:
            future.set_result(Sent(topic, message.partition(), message.offset()))
        else:
            self._fail(future, topic, error)

    def _fail(self, future: "Future[Sent]", topic: str, error: KafkaError) -> None:
        failure = self._failure(topic, error)
        with self._lock:
            self._failed += 1
            self._first_failure = self._first_failure or failure
        future.set_exception(failure)

    def _asked_partitions(self, topic: str) -> int:
        if self._is_closed:
            raise BridgeError(f"{topic}: {_CLOSED}")
        try:
            found = self._producer.list_topics(topic, timeout=CALL_S).topics[topic]
        except KafkaException as failure:
            why = self._heard or error_of(failure).str()
            code = error_of(failure).name()
            raise BrokerUnavailableError(f"how many partitions {topic} has: {why}", code=code) from failure
        if found.error is not None:
            raise self._failure(topic, found.error)
        return len(found.partitions)

    def _failure(self, topic: str, error: KafkaError) -> BridgeError:
        kind, heard = BridgeError, "" if self._heard is None else f": {self._heard}"
        if self._is_closed and self._fatal is None and error.code() in _PURGED:
            kind, text = BrokerUnavailableError, f"not acknowledged when the client was closed{heard}"
        elif error is self._fatal or error.code() in _CUT_OFF:
            error = self._fatal or error
            text = self._remedy(error)
        elif error.code() in _UNKNOWN:
            text = "there is no such topic: make it (timer-bridge run makes the timer topic)"
        elif is_denied(error):
            text = f"{error.str()}: give the sender the right (an ACL) to write to it"
        elif error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001
            kind, text = BrokerUnavailableError, f"no broker took it in time (message.timeout.ms){heard}"
        else:
            text = error.str()
        return kind(f"{topic}: {text}", code=error.name())

    def _remedy(self, fatal: KafkaError) -> str:
        first = "give the sender the right (an ACL), then " if is_denied(fatal) else ""
        return f"{fatal.str()}: nothing more is sent by this client: {first}make a new TimerProducer"
