"""Instances come, go and restart under a load, and a timer topic grows: each timer exactly once, none early."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kafka_timer import TimerProducer

from .history import History, Timer, headers_of, now_ms
from .processes import Bridge, until

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


@contextmanager
def load(history: History) -> Iterator[None]:
    """Send 20 timers each 100 ms, due in 0 to 2 s, and cancel two of them."""
    over, failed = threading.Event(), []

    def run() -> None:
        try:
            while not over.wait(0.1):
                history.schedule(18, 0, 2000)
                history.cancel(history.schedule(2, 1500, 2000, ids=True))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == []


def until_shared(*bridges: Bridge, partitions: int) -> None:
    """Wait until each of these bridges is ready and serves some of the partitions, and together they serve all."""

    def is_shared() -> bool:
        counts = [bridge.running() for bridge in bridges]
        return min(counts) > 0 and sum(counts) == partitions

    until(is_shared, "partitions are shared out")


def until_more_delivered(history: History, count: int = 50) -> None:
    goal = len(history.delivered()) + count
    until(lambda: len(history.delivered()) >= goal, f"{count} more deliveries")


def test_instances_are_added_restarted_one_by_one_and_removed(make_history: Callable[..., History]) -> None:
    history = make_history(4, "--no-static-membership")  # so that a stop hands over at once
    first, *others = bridges = [history.bridge(name) for name in "abc"]
    first.start()
    until_shared(first, partitions=4)
    with load(history):
        until_more_delivered(history)
        for bridge in others:
            bridge.start()
        until_shared(*bridges, partitions=4)
        until_more_delivered(history)
        for bridge in bridges:
            bridge.stop()
            until_shared(*(each for each in bridges if each is not bridge), partitions=4)
            bridge.start()
            until_shared(*bridges, partitions=4)
            until_more_delivered(history)
        for bridge in others:
            bridge.stop()
        until_shared(first, partitions=4)
        until_more_delivered(history)
    assert len(history.cancels) > 20
    history.demand_each_once()


def test_a_timer_topic_grows_with_timers_pending(make_history: Callable[..., History]) -> None:
    """The steps of docs/timer-topics.md, "More partitions", then a kill and a lost disk."""
    history = make_history(2, "--kafka", "topic.metadata.refresh.interval.ms=1000")
    bridge = history.static_bridge("a")
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
    until_shared(bridge, partitions=4)
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
