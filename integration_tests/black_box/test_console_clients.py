"""Kafka's console clients, in Java, know nothing of the bridge: a producer sets headers, a consumer reads a topic."""

from collections import Counter
from collections.abc import Callable

import pytest

from kafka_timer import TimerProducer

from .console import Console
from .history import History, now_ms

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]


def client(history: History) -> TimerProducer:
    return TimerProducer({"bootstrap.servers": history.servers}, timer_topic=history.requests)


def test_a_console_producer_sends_and_a_console_consumer_reads(
    make_history: Callable[..., History], console: Console
) -> None:
    history = make_history(4)
    history.bridge("a").start()
    to, due_ms = f"timer-topic:{history.target}", now_ms() + 7000
    at, names = f"timer-deliver-ms:{due_ms}", [f"java-{number}" for number in range(10)]
    with client(history) as timers:
        for number in range(10):
            timers.schedule(history.target, f"value of python-{number}", at=due_ms, id=f"python-{number}")
    console.produce(
        history.requests,
        (f"{to},timer-delay-ms:0,colour:red,colour:blue", "key 1", "at once"),
        (f"{to},timer-delay-level:1,timer-key:key 2", "NULL", "level 1"),
        (f"{to},{at}", "key 3", "NULL"),
        (f"{to},timer-delay-ms:soon,colour:red", "key 4", "malformed"),
        # With its id as the record's key, a cancel of either client reaches the partition of its timer.
        *((f"{to},{at},timer-id:{id_},timer-key:key of {id_}", id_, f"value of {id_}") for id_ in names),
        *((f"timer-action:cancel,timer-id:{id_}", id_, "NULL") for id_ in names[:4]),
        *((f"timer-action:cancel,timer-id:python-{number}", f"python-{number}", "NULL") for number in range(8)),
    )
    with client(history) as timers:
        for id_ in names[4:8]:
            timers.cancel(id_)
    last = history.deliver_last(due_ms)
    kinds = Counter(receipt["kind"] for receipt in history.receipts())
    assert kinds == {"cancelled": 16, "rejected": 1}
    told = console.consume(history.target, 7 + len(last))
    assert {(key, value) for _, _, key, value in told} == {
        *(("null", timer.value.decode()) for timer in last),
        *(("key 1", "at once"), ("key 2", "level 1"), ("key 3", "null")),
        *((f"key of {id_}", f"value of {id_}") for id_ in names[8:]),
        *(("null", f"value of python-{number}") for number in (8, 9)),
    }
    for appended, headers, key, _ in told:
        released = dict(header.split(":", 1) for header in headers.split(","))
        assert int(appended.removeprefix("LogAppendTime:")) >= int(released["timer-deliver-ms"])
        assert headers.startswith("colour:red,colour:blue,timer-origin:") == (key == "key 1")
    ((_, headers, key, value),) = console.consume(history.rejected, 1)
    assert (key, value) == ("key 4", "malformed")
    assert f"{to},timer-delay-ms:soon,colour:red" in headers
    assert "timer-error:bad-header" in headers
