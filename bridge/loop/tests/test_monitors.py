"""What a bridge tells of Kafka as it looks at it now and then: retention, open transactions, clocks."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.config.loop_options import TurnOptions
from bridge.loop.loop import Bridge
from bridge.loop.tests.test_histories import SMALL, two_partitions
from bridge.observe.metrics import Lag
from bridge.testing.fake_kafka import FakeGroup, FakeKafka, Timeline
from bridge.testing.fakes import FakeHistory, FakeInstance
from bridge.testing.timer_world import TIMERS
from schemas.origin import Shard


def send(kafka: FakeKafka, shard: Shard, delay_ms: int, count: int = 1) -> None:
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"%d" % delay_ms)]
    for _ in range(count):
        kafka.produce(TIMERS, b"m", headers=headers, partition=shard.partition)


def running(instance: FakeInstance) -> Bridge:
    assert instance.bridge is not None
    return instance.bridge


def warnings(caplog: pytest.LogCaptureFixture, look: Callable[[], None]) -> list[str]:
    """In full, of this look."""
    caplog.clear()
    look()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- retention


def test_case_28_what_retention_took_is_told_to_the_offset_where_something_is_pending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka, (one, other), instance = two_partitions()
    send(kafka, one, 50, count=2)
    send(kafka, other, 50, count=3)
    send(kafka, one, 900, count=4)
    instance.run(300)
    look = running(instance).monitors.check_retention
    assert warnings(caplog, look) == []
    assert instance.metrics.lost_to_retention == {one: 0, other: 0}
    kafka.partition(one).delete_before(2)
    kafka.partition(other).delete_before(3)
    assert warnings(caplog, look) == [], "none of these is pending"
    assert instance.metrics.lost_to_retention == {one: 0, other: 0}
    kafka.partition(one).delete_before(5)
    assert warnings(caplog, look) == [
        f"{one}: retention has taken requests that are pending, from offset 2 to 4: they are still delivered, but a"
        f" lost disk would lose them; raise retention.ms to 3 roll windows"
    ]
    send(kafka, other, 50, count=2)
    kafka.partition(other).delete_before(5)
    assert len(warnings(caplog, look)) == 1, "where nothing is pending, what was never read is another complaint"
    assert instance.metrics.lost_to_retention == {one: 3, other: 0}


# -- open transactions


def test_case_38_each_partition_that_a_sender_holds_is_told_with_how_long_and_how_much(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = FakeKafka(Timeline(), transaction_timeout_ms=600_000)
    for topic, partitions in ((TIMERS, 2), ("timer.journal", 2), ("timer.rejected", 1), ("orders", 1)):
        kafka.create(topic, partitions)
    shards = one, other = [Shard(TIMERS, number) for number in range(2)]
    instance = FakeInstance(kafka, FakeGroup("timers", shards), replace(SMALL, receipts="none"))
    instance.run(0)
    look = running(instance).monitors.check_open_transactions
    assert warnings(caplog, look) == []
    assert instance.metrics.lags == {one: Lag(0, 0), other: Lag(0, 0)}
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"50")]
    senders = [kafka.begin(f"sender of {shard}") for shard in (one, other)]
    for sender, shard in zip(senders, (one, other), strict=True):
        send(kafka, shard, 50)
        kafka.produce(TIMERS, b"hung", headers=headers, partition=shard.partition, transaction=sender)
    send(kafka, other, 50, count=2)
    assert warnings(caplog, look) == []
    assert instance.metrics.lags == {one: Lag(2, 1), other: Lag(4, 3)}, "nothing is read yet"
    instance.run(10_900)

    def told(shard: Shard, seconds: int, count: int, *, times: str = "") -> str:
        return (
            f"{shard}: a sender's transaction has been open for {seconds} s: the {count} offsets behind its first"
            f" record, requests and cancels, are not read before it ends; find the sender, or end it by"
            f" kafka-transactions.sh find-hanging and abort{times}"
        )

    assert warnings(caplog, look) == [told(one, 10, 1), told(other, 10, 3)]
    assert instance.metrics.lags == {one: Lag(1, 1), other: Lag(3, 3)}
    assert warnings(caplog, look) == [], "each once a minute"
    kafka.commit(senders[0])
    instance.run(1000)
    assert warnings(caplog, look) == []
    assert instance.metrics.lags == {one: Lag(1, 0), other: Lag(3, 3)}
    assert instance.metrics.hanging_transactions.keys() == {other}
    again = kafka.begin("another sender")
    kafka.produce(TIMERS, b"hung", headers=headers, partition=one.partition, transaction=again)
    assert warnings(caplog, look) == []
    instance.run(5000)
    assert warnings(caplog, look) == [told(one, 5, 1)], "what was over begins anew"
    instance.run(60_000)
    assert warnings(caplog, look) == [
        told(one, 65, 1, times=" (2 times so far)"),
        told(other, 76, 3, times=" (6 times so far)"),
    ]


def test_case_38_a_leader_that_does_not_answer_ends_no_complaint_and_hides_no_other_partition(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, (one, other), instance = two_partitions()
    look = running(instance).monitors.check_open_transactions
    headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"50")]
    kafka.produce(TIMERS, b"hung", headers=headers, partition=one.partition, transaction=kafka.begin("sender"))
    look()
    instance.run(3000)
    assert len(warnings(caplog, look)) == 1
    hanging, ends = instance.metrics.hanging_transactions[one], instance.metrics.lags[one]
    real = FakeHistory.stable_and_end_offsets
    silent = {one}

    def stable_and_end_offsets(history: FakeHistory, shards: list[Shard]) -> dict[Shard, tuple[int, int]]:
        return {shard: told for shard, told in real(history, shards).items() if shard not in silent}

    monkeypatch.setattr(FakeHistory, "stable_and_end_offsets", stable_and_end_offsets)
    send(kafka, other, 10_000)
    look()
    assert (instance.metrics.hanging_transactions[one], instance.metrics.lags[one]) == (hanging, ends)
    assert instance.metrics.lags[other] == Lag(1, 0)
    instance.run(1000)
    silent.clear()
    look()
    assert instance.metrics.hanging_transactions[one].since_ms == hanging.since_ms


def test_a_clock_is_told_by_what_was_seen_last_where_its_journal_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka, (one, other), instance = two_partitions()
    for shard in (one, other):
        send(kafka, shard, 50)
    instance.run(1000)
    running(instance).monitors.check_clocks()
    known = dict(instance.metrics.clock_skew_ms)
    assert known.keys() == {one, other}
    real = FakeHistory.newest_journal_times
    monkeypatch.setattr(
        FakeHistory,
        "newest_journal_times",
        lambda history, shards: {shard: ms for shard, ms in real(history, shards).items() if shard != one},
    )
    running(instance).monitors.check_clocks()
    assert instance.metrics.clock_skew_ms == known


def test_without_a_partition_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = FakeKafka(Timeline())
    for topic in (TIMERS, "timer.journal", "timer.rejected", "orders"):
        kafka.create(topic, 1)
    group = FakeGroup("timers", [Shard(TIMERS, 0)])
    owner = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="owner")
    owner.run(100)
    idle = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="idle")
    idle.run(100)
    bridge = running(idle)
    asked: list[object] = []
    for question in ("stable_and_end_offsets", "newest_journal_times"):
        monkeypatch.setattr(bridge.monitors._history, question, asked.append)
    bridge.monitors.check_open_transactions()
    bridge.monitors.check_clocks()
    assert asked == []


# -- clocks

DECIDING_MS = 10
"""From a transaction's begin to when we know that it stands: its records were written in between."""


