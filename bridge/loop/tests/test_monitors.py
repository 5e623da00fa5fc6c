"""Monitors of a running bridge: retention, open transactions, clocks of the brokers."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.loop.tests.test_histories import SMALL, kafka_with, send, two_partitions, values
from bridge.observe.metrics import Lag
from bridge.testing import FakeInstance
from bridge.testing.fake_kafka import FakeGroup, FakeKafka
from bridge.testing.timer_world import TIMERS
from kafka_timer.origin import TimerPartition


def warnings(caplog: pytest.LogCaptureFixture, check: Callable[[], None]) -> list[str]:
    """Run `check` and return its warnings."""
    caplog.clear()
    check()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- retention


def test_case_28_a_warning_names_the_pending_offsets_that_retention_took(caplog: pytest.LogCaptureFixture) -> None:
    kafka, (one, other), instance = two_partitions()
    for timer_partition, count, delay_ms in ((one, 2, 50), (other, 3, 50), (one, 4, 900)):
        for _ in range(count):
            send(kafka, timer_partition, delay_ms=delay_ms)
    instance.run(300)
    look = instance.bridge.monitors.check_retention
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
    for _ in range(2):
        send(kafka, other, delay_ms=50)
    kafka.partition(other).delete_before(5)
    assert len(warnings(caplog, look)) == 1, "requests that were never read have a warning of their own"
    assert instance.metrics.lost_to_retention == {one: 3, other: 0}


# -- open transactions


def test_case_38_a_hung_transaction_is_logged_and_holds_its_partition_alone(caplog: pytest.LogCaptureFixture) -> None:
    kafka, (one, other), instance = two_partitions(transaction_timeout_ms=600_000)
    look = instance.bridge.monitors.check_open_transactions
    assert warnings(caplog, look) == []
    assert instance.metrics.lags == {one: Lag(0, 0), other: Lag(0, 0)}
    senders = [kafka.begin(f"sender of {timer_partition}") for timer_partition in (one, other)]
    for sender, timer_partition in zip(senders, (one, other), strict=True):
        send(kafka, timer_partition, f"before {timer_partition}", 50)
        send(kafka, timer_partition, "hung", 50, transaction=sender)
    for _ in range(2):
        send(kafka, other, "after", 50)
    assert warnings(caplog, look) == []
    assert instance.metrics.lags == {one: Lag(2, 1), other: Lag(4, 3)}, "no request is read yet"
    instance.run(10_900)
    assert values(kafka) == [f"before {one}", f"before {other}"]

    def told(timer_partition: TimerPartition, seconds: int, count: int, *, times: str = "") -> str:
        return (
            f"{timer_partition}: a sender's transaction has been open for {seconds} s: the {count} offsets after its"
            f" first record, requests and cancels, are not read before it ends; find the sender, or end it by"
            f" kafka-transactions.sh find-hanging and abort{times}"
        )

    assert warnings(caplog, look) == [told(one, 10, 1), told(other, 10, 3)]
    assert instance.metrics.lags == {one: Lag(1, 1), other: Lag(3, 3)}
    assert warnings(caplog, look) == [], "each once a minute"
    kafka.commit(senders[0])
    instance.run(1000)
    assert warnings(caplog, look) == []
    assert values(kafka)[2:] == ["hung"]
    assert instance.metrics.lags == {one: Lag(1, 0), other: Lag(3, 3)}
    assert instance.metrics.hanging_transactions.keys() == {other}
    again = kafka.begin("another sender")
    send(kafka, one, "hung", 50, transaction=again)
    assert warnings(caplog, look) == []
    instance.run(5000)
    assert warnings(caplog, look) == [told(one, 5, 1)], "a new transaction is logged at once"
    instance.run(60_000)
    assert warnings(caplog, look) == [
        told(one, 65, 1, times=" (2 times so far)"),
        told(other, 76, 3, times=" (6 times so far)"),
    ]


def test_a_leader_without_an_answer_keeps_its_figures_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The checks run in the thread of the turns: while one waits, no partition delivers."""
    kafka, (one, other), instance = two_partitions()
    for timer_partition in (one, other):
        send(kafka, timer_partition, delay_ms=900)
    send(kafka, one, "hung", 50, transaction=kafka.begin("sender"))
    monitors, metrics, history = instance.bridge.monitors, instance.metrics, instance.history

    def check() -> None:
        monitors.check_open_transactions()
        monitors.check_clocks()
        monitors.check_retention()

    check()
    instance.run(300)
    assert len(warnings(caplog, check)) == 1
    hang = metrics.hanging_transactions[one]
    known = metrics.lags[one], metrics.clock_skew_ms[one]
    assert metrics.lost_to_retention == {one: 0, other: 0}
    history.silent.add(one)
    for timer_partition in (one, other):
        kafka.partition(timer_partition).delete_before(1)
    send(kafka, other, delay_ms=900)
    check()
    assert (metrics.hanging_transactions[one], (metrics.lags[one], metrics.clock_skew_ms[one])) == (hang, known)
    assert metrics.lags[other] == Lag(1, 0)
    assert metrics.lost_to_retention == {one: 0, other: 1}
    assert f"{other}: retention has taken requests that are pending" in caplog.text
    instance.run(300)
    history.silent.clear()
    check()
    assert metrics.hanging_transactions[one].since_ms == hang.since_ms


