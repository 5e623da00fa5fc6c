"""Requests after a fatal error of their client, by a fake producer."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_timer import BridgeError, BrokerUnavailableError, Sent, TimerProducer
from kafka_timer import kafka_client as outbox_module

SOON_S = 2.0
WHY = "the cluster does not let it"
FATAL = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, WHY, fatal=True))
PURGED = KafkaError(-152)  # _PURGE_QUEUE
REFUSED = KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "of no use any more", fatal=True))


def wrapped() -> SystemError:
    wrapping = SystemError("returned a result with an exception set")
    wrapping.__cause__ = FATAL
    return wrapping


producers: list["Producer"] = []


class Producer:
    """A fake producer. As in librdkafka, the first poll raises a fatal error once, and later ones purge the queue."""

    def __init__(self, config: dict[str, Any]) -> None:
        del config
        producers.append(self)
        self.is_full = self.is_ill = False
        self.queued: list[Callable[[KafkaError, None], None]] = []
        self._wrong: Exception | None = None
        self._news = threading.Event()

    def fail(self, wrong: Exception) -> None:
        self.is_ill = True
        self.say(wrong)

    def say(self, wrong: Exception) -> None:
        """Let the next poll raise `wrong`."""
        self._wrong = wrong
        self._news.set()

    def end_poll(self) -> None:
        self._news.set()

    def poll(self, timeout_s: float) -> int:
        self._news.wait(timeout_s)
        self._news.clear()
        self._tell()
        return 0

    def flush(self, timeout_s: float = -1.0) -> int:
        del timeout_s
        self._tell()
        return len(self.queued)

    def purge(self) -> None:
        """Nothing is left."""

    def produce(self, *_: Any, on_delivery: Callable[[KafkaError, None], None], headers: Any) -> None:
        del headers
        if self.is_full:
            raise BufferError
        if self.is_ill and self._wrong is None:
            raise REFUSED
        self.queued.append(on_delivery)

    def _tell(self) -> None:
        wrong, self._wrong = self._wrong, None
        if wrong is not None:
            raise wrong
        if self.is_ill:
            told, self.queued = self.queued, []
            for each in told:
                each(PURGED, None)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "Producer", Producer)


def client() -> tuple[TimerProducer, Any]:
    timers = TimerProducer({"bootstrap.servers": "127.0.0.1:1"})
    return timers, producers[-1]


def failure(future: "Future[Sent]") -> str:
    wrong = future.exception(SOON_S)
    assert isinstance(wrong, BridgeError)
    return str(wrong)


@pytest.mark.parametrize("raised", [FATAL, wrapped()])
def test_after_a_fatal_error_the_future_and_flush_raise(raised: Exception) -> None:
    timers, producer = client()
    waiting = timers.schedule("orders", b"v", delay="1h")
    producer.fail(raised)
    assert WHY in failure(waiting)
    assert timers.is_broken
    with pytest.raises(BridgeError, match=rf"1 of 1 were not taken: .*{WHY}.*make a new TimerProducer"):
        timers.flush(SOON_S)
    timers.close()


def test_after_a_fatal_error_requests_fail_at_once_also_one_that_waits_for_room() -> None:
    timers, producer = client()
    producer.is_full = True
    producer.fail(FATAL)
    for _ in range(2):
        future = timers.schedule("orders", b"v", delay="1h")
        assert "make a new TimerProducer" in str(future.exception(0))
    with pytest.raises(BridgeError, match="2 of 2"):
        timers.flush()
    timers.close()


def test_a_fatal_error_during_a_flush_or_a_close_is_a_bridge_error() -> None:
    for is_closed in (False, True):
        timers, producer = client()
        polls, quiet = producer.poll, threading.Event()
        producer.poll = lambda _, quiet=quiet: int(quiet.set() or 0)
        producer.end_poll()
        assert quiet.wait(SOON_S), "no poll of the fake is under way, which would take the error"
        waiting = timers.schedule("orders", b"v", delay="1h")
        producer.fail(FATAL)
        for _ in range(0 if is_closed else 2):
            with pytest.raises(BridgeError, match=WHY):
                timers.flush()
        if not is_closed:
            producer.poll = polls
        timers.close()
        assert WHY in failure(waiting)


def test_callbacks_that_raise_do_not_end_the_serving_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """confluent_kafka's own examples have such callbacks."""
    timers, producer = client()
    producer.say(KafkaException(KafkaError(KafkaError.NETWORK_EXCEPTION)))
    timers.schedule("orders", b"v", delay="1h")
    with pytest.raises(BrokerUnavailableError, match="not acknowledged"):
        timers.flush(0)
    assert not timers.is_broken
    producer.say(ValueError("somebody's stats_cb"))
    waiting = timers.schedule("orders", b"v", delay="1h")
    until_s = time.monotonic() + SOON_S
    while "somebody's stats_cb" not in caplog.text and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    assert "somebody's stats_cb" in caplog.text
    producer.fail(FATAL)
    assert WHY in failure(waiting)
    timers.close()
