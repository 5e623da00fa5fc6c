"""A partition whose owner is gone opens on an instance that kept a standby of it."""

from dataclasses import replace

import pytest

from bridge.loop.standbys import Standbys
from bridge.loop.tests.test_histories import SMALL, kafka_with, send
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.observe.status import Status
from bridge.partition.recover import read_checkpoint
from bridge.testing import FakeInstance
from bridge.testing.fake_kafka import FakeGroup, FakeKafka
from bridge.testing.timeline import FakeClock, Timeline
from kafka_timer.origin import TimerPartition

PARTITIONS = [TimerPartition("timer.requests", number) for number in range(2)]
MINUTE_MS = 60_000


class Group:
    """Two instances with standbys, each with one of two partitions."""

    def __init__(self, interval_ms: int = 1000, min_free_bytes: int = 0) -> None:
        self.kafka: FakeKafka = kafka_with(2)
        group = FakeGroup("timers", PARTITIONS)
        rules = SMALL.rules.model_copy(update={"roll_window_ms": MINUTE_MS})
        options = replace(SMALL, rules=rules, receipts="none", min_free_bytes=min_free_bytes)
        self.one, self.other = (
            FakeInstance(self.kafka, group, options, name=name, standby_interval_ms=interval_ms)
            for name in ("one", "other")
        )
        self.pass_time(10)
        (self.gone,) = self.one.bridge.pending

    def pass_time(self, ms: int) -> None:
        """Run both instances, each step of 100 ms one after the other."""
        for _ in range(max(1, ms // 100)):
            for instance in (self.one, self.other):
                if instance.is_running:
                    instance.run(min(ms, 50))

    def values(self) -> list[bytes]:
        return sorted(entry.value or b"" for entry in self.kafka.read("orders"))


def work(instance: FakeInstance, source: str) -> float:
    """Return the records that recoveries have read beyond a directory's ("directory") or from Kafka alone ("kafka")."""
    (value,) = (
        sample.value
        for metric in instance.metrics.recovery_work.collect()
        for sample in metric.samples
        if sample.labels == {"source": source} and sample.name.endswith("_total")
    )
    return float(value)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_partition_moves_to_a_standby_without_a_rebuild(end: str) -> None:
    group = Group()
    for number in range(20):
        send(group.kafka, group.gone, f"{number}", 10_000)
    group.pass_time(4000)
    send(group.kafka, group.gone, "late", 5000)
    group.one.run(500)
    before = work(group.other, "kafka")
    getattr(group.one, end)()
    group.pass_time(1000)
    assert group.gone in group.other.bridge.partitions
    assert work(group.other, "kafka") == before, "nothing is read from L on"
    group.pass_time(MINUTE_MS)
    assert group.values() == sorted([*(b"%d" % number for number in range(20)), b"late"])


def test_a_standby_follows_what_its_owner_commits() -> None:
    group = Group()
    send(group.kafka, group.gone, "later", 50_000)
    for number in range(5):
        send(group.kafka, group.gone, f"{number}", 300)
        group.pass_time(3000)
        committed = group.one.bridge.partitions[group.gone].committed_progress
        kept = read_checkpoint(group.other.disks[group.gone])
        assert kept is not None
        assert (kept.progress.next_offset, kept.pending) == (committed.next_offset, 1)
    assert group.other.status.standby_ages_s()[group.gone] <= 3
    assert group.values() == [b"0", b"1", b"2", b"3", b"4"], "a standby delivers nothing"
    text, _ = Exposition(group.other.metrics, group.other.status, AlertLimits("1", 0, 0)).text("")
    label = f'partition="{group.gone.partition}",topic="timer.requests"'
    assert f"timer_bridge_standby_age_seconds{{{label}}}".encode() in text


def test_a_standby_of_a_topic_without_progress_is_empty() -> None:
    group = Group()
    group.pass_time(3000)
    assert read_checkpoint(group.other.disks[group.gone]) is None


def test_a_standby_takes_no_room_that_an_owner_may_need() -> None:
    group = Group(min_free_bytes=1000)
    group.other.disk_for(group.gone).free = 1999
    send(group.kafka, group.gone, "m", 100)
    group.pass_time(3000)
    assert read_checkpoint(group.other.disks[group.gone]) is None
    assert group.values() == [b"m"]


def test_a_refresh_ends_before_its_partition_is_opened() -> None:
    group = Group()
    send(group.kafka, group.gone, "m", 5000)
    group.other.holds_preparations = True
    group.pass_time(3000)
    group.one.kill()
    group.other.holds_preparations = False
    group.pass_time(MINUTE_MS)
    assert group.values() == [b"m"]
    assert group.gone not in group.other.status.standby_ages_s()


class Refresh:
    """A refresh that takes 300 ms."""

    def __init__(self, clock: FakeClock, *, fails: bool) -> None:
        self._clock = clock
        self._ends_ms = clock.now_ms() + 300
        self.refused = OSError("full") if fails else None
        self.is_given_up = False

    def is_done(self) -> bool:
        return self._clock.now_ms() >= self._ends_ms

    def give_up(self) -> None:
        self.is_given_up = True


def starts(ms: int, *, failing: int = -1, interval_ms: int = 1000) -> list[tuple[int, int]]:
    """Return the starts within `ms` of standbys of three partitions, the first of which is ours: (time, partition)."""
    clock, found = FakeClock(Timeline()), list[tuple[int, int]]()
    began_ms = clock.now_ms()

    def refresh(partition: TimerPartition) -> Refresh:
        found.append((clock.now_ms() - began_ms, partition.partition))
        return Refresh(clock, fails=partition.partition == failing)

    all_ = [TimerPartition("timer.requests", number) for number in range(3)]
    standbys = Standbys(clock, Status(), refresh, all_, interval_ms)
    for _ in range(ms // 100):
        standbys.step(all_[:1])
        clock.timeline.advance(100)
    return found


def test_refreshes_take_turns_and_a_store_is_not_refreshed_all_the_time() -> None:
    assert starts(2500) == [(0, 1), (400, 2), (1300, 1), (1700, 2)]


def test_a_refresh_that_failed_is_tried_again_later() -> None:
    assert [partition for _, partition in starts(20_000, failing=2)].count(2) == 1


@pytest.mark.parametrize(("leave_ms", "refreshed"), [(10_000, [0, 1, 2]), (100, [0, 1]), (0, [])])
def test_an_instance_refreshes_all_stores_before_it_joins_unless_nobody_serves_them(
    leave_ms: int, refreshed: list[int]
) -> None:
    """leave_ms: when the owners leave. A refresh takes 400 ms."""
    clock, found = FakeClock(Timeline()), list[tuple[int, Refresh]]()
    began_ms = clock.now_ms()

    def refresh(partition: TimerPartition) -> Refresh:
        found.append((partition.partition, Refresh(clock, fails=partition.partition == 1)))
        return found[-1][1]

    standbys = Standbys(clock, Status(), refresh, [TimerPartition("timer.requests", number) for number in range(3)])
    standbys.warm_up(lambda: clock.now_ms() - began_ms < leave_ms, lambda: clock.timeline.advance(100))
    assert [partition for partition, _ in found] == refreshed
    assert [each.is_given_up for _, each in found] == [not each.is_done() for _, each in found]
    assert clock.now_ms() - began_ms <= min(leave_ms + 500, 2000)
