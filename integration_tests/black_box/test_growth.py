"""A timer topic grows: each timer exactly once, none early."""

from collections.abc import Callable

import pytest

from kafka_timer import TimerProducer

from .history import History, Timer, headers_of, now_ms
from .processes import until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1800)]

HOUR_MS = 3_600_000


def client(history: History, partitions: int, other: int) -> TimerProducer:
    where = {"bootstrap.servers": history.servers}
    return TimerProducer(where, timer_topic=history.requests, partitions=partitions, other_partitions=other)


def kinds_by_id(history: History) -> dict[str | None, list[str]]:
    told: dict[str | None, list[str]] = {}
    for receipt in history.receipts():
        told.setdefault(receipt["id"], []).append(receipt["kind"])
    return {id_: sorted(kinds) for id_, kinds in told.items()}


def test_a_timer_topic_grows_with_timers_pending(make_history: Callable[..., History]) -> None:
    """The steps of docs/timer-topics.md, "More partitions", then a kill and a lost disk."""
    history = make_history(2, "--kafka", "topic.metadata.refresh.interval.ms=1000")
    bridge = history.bridge("a")
    bridge.start()
    due_ms = now_ms() + HOUR_MS
    old = [Timer(b"old-%d" % number, due_ms, f"id-{number}") for number in range(40)]
    new = [Timer(b"new-%d" % number, due_ms, f"id-{number}") for number in range(20, 80)]
    cancelled, replaced = old[:20], old[20:]
    # These stay pending, so a rebuild also reads later timers that were ended, and must not restore them.
    kept = [Timer(b"kept-%d" % number, due_ms, f"kept-{number}") for number in range(10)]
    history.timers += [*kept, *old, *new]
    with client(history, 2, 4) as timers:
        for timer in [*kept, *old]:
            timers.schedule(history.target, timer.value, at=timer.due_ms, id=timer.id)
    history.schedule(40, 0, 8000)
    history.until_read()
    history.grow(4)
    until(lambda: bridge.running() == 4, "4 partitions are served")
    with client(history, 4, 2) as timers:
        for timer in cancelled:
            timers.cancel(timer.id or "")
        for timer in new:
            timers.replace(timer.id or "", history.target, timer.value, at=timer.due_ms)
    history.schedule(40, 0, 8000)
    history.until_read()
    kinds = kinds_by_id(history)
    # The partition by the other count gets a cancel too, and has no such timer.
    both = ["cancelled", "not-found"]
    assert [kinds[timer.id] for timer in cancelled if kinds[timer.id] not in (["cancelled"], both)] == []
    assert [kinds[timer.id] for timer in replaced if kinds[timer.id] not in (["replaced"], both)] == []
    assert all(end in [kinds[timer.id] for timer in cancelled] for end in (["cancelled"], both))
    history.ended = {timer.value for timer in old}
    bridge.kill()
    bridge.lose_disk()
    bridge.start()
    assert len(bridge.recovered("from Kafka alone")) == 4
    due_ms = now_ms() + 1000
    with client(history, 4, 2) as timers:
        for id_ in {timer.id for timer in [*kept, *old, *new]}:
            timers.move(id_ or "", at=due_ms)
    history.note_moved([*kept, *old, *new], due_ms)
    history.demand_each_once()
    partitions = {headers_of(each)["timer-origin"].split(b"/")[1] for each in history.delivered()}
    assert partitions == {b"0", b"1", b"2", b"3"}