def test_an_instance_without_partitions_asks_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, group = kafka_with(), FakeGroup("timers", [TimerPartition(TIMERS, 0)])
    owner = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="owner")
    owner.run(100)
    idle = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="idle")
    idle.run(100)
    bridge = idle.bridge
    asked: list[object] = []
    for question in ("stable_and_end_offsets", "newest_journal_times"):
        monkeypatch.setattr(idle.history, question, asked.append)
    bridge.monitors.check_open_transactions()
    bridge.monitors.check_clocks()
    assert asked == []


# -- clocks


def apart(kafka: FakeKafka, instance: FakeInstance, *skews_ms: int) -> None:
    """Write a journal record in each partition, so that the bridge computes `skews_ms` for the brokers' clocks."""
    for number, skew_ms in enumerate(skews_ms):
        for topic in ("timer.journal", TIMERS):
            kafka.topics[topic].partitions[number].skew_ms = skew_ms
        journal = kafka.topics["timer.journal"].partitions[number]
        journal.delete_before(journal.end)  # the claim, which has another timestamp
        send(kafka, TimerPartition(TIMERS, number))
        instance.run(100)


def told_clock(words: str) -> str:
    return (
        f"a broker's clock is {words} of ours: timers leave by ours, delays count from the brokers': keep all of them"
        f" in time (NTP)"
    )


@pytest.mark.parametrize(("skews_ms", "words"), [((2000, -5000), "5000 ms behind"), ((3000, -2000), "3000 ms ahead")])
def test_the_clock_with_the_largest_skew_is_logged(
    skews_ms: tuple[int, int], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, partitions, instance = two_partitions()
    look = instance.bridge.monitors.check_clocks
    assert warnings(caplog, look) == [], "the journal has no decisions yet"
    apart(kafka, instance, *skews_ms)
    assert warnings(caplog, look) == [told_clock(words)]
    assert instance.metrics.clock_skew_ms == dict(zip(partitions, skews_ms, strict=True))


@pytest.mark.parametrize(("jump_ms", "words"), [(86_400_000, "by 86400 s"), (-61_000, "by -61 s"), (59_000, "")])
def test_a_jump_of_our_clock_is_logged_and_counted(jump_ms: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    _, _, instance = two_partitions()
    metrics, timeline = instance.metrics.registry, instance.clock.timeline

    def look() -> None:
        instance.bridge.monitors.check_jump(timeline.now_ms)

    assert warnings(caplog, look) == []
    timeline.now_ms += 3_600_000
    assert warnings(caplog, look) == [], "time has passed"
    instance.clock.error_ms = jump_ms
    told = warnings(caplog, look)
    assert len(told) == bool(words)
    assert all(words in each for each in told)
    assert metrics.get_sample_value("timer_bridge_clock_jumps_total") == bool(words)


def test_a_clock_that_was_in_time_and_is_wrong_again_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    kafka, _, instance = two_partitions()
    look = instance.bridge.monitors.check_clocks
    apart(kafka, instance, 1000, -1000)
    assert warnings(caplog, look) == [], "no further than the limit"
    apart(kafka, instance, 1001, 0)
    assert warnings(caplog, look) == [told_clock("1001 ms ahead")]
    assert warnings(caplog, look) == []
    apart(kafka, instance, 0, 0)
    assert warnings(caplog, look) == []
    apart(kafka, instance, 1002, 0)
    assert warnings(caplog, look) == [told_clock("1002 ms ahead")]


def test_a_transaction_in_flight_does_not_count_as_clock_skew(caplog: pytest.LogCaptureFixture) -> None:
    kafka, (one, other), instance = two_partitions()
    apart(kafka, instance, 0, 0)
    instance.sink.slow_turns = 1
    send(kafka, one, delay_ms=50)
    kafka.timeline.advance(3000)
    instance.bridge.turn()
    instance.bridge.turn()
    assert not instance.bridge.is_idle
    assert warnings(caplog, instance.bridge.monitors.check_clocks) == []
    assert instance.metrics.clock_skew_ms == {one: 0, other: 0}