def apart(kafka: FakeKafka, instance: FakeInstance, *skews_ms: int) -> None:
    """Something is decided in each partition, whose brokers' clocks stand so far from ours, as sure as we can be."""
    for number, skew_ms in enumerate(skews_ms):
        for topic in ("timer.journal", TIMERS):
            kafka.topics[topic].partitions[number].skew_ms = skew_ms + (DECIDING_MS if skew_ms > 0 else 0)
        journal = kafka.topics["timer.journal"].partitions[number]
        journal.delete_before(journal.end)  # the claim, which bears another time
        send(kafka, Shard(TIMERS, number), 500)
        instance.run(100)
    assert {stands - begun for begun, stands in instance.metrics.journal_written_ms.values()} == {DECIDING_MS}


def with_limit(max_clock_skew_ms: int) -> tuple[FakeKafka, list[Shard], FakeInstance]:
    kafka, shards, instance = two_partitions()
    options: TurnOptions = replace(instance.options, max_clock_skew_ms=max_clock_skew_ms)
    instance.options = options
    instance.start()
    instance.run(0)
    return kafka, shards, instance


def told_clock(words: str) -> str:
    return (
        f"a broker's clock is {words} of ours: timers leave by ours, delays count from the brokers': keep all of them"
        f" in time (NTP)"
    )


@pytest.mark.parametrize(
    ("skews_ms", "words"), [((2000, -5000), "5000 ms behind"), ((3000, -2000), "3000 ms ahead"), ((1, 0), "1 ms ahead")]
)
def test_the_clock_that_is_furthest_from_ours_is_told(
    skews_ms: tuple[int, int], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, shards, instance = with_limit(0)
    look = running(instance).monitors.check_clocks
    assert warnings(caplog, look) == [], "nothing is decided yet"
    apart(kafka, instance, *skews_ms)
    assert warnings(caplog, look) == [told_clock(words)]
    assert instance.metrics.clock_skew_ms == dict(zip(shards, skews_ms, strict=True))


def test_a_clock_that_is_in_time_again_and_goes_wrong_once_more_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka, _, instance = with_limit(1000)
    look = running(instance).monitors.check_clocks
    apart(kafka, instance, 1000, -1000)
    assert warnings(caplog, look) == [], "no further than the limit"
    apart(kafka, instance, 1001, 0)
    assert warnings(caplog, look) == [told_clock("1001 ms ahead")]
    assert warnings(caplog, look) == []
    apart(kafka, instance, 0, 0)
    assert warnings(caplog, look) == []
    apart(kafka, instance, 1002, 0)
    assert warnings(caplog, look) == [told_clock("1002 ms ahead")]


def test_what_a_transaction_that_is_under_way_has_written_tells_of_no_other_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka, (one, other), instance = with_limit(0)
    apart(kafka, instance, 0, 0)
    assert instance.sink is not None
    instance.sink.is_slow = True
    send(kafka, one, 50)
    kafka.timeline.advance(3000)
    running(instance).turn()
    running(instance).turn()
    assert not running(instance).is_idle
    assert warnings(caplog, running(instance).monitors.check_clocks) == []
    assert instance.metrics.clock_skew_ms == {one: 0, other: 0}
