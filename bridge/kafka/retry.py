"""Wait for brokers: retry a call until it succeeds. A wait is logged when it begins, and then each minute.

retrier.retry_until_success("committing", lambda: producer.commit_transaction(2), is_passing)
retrier.give_up_in(5)      after SIGTERM: calls that still wait in 5 s raise BrokerUnavailableError

A call that may block for ever runs on a thread of its own (`WorkerThread`).
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread, local
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from bridge.errors import BrokerUnavailableError
from bridge.kafka.errors import error_of, reason, unwrapped
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.status import Status
from kafka_timer.kafka_client import CALL_S as CALL_S

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_NAP_S = 0.02
_LONGEST_NAP_S = 1.0
_SLICE_S = 0.1
_PASSED_S = 60.0
"""An error that no client reports for this long has passed: the next one is logged at once, and counted from 1."""
_MAY_BE_OVER = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE})  # noqa: SLF001
"""Errors that end without an action of ours."""
_LONG_S = 5.0
"""A wait is reported to `status` after this."""


class WorkerThread:
    """Runs tasks one after the other. One that hangs does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], T]) -> "Future[T]":
        """Queue a task. Return a future of its answer or exception."""
        answer: Future[T] = Future()
        self._tasks.put((task, answer))
        return answer

    def close(self, wait_s: float = 0.0) -> None:
        """End after the queued tasks; wait at most `wait_s` for that."""
        self._tasks.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (queued := self._tasks.get()) is not None:
            task, answer = queued
            try:
                answer.set_result(task())
            except Exception as error:  # noqa: BLE001  (handed over, not swallowed)
                answer.set_exception(error)


class Retrier:
    """Retries calls. All clients of a process share one, so that one call ends all waits."""

    def __init__(self, parent: "Retrier | None" = None, status: Status | None = None) -> None:
        """parent: its `give_up_in` ends waits of this one too, and its status is used. status: gets errors."""
        self._parent = parent
        self.status: Status = parent.status if parent is not None else status or Status()
        self._warnings = LogRateLimit(log)
        self._heard_s: dict[str, float] = {}
        self._give_up_s: float | None = None
        self._last_error: str | None = None

    def give_up_in(self, seconds: float) -> None:
        """Make waits raise BrokerUnavailableError after that time. May be called from a signal handler."""
        self._give_up_s = time.monotonic() + seconds

    def go_on(self) -> None:
        """Undo `give_up_in`."""
        self._give_up_s = None

    def hear(self, error: KafkaError) -> None:
        """Receive an error of librdkafka's background threads, often the reason of a timeout."""
        self._last_error = reason(error, self._last_error)
        self.status.connection_failed(reason(error))
        key, now_s = f"connection: {error.name()}", time.monotonic()
        if now_s - self._heard_s.get(key, now_s) > _PASSED_S:
            self._warnings.clear(key)
        if error.code() not in _MAY_BE_OVER or not getattr(_serving, "is_idle", False):
            self._heard_s[key] = now_s
            self._say(key, f"Kafka: {reason(error)}")

    def be_throttled(self, event: ThrottleEvent) -> None:
        """Receive librdkafka's report of an answer that a broker has delayed."""
        self.status.throttled(event.throttle_time)

    def retry_until_success(self, what: str, call: Callable[[], T], is_passing: Callable[[KafkaError], bool]) -> T:
        """Call until it succeeds, and return its answer. Raises KafkaException if the fault is not passing."""
        tries = 0
        while True:
            try:
                with unwrapped():
                    answer = call()
            except KafkaException as failure:
                error = error_of(failure)
                if not is_passing(error):
                    raise
                self.wait(what, error.str(), tries)
                tries += 1
            else:
                self._warnings.clear(what)
                if tries:
                    self.status.broker_wait_ended()
                return answer

    def wait(self, what: str, why: str, tries: int, *, quietly: bool = False) -> None:
        """Sleep, longer with each try. Raises BrokerUnavailableError when it is time to give up."""
        nap_s = min(_LONGEST_NAP_S, _FIRST_NAP_S * 2 ** min(tries, 10))
        end_s = time.monotonic() + nap_s
        self.demand_time(what, why)
        if not quietly:
            self.status.waiting_for_broker(f"{what}: {why}")
            self._say(what, f"{what}: {why}; trying again")
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))
            self.demand_time(what, why)

    def demand_time(self, what: str, why: str) -> None:
        """Raise BrokerUnavailableError when it is time to give up."""
        if self._parent is not None:
            self._parent.demand_time(what, self._last_error or why)
        if self._give_up_s is not None and time.monotonic() >= self._give_up_s:
            raise BrokerUnavailableError(f"{what}: {self._last_error or why}")

    def is_long_wait(self, begin_s: float, what: str, why: str) -> bool:
        """Report a wait to `status`, and return True, after its first seconds. Raises as `demand_time`."""
        self.demand_time(what, why)
        is_long = time.monotonic() - begin_s >= _LONG_S
        if is_long:
            self.status.waiting_for_broker(f"{what}: {why}")
        return is_long

    def _say(self, key: str, message: str) -> None:
        self._warnings.warn(int(time.monotonic() * 1000), key, "%s", message)


_serving = local()


@contextmanager
def without_old_lines() -> Iterator[None]:
    """Log no lost connections that clients report on this thread: an idle client may have lost them minutes ago."""
    _serving.is_idle = True
    try:
        yield
    finally:
        _serving.is_idle = False


def serve_idle(*clients: Any) -> None:
    with without_old_lines():
        for client in clients:
            serve(client)


def serve(client: Any) -> None:
    """Poll a client: errors, throttling and log lines accumulate in it until it is polled."""
    with suppress(KafkaException), unwrapped():  # the next call reports the error
        client.poll(0)
