"""Mistakes with the client, by the real Kafka producer and a broker that does not answer."""

import asyncio
import time
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.serialization import MessageField, SerializationContext, StringSerializer

from kafka_timer import BridgeError, BrokerUnavailableError, Outcomes, Sent, SettingsError, TimerOperator, TimerProducer
from kafka_timer.aio import AsyncTimerProducer
from kafka_timer.tests.test_aio import Outbox

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
AT_MOST_S = 4.0
"""Far below message.timeout.ms (300 s), with time for a slow machine."""


@pytest.mark.parametrize("given", [{"value": {"a": 1}}, {"value": 5}, {"key": 7}, {"headers": {"n": 5}}, {"id": 7}])
def test_what_is_neither_bytes_nor_text_is_refused_by_name(given: dict[str, Any]) -> None:
    outbox = Outbox()
    with pytest.raises(TypeError, match=r"(value|key|header n|id): (dict|int) is neither bytes nor str"):
        TimerProducer({}, outbox=outbox).schedule("orders", **{"value": b"v", "delay": "1s", **given})
    assert outbox.sent == []


def test_serializers_get_the_target_topic_and_may_add_headers_beside_the_trace_id() -> None:
    seen: list[tuple[Any, str, str]] = []

    def serialized(value: Any, context: SerializationContext) -> bytes:
        seen.append((value, context.topic, context.field))
        assert isinstance(context.headers, list)
        context.headers.append(("schema", b"7"))
        return repr(value).encode()

    outbox = Outbox()
    by: dict[str, Any] = {"key_serializer": StringSerializer("utf_8"), "value_serializer": serialized}
    with TimerProducer({}, outbox=outbox, trace_header="id", **by) as timers:
        timers.schedule("orders", {"a": 1}, key="k", delay="1s", headers={"trace": "1"})
        timers.replace("x", "orders", None, delay="1s")
        timers.cancel("x")
    assert seen == [({"a": 1}, "orders", MessageField.VALUE), (None, "orders", MessageField.VALUE)]
    assert [sent[2:] for sent in outbox.sent] == [(b"k", b"{'a': 1}"), (None, b"None"), (b"x", None)]
    assert [name for name, _ in outbox.headers[0][-3:]] == ["trace", "id", "schema"]
    assert outbox.headers[0][-3::2] == [("trace", b"1"), ("schema", b"7")]


@pytest.mark.parametrize("config", [{}, {"bootstrap.servers": ""}, {"client.id": "me"}])
def test_bootstrap_servers_are_demanded(config: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"bootstrap\.servers.*host:port"):
        TimerProducer(config)


def took_s(what: Callable[[], object]) -> float:
    began_s = time.monotonic()
    what()
    return time.monotonic() - began_s


def test_close_ends_in_its_time_and_its_requests_fail() -> None:
    timers = TimerProducer(NOBODY)
    waiting = timers.schedule("orders", b"v", delay="1s")
    assert took_s(lambda: timers.close(0.2)) < AT_MOST_S
    failure = waiting.exception(0)
    assert isinstance(failure, BrokerUnavailableError)
    assert "not acknowledged when the client was closed" in str(failure)
    assert failure.retriable
    assert not hasattr(failure, "exit_code")
    timers.close()


def test_leaving_after_an_error_ends_in_its_time_with_asyncio() -> None:
    async def main() -> None:
        async with AsyncTimerProducer(TimerProducer(NOBODY, error_close_s=0.2)) as timers:
            asking = asyncio.create_task(timers.schedule("orders", b"v", delay="1s"))
            asyncio.get_running_loop().call_later(0.2, asking.cancel)
            flushing = asyncio.create_task(timers.flush())  # occupies the thread of calls
            await asyncio.sleep(0.1)
            flushing.cancel()
            raise ZeroDivisionError

    def run() -> None:
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())

    assert took_s(run) < AT_MOST_S


def test_use_after_close_raises() -> None:
    timers = TimerProducer(NOBODY)
    timers.close(0)
    uses: list[Callable[[], object]] = [
        lambda: timers.schedule("orders", b"v", delay="1s"),
        lambda: timers.cancel("x", partition=0),
        lambda: timers.cancel("x"),
    ]
    for use in uses:
        with pytest.raises(BridgeError, match="this client is closed: make a new one"):
            use()

    async def later() -> None:
        closed = AsyncTimerProducer(TimerProducer({}, outbox=Outbox()))
        await closed.close()
        await closed.close()
        with pytest.raises(BridgeError, match="this client is closed: make a new one"):
            await closed.schedule("orders", b"v", delay="1s")

    asyncio.run(later())


def test_outcomes_that_may_not_be_read_fail_with_the_remedy() -> None:
    is_asked, denied = Event(), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    message = SimpleNamespace(topic=lambda: "orders", error=lambda: denied)
    consumer = SimpleNamespace(poll=lambda _: message if is_asked.wait(10) else None, close=lambda: None)
    outcomes = Outcomes({}, consumer=consumer)
    waiting = outcomes.outcome(Sent("timer.requests", 0, 1))
    is_asked.set()
    wanted = r"orders: cannot be read: .*: name an existing topic that you may read"
    with pytest.raises(BridgeError, match=wanted) as told:
        waiting.result(10)
    assert told.value.code == "TOPIC_AUTHORIZATION_FAILED"
    with pytest.raises(BridgeError, match="orders: cannot be read"):
        outcomes.answer(Sent("timer.requests", 0, 1))


def test_an_error_has_kafkas_code() -> None:
    with TimerProducer({**NOBODY, "message.max.bytes": 1000}) as timers:
        failure = timers.schedule("orders", b"v" * 2000, delay="1s").exception(1)
        assert isinstance(failure, BridgeError)
        assert (failure.code, failure.retriable) == ("MSG_SIZE_TOO_LARGE", False)
        with pytest.raises(BridgeError) as raised:
            timers.flush(1)
        assert raised.value.code == "MSG_SIZE_TOO_LARGE"


def test_calls_of_operators_are_in_a_class_of_their_own() -> None:
    outbox = Outbox()
    for name in ("pause", "resume", "skip"):
        with pytest.raises(AttributeError, match=rf"{name}; .*use kafka_timer\.TimerOperator"):
            getattr(TimerProducer({}, outbox=outbox), name)
    with pytest.raises(AttributeError, match="no_such"):
        getattr(TimerProducer({}, outbox=outbox), "no_such")  # noqa: B009
    TimerOperator({}, outbox=outbox).pause("orders")
    assert [topic for topic, *_ in outbox.sent] == ["timer.control"]
