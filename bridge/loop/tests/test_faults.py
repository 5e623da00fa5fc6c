"""Histories of faults, seen from outside. Names give the number in the case list."""

import errno
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from bridge.errors import (
    BridgeError,
    BrokerUnavailableError,
    OutcomeUnknownError,
    PartitionUnreadableError,
    ProgressLostError,
    SettingsError,
    TopicGrownError,
)
from bridge.kafka.client_config import LONGEST_TRANSACTION_MS
from bridge.loop.tests.test_histories import (
    PARTITION,
    RULES,
    SMALL,
    TROUBLE,
    WINDOW_MS,
    Trouble,
    World,
    crash,
    go_on,
    hang,
    kafka_with,
    lose_disk,
    noted,
    schedule,
    send,
    two_partitions,
    values,
)
from bridge.partition.recover import prepare_store, recover
from bridge.ports import Aborted, Committed
from bridge.testing import FakeHistory, FakeInstance, FakeSource, SimDisk
from bridge.testing.fake_kafka import FakeGroup
from bridge.testing.timer_world import TIMERS
from bridge.tests.simulation.option_generator import with_engine
from kafka_timer.headers import CONTROL
from kafka_timer.origin import TimerPartition
from schemas.journal import JournalRecord
from schemas.profiles import PROFILES
from schemas.progress import Progress
from timer.disk import Syncing
from timer.format.checkpoint import BODIES, CLOSED, NAME, UNITS
from timer.wheel.shutdown_snapshot import RESUME
from timer.wheel.store import WheelStore

# -- another tick, another engine


def test_another_engine_is_refused_if_only_the_local_store_still_has_the_timers() -> None:
    world = World(with_engine(SMALL, "rocksdb"))
    world.send("far", 3000)
    world.bridge.run(1000)
    world.bridge.stop()
    world.forget()
    world.start(SMALL)
    with pytest.raises(SettingsError, match=r"engine was rocksdb, is wheel.*start with engine rocksdb"):
        world.bridge.run(100)
    world.start(with_engine(SMALL, "rocksdb"))
    world.bridge.run(3000)
    assert world.delivered() == ["far"]


# -- reads that miss records


@TROUBLE
def test_requests_that_the_client_leaves_out_are_read_again(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    """It leaves out a cancel of a timer that was read before, and a timer."""
    world = World()
    world.send("cancelled", 700, id_="one")
    world.bridge.run(100)
    world.bridge.stop()
    world.cancel("one")
    for number in range(3):
        world.send(str(number), 600)
    world.bridge.start()
    world.bridge.source.leaves_out = 2
    world.bridge.run(100)
    assert f"{PARTITION}: the Kafka client left out 2 requests at its start: reading them again" in caplog.messages
    trouble(world)
    world.bridge.run(2000)
    assert world.delivered() == ["0", "1", "2"]


@TROUBLE
def test_a_partition_that_returns_nothing_is_read_again(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    """No timer leaves before the cancel is read, and the second read needs no new request."""
    world = World()
    world.send("cancelled", 700, id_="one")
    world.send("not cancelled", 700)
    world.bridge.run(100)
    world.bridge.stop()
    world.cancel("one")
    world.send("new", 600)
    world.bridge.start()
    world.bridge.source.leaves_out = 2
    world.bridge.turn()
    world.bridge.source.leaves_out = 0
    world.bridge.run(4000)
    assert world.delivered() == []
    trouble(world)
    world.bridge.run(6000)
    assert sorted(world.delivered()) == ["new", "not cancelled"]
    told = f"{PARTITION}: the Kafka client returns nothing from offset 2 on, though there is more: reading again"
    assert (told in caplog.messages) == (trouble is go_on)


def test_intake_pauses_for_too_many_timers_out_of_order_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.bridge.run(10)
    with monkeypatch.context() as patched:
        patched.setattr("bridge.partition.partition._MOST_HELD", 0)
        world.send(delay_ms=300)
        world.bridge.run(100)
    assert world.bridge.status.pauses.counted() == {PARTITION: "held"}
    assert (
        f"{PARTITION}: intake pauses: 0 timers are held: it goes on when some have left or are rolled"
        in caplog.messages
    )
    world.bridge.run(500)
    assert world.delivered() == ["m"]
    assert world.bridge.status.pauses.counted() == {}


# -- a disk that takes nothing


def test_case_27_each_partition_whose_disk_fails_is_named_and_delivers(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is named each time. It delays requests, and a failed sync delays nothing."""
    kafka, partitions, instance = two_partitions()

    def named(fault: str) -> list[int]:
        return [sum(line.startswith(f"{partition}: {fault}") for line in caplog.messages) for partition in partitions]

    for partition in partitions:
        send(kafka, partition, delay_ms=300)
        instance.disks[partition].fail_sync()
    instance.run(500)
    assert (named("no checkpoint: [Errno 5]"), values(kafka)) == ([1, 1], ["m", "m"])
    for _ in range(2):
        for partition in partitions:
            instance.disks[partition].free = 1
            send(kafka, partition, delay_ms=0)
        instance.run(500)
        for partition in partitions:
            instance.disks[partition].free = 1 << 40
        instance.run(500)
    assert named("intake pauses: 1 bytes are free, min_free_bytes is") == [2, 2]
    assert values(kafka) == ["m"] * 6


def test_case_27_a_disk_full_at_a_start_is_logged_with_the_remedy_and_retried_every_5_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    real, tried_ms = world.bridge.disk_for, list[int]()

    def tried(partition: TimerPartition) -> SimDisk:
        tried_ms.append(world.now_ms)
        return real(partition)

    world.send("waits", 30_300)
    world.bridge.run(100)
    world.bridge.stop()
    world.bridge.lose_disks()
    monkeypatch.setattr(world.bridge, "disk_for", tried)
    world.bridge.start()
    assert not world.bridge.bridge.ready, "no partition is opened yet"
    disk = real(PARTITION)
    disk.fail_append(0)
    world.bridge.run(16_000)
    assert len(tried_ms) == 4
    assert all(5000 <= later - sooner < 5100 for sooner, later in pairwise(tried_ms))
    (told,) = [line for line in caplog.messages if "cannot be made ready" in line]
    assert "free room on the disk of data_dir" in told
    assert not world.bridge.bridge.ready
    world.bridge.clock.error_ms = -10_000
    world.bridge.run(100)
    assert len(tried_ms) == 5, "at once after the clock was set back"
    disk.mend()
    world.bridge.clock.error_ms = 0
    world.bridge.run(20_000)
    assert world.delivered() == ["waits"]
    world.send("waits too", 5000)
    world.bridge.run(100)
    caplog.clear()
    del world.bridge.disks[PARTITION]
    real(PARTITION).fail_append(0)
    world.bridge.leave_the_group()
    world.bridge.run(1000)
    assert "cannot be made ready" in caplog.text, "logged at once: the earlier fault was over"


# -- lost progress


def reset_by_hand(world: World) -> None:
    world.kafka.commit_offset("timers", PARTITION, 1)


def expired(world: World) -> None:
    world.kafka.expire_offset("timers", PARTITION)


def expired_after_the_journal(world: World) -> None:
    expired(world)
    world.forget("timer.journal")


@pytest.mark.parametrize("loses_disk", [False, True])
@pytest.mark.parametrize("lost", [reset_by_hand, expired, expired_after_the_journal])
@pytest.mark.parametrize(("word", "again"), [("earliest", ["a", "b", "c"]), ("time", ["b", "c"]), ("latest", [])])
def test_case_37_after_lost_progress_the_bridge_begins_where_adopt_progress_says(
    word: str, again: list[str], lost: Callable[[World], None], caplog: pytest.LogCaptureFixture, *, loses_disk: bool
) -> None:
    world = World()
    world.send("a", 0)
    world.bridge.run(1000)
    between_ms = world.now_ms
    world.bridge.run(1000)
    world.send("b", 0)
    world.send("c", 900)
    world.bridge.run(100)
    assert world.delivered() == ["a", "b"]
    world.bridge.stop()
    lost(world)
    if loses_disk:
        world.bridge.lose_disks()
    world.bridge.start()
    with pytest.raises(ProgressLostError, match=r"progress is lost.*latest \(.* lost, unless `timer-bridge export`"):
        world.bridge.turn()
    world.start(replace(world.options, adopt_progress=str(between_ms) if word == "time" else word))
    world.bridge.run(100)
    assert "by the operator's word" in caplog.text
    world.start(world.options)
    world.send("new", 100)
    world.bridge.run(1000)
    assert sorted(world.delivered()) == sorted(["a", "b", "new", *again])


def test_without_requests_no_progress_is_lost_when_the_journal_has_expired() -> None:
    world = World()
    world.bridge.run(1000)
    world.bridge.stop()
    expired_after_the_journal(world)
    world.bridge.start()
    world.bridge.run(100)
    world.send("a", 0)
    world.bridge.run(100)
    assert world.delivered() == ["a"]


# -- another owner meanwhile


@pytest.mark.parametrize("where", ["history.journal", "history.progress", "history.journal_bounds"])
def test_a_first_opening_that_another_owner_overtakes_is_not_lost_progress(where: str) -> None:
    """The first owner pauses in a read, and its successor commits the first transactions of the partition."""
    kafka = kafka_with()
    group, options = FakeGroup("timers", [PARTITION]), replace(SMALL, receipts="none")
    successor: list[FakeInstance] = []

    def meanwhile(at: str) -> None:
        if at == where and not successor:
            first.leave_the_group()
            successor.append(FakeInstance(kafka, group, options, name="second"))
            successor[0].run(1000)

    first = FakeInstance(kafka, group, options, name="first", meanwhile=meanwhile)
    send(kafka, PARTITION, "a", 5)
    first.run(100)
    successor[0].run(100)
    first.run(100)
    assert values(kafka) == ["a"]


def test_a_store_is_closed_if_the_last_read_of_its_opening_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    _, (one, _), instance = two_partitions()
    history: Any = instance.history
    progress, answers = history.progress, [True, False]
    closed = noted(monkeypatch, WheelStore, "close")

    def answer(partition: TimerPartition) -> object:
        if not answers.pop(0):
            raise PartitionUnreadableError(f"{partition}: no answer in time")
        return progress(partition)

    monkeypatch.setattr(history, "progress", answer)
    with pytest.raises(PartitionUnreadableError):
        recover(one, SimDisk(), history, SMALL)
    assert (len(closed), answers) == (1, [])


@pytest.mark.parametrize("where", ["history.progress", "history.journal_bounds"])
def test_a_checkpoint_includes_all_decisions_up_to_its_journal_offset(where: str) -> None:
    """The owner pauses in a checkpoint while its successor rolls. The checkpoint must not include that record."""
    kafka = kafka_with()
    group, options = FakeGroup("timers", [PARTITION]), replace(SMALL, receipts="none")
    successor: list[FakeInstance] = []
    armed: list[str] = []

    def meanwhile(at: str) -> None:
        if at in armed:
            armed.clear()
            first.leave_the_group()
            kafka.timeline.advance(WINDOW_MS)
            successor.append(FakeInstance(kafka, group, options, name="second"))
            while len(kafka.read(TIMERS)) < 2:
                successor[0].turn()
            successor[0].kill()

    first = FakeInstance(kafka, group, options, name="first", meanwhile=meanwhile)
    send(kafka, PARTITION, "a", 1500)
    first.run(90)
    first.source.lag = 3
    armed.append(where)
    first.run(100)
    assert successor, "no checkpoint"
    first.run(5000)
    assert values(kafka) == ["a"]
    assert kafka.read("timer.rejected") == []


@pytest.mark.parametrize("step", range(18))
def test_a_prepared_store_includes_all_decisions_up_to_its_journal_offset(step: int) -> None:
    """A preparation reads progress and journal. At one of these calls the owner rolls a timer."""
    world = World(replace(SMALL, receipts="none"))
    world.send("a", 1500)
    world.bridge.run(90)
    steps: list[str] = []

    def meanwhile(at: str) -> None:
        steps.append(at)
        if len(steps) == step + 1:
            world.kafka.timeline.advance(WINDOW_MS)
            while len(world.kafka.read(TIMERS)) < 2:
                world.bridge.turn()

    disk = SimDisk()
    with suppress(PartitionUnreadableError):
        prepare_store(
            PARTITION, disk, FakeHistory(world.kafka, world.group, "timer.journal", meanwhile=meanwhile), world.options
        )
    assert len(steps) > step, "the preparation ended before this step"
    history = FakeHistory(world.kafka, world.group, "timer.journal")
    store, flights, _ = recover(PARTITION, disk, history, world.options)
    assert (store.pending, [flight.origin_offset for flight in flights.all()]) == (0, [0])


def test_a_store_is_not_taken_for_damaged_if_another_owner_commits_meanwhile() -> None:
    """The journal is then newer than the progress, and a store may fit none of both."""
    world, disk = World(replace(SMALL, receipts="none")), SimDisk()
    world.send("a", 1500)
    world.bridge.run(90)
    prepare_store(PARTITION, disk, FakeHistory(world.kafka, world.group, "timer.journal"), world.options)
    disk.remove(f"body/{disk.names('body')[0]}")

    def meanwhile(at: str) -> None:
        if at == "history.journal":  # after the progress was read
            world.bridge.run(2 * WINDOW_MS)

    history = FakeHistory(world.kafka, world.group, "timer.journal", meanwhile=meanwhile)
    with pytest.raises(PartitionUnreadableError):
        prepare_store(PARTITION, disk, history, world.options)
    assert disk.contents()["checkpoint"] != b""


def test_a_member_removed_from_the_group_logs_its_partitions(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.send(delay_ms=300)
    world.bridge.run(100)
    world.send(delay_ms=200)
    world.bridge.turn()
    before = world.bridge.disks[PARTITION].contents().get("checkpoint")
    world.bridge.leave_the_group()
    world.bridge.turn()
    assert f"{PARTITION}: the group has removed us: another member may own it by now" in caplog.messages
    assert world.bridge.disks[PARTITION].contents().get("checkpoint") == before, "the partition may have another owner"
    world.bridge.run(500)
    assert world.delivered() == ["m", "m"]


def test_a_partition_given_to_another_instance_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    kafka = kafka_with(2)
    group = FakeGroup("timers", [TimerPartition(TIMERS, number) for number in range(2)])
    with caplog.at_level(logging.INFO):
        one = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="one")
        one.run(100)
        for partition in group.owner:
            one.status.pauses.pause(partition, "disk")
        two = FakeInstance(kafka, group, replace(SMALL, receipts="none"), name="two")
        for _ in range(3):
            one.run(0)
            two.run(0)
    (given,) = two.bridge.partitions
    assert f"{given}: given up" in caplog.messages
    assert one.status.pauses.by_partition.keys() == group.owner.keys() - {given}


# -- stops and checkpoints


def test_a_stop_that_cannot_repeat_a_failed_sync_is_logged_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The data of the failed sync cannot be read for the second attempt."""
    world = World()
    world.send(delay_ms=3000)
    world.bridge.run(10)
    disk = world.bridge.disks[PARTITION]
    disk.fail_sync()
    world.bridge.run(SMALL.store.checkpoint_interval_ms + 10)
    assert any("no checkpoint: [Errno 5]" in line for line in caplog.messages)
    world.send(delay_ms=3000)
    world.bridge.run(10)
    disk.fail_read("timer")
    world.bridge.stop()
    (told,) = (line for line in caplog.messages if "at the end" in line)
    assert told.startswith(f"{PARTITION}: no checkpoint at the end (")
    assert told.endswith("; the next start reads more")
    assert "cannot be read" in told
    disk.mend()
    world.bridge.start()
    world.bridge.run(4000)
    assert world.delivered() == ["m", "m"]


def test_a_clean_stop_waits_for_the_running_checkpoint_and_makes_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    disk = world.bridge.disk_for(PARTITION)
    monkeypatch.setattr(disk, "still_busy", lambda: True)  # a write is durable only after a wait
    for value in ("a", "b"):
        world.send(value, 5000)
        world.bridge.run(300)
    world.bridge.stop()
    kept = disk.contents()
    assert kept["closed"] == kept["checkpoint"]
    assert b'"pending":2' in kept["checkpoint"]


def test_a_clean_stop_amid_deliveries_commits_stored_requests_and_makes_the_last_checkpoint() -> None:
    """Deliveries in order need no journal record, so the requests would wait for commit_interval."""
    world = World(replace(SMALL, receipts="none", commit_interval_ms=200))
    world.bridge.run(0)
    for _ in range(45):
        world.send("m", 300)
        world.bridge.run(10)
    progress = world.kafka.stable_offset("timers", PARTITION)
    assert progress is not None
    assert progress[0] < 45
    world.bridge.stop()
    kept = world.bridge.disk_for(PARTITION).contents()
    assert kept["closed"] == kept["checkpoint"]


def test_partitions_commit_their_requests_after_the_clock_was_set_back() -> None:
    kafka, partitions, instance = two_partitions()
    for partition in partitions:
        send(kafka, partition, delay_ms=900_000)
    instance.turn()
    instance.clock.error_ms = -3_600_000
    instance.run(50)
    progress = [kafka.stable_offset("timers", partition) for partition in partitions]
    assert [found is not None and found[0] for found in progress] == [1, 1]


def test_damage_found_by_a_compaction_rebuilds_its_partition_alone(caplog: pytest.LogCaptureFixture) -> None:
    """20 timers leave. The last one of their file is to be compacted, and the file's last byte is missing."""
    kafka, partitions, instance = two_partitions(replace(SMALL.store, compact_below=0.9, compact_ahead_ms=0))
    for partition in partitions:
        for _ in range(20):
            send(kafka, partition, 100 * "soon", 300)
        send(kafka, partition, 100 * "late", 900)
    instance.run(10)
    for partition in partitions:
        send(kafka, partition, 100 * "next", 600)
    instance.run(289)
    disk = instance.disks[partitions[1]]
    full, _ = sorted(disk.names("body"))
    file = disk.open(f"body/{full}")
    file.truncate(file.size() - 1)
    instance.run(200)
    (line,) = (each for each in caplog.messages if "damaged" in each)
    assert line.startswith(f"{partitions[1]}: the local store is damaged (body at ")
    assert len(kafka.read("orders")) == 40
    instance.run(500)
    assert len(kafka.read("orders")) == 44


def test_a_life_without_faults_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for end in (world.bridge.stop, world.bridge.kill, world.bridge.lose_disks):
        world.send(delay_ms=300)
        world.bridge.run(200)
        end()
        world.bridge.start()
        world.bridge.run(200)
    assert world.delivered() == ["m"] * 3
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_stop_ends_the_bridge_while_all_transactions_are_aborted() -> None:
    tries: list[str] = []

    def tell_to_stop(step: str) -> None:
        tries.append(step)
        if len(tries) == 50 and world.bridge.is_running:
            world.bridge.bridge.request_stop()

    world = World(rng=Random(1), meanwhile=tell_to_stop)
    world.send(delay_ms=100)
    world.bridge.set_faults(1.0)
    while len(tries) < 50:
        world.bridge.turn()
    world.bridge.stop()
    assert world.delivered() == []
    world.bridge.set_faults(0.0)
    world.bridge.start()
    world.bridge.run(500)
    assert world.delivered() == ["m"]


def test_progress_beyond_an_end_offset_that_no_broker_confirms_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader may show a lower end for a moment. The partition is opened when the end is known."""
    world = World()
    world.send("m", 20_000)
    world.bridge.run(300)
    world.bridge.stop()
    monkeypatch.setattr(FakeHistory, "bounds", lambda *_: (0, 0))
    monkeypatch.setattr(FakeHistory, "stable_and_end_offsets", lambda *_: {})
    world.bridge.start()
    world.bridge.run(6000)
    monkeypatch.undo()
    world.bridge.run(20_000)
    assert world.delivered() == ["m"]


# -- retention and elections


def test_case_28_a_start_that_reads_again_does_not_seek_below_the_first_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek to a deleted offset would end the bridge."""
    rewinds = noted(monkeypatch, FakeSource, "rewind")
    world = World()
    world.send("before", 100)
    world.bridge.run(300)
    world.bridge.stop()
    for number in range(5):
        world.send(str(number), 600)
    first = world.kafka.partition(PARTITION).end - 3
    world.kafka.partition(PARTITION).delete_before(first)
    world.bridge.start()
    world.bridge.source.leaves_out = 3
    world.bridge.turn()
    world.bridge.run(6000)
    assert [offset for _, _, offset in rewinds] == [first]
    assert world.delivered() == ["before", "2", "3", "4"]


def fail_reads(world: World, *, is_running: bool) -> None:
    """Let all reads of bodies fail: while the bridge runs, or from its next start on."""
    if not is_running:
        world.bridge.stop()
    world.bridge.disks[PARTITION].fail_read(BODIES)
    if not is_running:
        world.bridge.start()


IS_RUNNING = pytest.mark.parametrize("is_running", [True, False])
PREPARE_FROM = pytest.mark.parametrize("prepare_from", [1, 1_000_000])


@IS_RUNNING
@PREPARE_FROM
def test_case_28_timers_on_this_disk_alone_survive_reads_that_fail_for_a_while(
    prepare_from: int, caplog: pytest.LogCaptureFixture, *, is_running: bool
) -> None:
    world = World(replace(SMALL, prepare_from=prepare_from))
    keep_alone(world, "old")
    fail_reads(world, is_running=is_running)
    world.bridge.run(40_000)
    assert world.delivered() == []
    assert f"{PARTITION}: its local store cannot be read (body/" in caplog.text
    world.bridge.disks[PARTITION].mend()
    world.bridge.run(6000)
    assert sorted(world.delivered()) == [f"old {number}" for number in range(5)]
    assert "damaged" not in caplog.text
    assert "lost" not in caplog.text


@IS_RUNNING
@PREPARE_FROM
def test_case_28_timers_on_this_disk_alone_are_given_up_after_a_minute_without_a_read(
    prepare_from: int, caplog: pytest.LogCaptureFixture, *, is_running: bool
) -> None:
    """Otherwise the partition would wait for ever. Earlier faults that ended do not count."""
    world = World(replace(SMALL, prepare_from=prepare_from))
    for trouble in range(3):
        keep_alone(world, f"old {trouble}")
        world.bridge.disks[PARTITION].fail_read(BODIES)
        world.bridge.run(10_000)
        world.bridge.disks[PARTITION].mend()
        world.bridge.run(30_000)
    assert len(world.delivered()) == 15
    assert "damaged" not in caplog.text
    keep_alone(world, "lost")
    fail_reads(world, is_running=is_running)
    world.bridge.run(50_000)
    assert "damaged" not in caplog.text
    world.send("new", 100)
    world.bridge.run(20_000)
    assert f"{PARTITION}: the local store is damaged (body/" in caplog.text
    assert "those of them that were pending are lost" in caplog.text
    world.bridge.run(1000)
    assert world.delivered()[15:] == ["new"]


def keep_alone(world: World, name: str) -> None:
    """Send five timers, store them, and delete them from Kafka."""
    for number in range(5):
        world.send(f"{name} {number}", 900)
    world.bridge.run(300)
    world.forget()


def test_case_28_lost_requests_are_logged_with_their_count(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.send("before", 0)
    for number in range(5):
        world.send(f"old {number}", 900)
    world.bridge.run(300)
    world.bridge.kill()
    world.bridge.disks = {}
    world.send("never read", 100)
    world.forget()
    world.bridge.start()
    world.send("new", 100)
    world.bridge.run(2000)
    assert world.delivered() == ["before", "new"]
    assert "taken up to 5 requests that are not in the local store, offsets 1 to 5" in caplog.text
    assert (
        f"{PARTITION}: retention has taken 1 offsets that were never read, from 6 on: requests among them are lost;"
        " raise retention.ms to 3 roll windows"
    ) in caplog.messages


@pytest.mark.parametrize("word", [None, "earliest"])
@pytest.mark.parametrize("loses_disk", [False, True])
def test_each_start_after_an_unclean_election_is_refused_with_the_remedy(word: str | None, *, loses_disk: bool) -> None:
    """Otherwise it would wait for deleted requests, and treat new requests at old offsets as settled."""
    world = World()
    for number in range(5):
        world.send(f"old {number}", 900)
    world.bridge.run(300)
    world.bridge.stop()
    world.kafka.partition(PARTITION).cut(2)
    if loses_disk:
        world.bridge.lose_disks()
    world.bridge.options = replace(world.options, adopt_progress=word)
    told = (
        r"timer\.requests/0 has lost its end below offset 5, .* ends at 2 now.*unclean.*stop all instances.*"
        r"--delete-offsets --group GROUP --topic timer\.requests.*--adopt-progress"
    )
    for _ in range(2):
        world.bridge.start()
        with pytest.raises(ProgressLostError, match=told):
            world.bridge.turn()
    world.bridge.kill()
    expired(world)
    world.start(replace(world.options, adopt_progress="latest"))
    world.bridge.run(100)
    world.send("new", 100)
    world.bridge.run(2000)
    assert world.delivered() == ["new"]


@pytest.mark.parametrize("is_end", [False, True])
def test_progress_beyond_an_open_transaction_is_not_lost(*, is_end: bool) -> None:
    """--adopt-progress with a time may name a request in an open transaction, or the end of the partition."""
    world = World()
    world.send("a", 0)
    world.bridge.run(100)
    world.bridge.stop()
    expired(world)
    hung = hang(world)
    world.kafka.timeline.advance(1)
    world.bridge.options = replace(world.options, adopt_progress=str(world.now_ms))
    if not is_end:
        world.send("b", 500)
    world.bridge.start()
    world.bridge.run(100)
    world.start(world.options)
    world.bridge.run(100)
    if is_end:
        world.send("b", 500)
    world.kafka.commit(hung)
    world.bridge.run(1000)
    assert world.delivered() == ["a", "b"]


# -- requests that no topic takes


@TROUBLE
def test_case_25_records_too_large_for_the_rejected_topic_are_named_there_and_delay_no_other(trouble: Trouble) -> None:
    """A compressed record may be larger than any topic takes uncompressed."""
    world = World()
    world.kafka.create("timer.rejected", max_bytes=1000)
    world.kafka.create("small", max_bytes=100)
    to_small = schedule(300, "small")
    world.kafka.produce(TIMERS, b"x" * 5000, key=b"k", headers=[("timer-topic", b"orders")])
    world.kafka.produce(TIMERS, b"y" * 5000, key=b"k", headers=[*to_small, ("trace", b"1")])
    world.kafka.produce(TIMERS, b"z" * 200, headers=to_small)
    world.send("on time", 300)
    world.bridge.run(100)
    trouble(world)
    world.bridge.run(400)
    assert world.delivered() == ["on time"]
    assert sorted(map(repr, world.rejected())) == sorted(
        map(repr, [(b"missing-time", None), (b"too-large", None), (b"too-large", b"z" * 200)])
    )
    bare = [dict(entry.headers) for entry in world.kafka.read("timer.rejected") if entry.value is None]
    assert [headers["timer-origin"] for headers in bare] == [b"timer.requests/0/0", b"timer.requests/0/1"]
    assert all(b"left at timer-origin" in (headers["timer-error-detail"] or b"") for headers in bare)
    assert sorted(world.receipts("accepted")) == [("delivered", 3), ("rejected", 0), ("rejected", 1), ("rejected", 2)]


def test_case_25_a_record_too_large_for_the_rejected_topic_beside_a_delivery_and_a_copy() -> None:
    world = World()
    world.kafka.create("timer.rejected", max_bytes=1000)
    world.send("moved", 900, id_="a")
    world.bridge.run(100)
    world.send("now", 0)
    world.move("a", 200)
    for number in range(2):
        world.kafka.produce(TIMERS, b"%d" % number * 5000, headers=[])
    world.bridge.run(300)
    assert world.delivered() == ["now", "moved"]
    assert world.rejected() == [(b"missing-time", None)] * 2


def test_the_reason_of_a_rejected_request_is_short_whatever_its_headers_are() -> None:
    """The rejected topic takes only little more than the request itself."""
    world = World(replace(SMALL, rules=RULES.model_copy(update={"profiles": ("native", *PROFILES)})))
    names = sorted(CONTROL.union(*(profile.control for profile in PROFILES.values())))
    for name in names:
        world.kafka.produce(TIMERS, b"v", headers=[(name, b"\xff" * 50_000)])
    world.bridge.run(100)
    rejected = world.kafka.read("timer.rejected")
    assert [each.headers[0][0] for each in rejected] == names
    for each in rejected:
        assert sum(len(header) + len(content or b"") for header, content in each.headers[1:]) < 1000, each.headers[0][0]


# -- unknown outcomes


def unknown(_under_way: object) -> Committed | Aborted:
    raise OutcomeUnknownError("a commit broke off")


def test_after_an_unknown_outcome_the_bridge_leaves_the_group_and_the_next_life_has_all_partitions() -> None:
    """Otherwise a member that does not poll keeps its partitions, and their stores stay open."""
    world = World()
    for number in range(4):
        world.send(str(number), 300 + 20 * number)
    world.bridge.run(10)
    sink, bridge = world.bridge.sink, world.bridge.bridge
    sink.end, sink.slow_turns = unknown, 1  # type: ignore[assignment, method-assign]
    with pytest.raises(OutcomeUnknownError):
        world.bridge.run(1000)
    bridge.stop()
    assert (world.group.members, bridge.pending) == ([], {})
    world.bridge.start()
    world.bridge.run(1000)
    assert world.delivered() == ["0", "1", "2", "3"]


def test_an_unknown_outcome_during_a_stop_is_raised_after_all_is_closed() -> None:
    world = World()
    world.send("a", 300)
    world.bridge.run(299)
    sink, bridge = world.bridge.sink, world.bridge.bridge
    sink.end, sink.slow_turns = unknown, 1  # type: ignore[assignment, method-assign]
    world.kafka.timeline.wait(1, lambda: False)
    bridge.turn()
    with pytest.raises(OutcomeUnknownError):
        bridge.stop()
    assert (world.group.members, bridge.pending) == ([], {})


def test_a_stop_without_a_broker_closes_all_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, partitions, instance = two_partitions()
    for partition in partitions:
        send(kafka, partition)
    instance.run(50)
    bridge = instance.bridge

    def gone(partition: TimerPartition) -> tuple[int, int]:
        raise BrokerUnavailableError(f"{partition}: no broker answers")

    with monkeypatch.context() as patched:
        patched.setattr(FakeHistory, "journal_bounds", lambda _, partition: gone(partition))
        bridge.stop()
    for partition in partitions:
        assert f"{partition}: no checkpoint at the end ({partition}: no broker answers)" in caplog.text
    assert bridge.pending == {}
    instance.start()
    instance.run(1000)
    assert len(kafka.read("orders")) == 2


# -- requests too long for a frame or a copy


@TROUBLE
def test_a_header_name_too_long_for_a_frame_is_refused_and_delays_no_other(trouble: Trouble) -> None:
    """Kafka takes such a header. It must not end the bridge and then the next owner of the partition."""
    world = World()
    world.send("long", 100, id_="a", extra=[("x" * 70_000, b"v")])
    world.send("longest that goes", 100, extra=[("x" * 65_535, b"v")])
    world.send("next", 100)
    world.bridge.run(50)
    trouble(world)
    world.bridge.run(200)
    assert world.delivered() == ["longest that goes", "next"]
    assert world.rejected() == [(b"bad-header", b"long")]


def test_a_forged_copy_with_a_too_long_header_name_is_refused() -> None:
    world = World()
    asked = world.send("m", 3 * WINDOW_MS)
    world.bridge.run(10)
    hung = hang(world)
    origin = ("timer-origin", f"{PARTITION}/{asked.offset}".encode())
    world.send_due("m", world.now_ms + 3 * WINDOW_MS, origin, ("timer-rolls", b"1"), ("x" * 70_000, b""))
    world.bridge.run(WINDOW_MS)  # the copy is written after the forgery, which cannot be read yet
    world.kafka.abort(hung)
    world.bridge.run(3 * WINDOW_MS)
    assert world.delivered() == ["m"]
    assert [code for code, _ in world.rejected()] == [b"not-ours"]


@TROUBLE
def test_the_size_of_a_request_is_counted_in_bytes_not_in_characters(trouble: Trouble) -> None:
    """Otherwise its copy, which no topic takes, would end each bridge that rolls it."""
    world = World(replace(SMALL, max_message_bytes=10_000))
    long = [("\u20ac" * 3_200, b"")]
    world.send("large", 3 * WINDOW_MS, extra=long)
    world.send("now", 300, extra=long)
    world.send("next", 300)
    world.bridge.run(50)
    trouble(world)
    world.bridge.run(4 * WINDOW_MS)
    assert world.rejected() == [(b"too-large", b"large")]
    assert sorted(world.delivered()) == ["next", "now"]


# -- receipts, lag, size of the journal


def test_a_cancel_is_told_what_it_met() -> None:
    """A repeated one is not found, although the id was delivered before."""
    world = World()
    unknown = world.cancel("nobody")
    world.send("first", 0, id_="a")
    world.bridge.run(100)
    late = world.cancel("a")
    world.bridge.run(100)
    world.send("second", 900, id_="a")
    world.bridge.run(100)
    first, again = world.cancel("a"), world.cancel("a")
    world.bridge.run(100)
    third = world.cancel("a")
    world.bridge.run(1000)
    assert world.receipts("accepted", "delivered") == [
        ("not-found", unknown.offset),
        ("too-late", late.offset),
        ("cancelled", first.offset),
        ("not-found", again.offset),
        ("not-found", third.offset),
    ]


def test_records_that_a_sender_aborted_are_no_lag() -> None:
    """A consumer never returns them, so the lag would stay until another record comes."""
    world = World()
    world.bridge.run(10)
    gone = world.kafka.begin("somebody")
    for _ in range(2_000):
        world.kafka.produce(TIMERS, b"m", headers=[], transaction=gone)
    world.kafka.abort(gone)
    world.bridge.run(100)
    bridge = world.bridge.bridge
    lags = []
    for _ in range(3):
        bridge.monitors.check_open_transactions()
        lags.append(world.bridge.metrics.lags[PARTITION].lag)
    assert lags == [2_001, 0, 0]
    world.send("a", 0)
    world.bridge.run(100)
    bridge.monitors.check_open_transactions()
    assert (world.delivered(), world.bridge.metrics.lags[PARTITION].lag) == (["a"], 0)


def roll_and_die(world: World) -> None:
    """Let a timer roll, and kill the bridge before it reads the copy."""
    world.send("far", 5_000, id_="x")
    while not any(dict(entry.headers).get("timer-rolls") for entry in world.kafka.read(TIMERS)):
        world.bridge.turn()
    world.bridge.kill()


def check_open_transactions(world: World, *, is_loaded: bool = False) -> None:
    for _ in range(3):
        if is_loaded:
            world.cancel("somebody's")
        world.bridge.bridge.monitors.check_open_transactions()
        world.bridge.run(20)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_timer_whose_copy_was_skipped_unread_is_pending_no_more(
    caplog: pytest.LogCaptureFixture, *, is_adopted: bool, is_loaded: bool
) -> None:
    world = World(replace(SMALL, max_pending=1))
    roll_and_die(world)
    if is_adopted:
        world.kafka.expire_offset("timers", PARTITION)
        world.bridge.options = replace(world.options, adopt_progress="latest")
    else:
        world.forget()
    world.bridge.start()
    world.bridge.run(10)
    assert world.pending() == 1
    check_open_transactions(world, is_loaded=is_loaded)
    assert world.pending() == 0
    (warning,) = [each for each in caplog.messages if "timers are lost" in each]
    assert f"{PARTITION}: 1 timers are lost" in warning
    assert f"{PARTITION}/0: send them again" in warning
    world.bridge.options = world.options
    for again in (crash, lose_disk):
        again(world)
        world.bridge.run(10)
        assert world.pending() == 0
    cancel = world.cancel("x")
    world.send("new", 10)
    world.bridge.run(100)
    assert world.receipts("accepted", "delivered")[-1] == ("not-found", cancel.offset)
    assert world.delivered() == ["new"], "the quota is free"


def test_a_copy_that_an_open_transaction_hides_is_not_lost() -> None:
    world = World()
    world.send("far", 5_000)
    world.bridge.run(10)
    hiding = world.kafka.begin("somebody")
    hidden = world.kafka.produce(TIMERS, b"m", headers=[], transaction=hiding)
    world.bridge.run(3_000)
    assert hidden.offset + 1 < world.kafka.partition(PARTITION).end, "the copy is after it"
    lose_disk(world)
    world.bridge.run(10)
    check_open_transactions(world)
    assert world.pending() == 1
    world.kafka.commit(hiding)
    world.bridge.run(10_000)
    assert world.delivered() == ["far"]


def test_a_journal_record_holds_at_most_the_decisions_of_two_turns() -> None:
    """Replaced timers are no output, so only this bound keeps the record within the size that the journal takes."""
    options = replace(SMALL, receipts="none", max_poll_records=5, commit_interval_ms=1_000_000)
    world = World(replace(options, store=replace(SMALL.store, checkpoint_interval_ms=1_000_000)))
    for number in range(200):
        world.send(str(number), 900, id_="a")
    world.bridge.run(100)
    told = [JournalRecord.from_bytes(entry.value or b"") for entry in world.kafka.read("timer.journal")]
    assert 150 < sum(len(each.ended) for each in told) < 200
    assert max(len(each.ended) for each in told) <= 10
    world.bridge.run(1000)
    assert world.delivered() == ["199"]


def test_clock_skew_margin_covers_the_longest_transaction_and_a_minute_of_skew() -> None:
    assert SMALL.clock_skew_margin_ms >= 60_000 + LONGEST_TRANSACTION_MS


# -- a journal or topics that were lost


@pytest.mark.parametrize("lost", ["records", "records and disk", "topic"])
def test_without_the_journal_of_possibly_pending_requests_a_start_is_refused_and_the_store_stays(lost: str) -> None:
    """Otherwise a cancelled timer would be delivered after its receipt `cancelled`.

    The operator can still export the store: it may be the last copy.
    """
    world = World()
    world.send("long", 3 * WINDOW_MS // 2)
    world.send("ended", 900, id_="a")
    world.bridge.run(200)
    world.cancel("a")
    world.bridge.run(20)
    assert world.receipts("accepted") == [("cancelled", 2)]
    world.bridge.kill()
    if lost == "topic":
        world.kafka.partition(TimerPartition("timer.journal", 0)).cut(0)
    else:
        world.forget("timer.journal")
    if lost == "records and disk":
        world.bridge.lose_disks()
    before = {partition: disk.contents() for partition, disk in world.bridge.disks.items()}
    world.bridge.start()
    with pytest.raises(BridgeError, match="0: the journal does not cover what may be pending from offset 0 on"):
        world.bridge.run(1000)
    assert world.delivered() == []
    for partition, contents in before.items():
        assert world.bridge.disks[partition].contents() == contents


def test_a_cancel_holds_after_a_rebuild_although_a_brokers_clock_was_far_ahead() -> None:
    """The clock is ahead by more than clock_skew_margin_ms, so the whole journal is read."""
    world = World()
    log = world.kafka.partition(PARTITION)
    log.skew_ms = 2 * SMALL.clock_skew_margin_ms
    for id_ in ("a", "b"):
        world.send_due(id_, world.now_ms + 900, ("timer-id", id_.encode()))
    world.cancel("a")
    world.bridge.run(100)
    log.skew_ms = 0
    world.bridge.lose_disks()
    world.bridge.start()
    world.bridge.run(2 * SMALL.clock_skew_margin_ms + 1000)
    assert world.delivered() == ["b"]


@pytest.mark.parametrize(
    ("era_ms", "commits", "logged"),
    [
        (7, 6, "the local store does not match Kafka's progress"),
        (7, 1, "the local store does not match Kafka's progress"),
        (0, 1, "of another journal"),
    ],
)
def test_a_store_of_deleted_topics_is_not_used_for_recreated_ones(
    era_ms: int, commits: int, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The store of a former owner has offsets that fit the new topics too.

    Older bridges write no progress generation. Then a journal shorter than before shows it.
    """
    world = World()
    for number in range(3):
        world.send(f"old {number}", 900)
        world.bridge.run(30)
    world.bridge.stop()
    old_disk = world.bridge.disks[PARTITION]
    for name in (TIMERS, "timer.journal"):
        world.kafka.partition(TimerPartition(name, 0)).cut(0)
    expired(world)
    world.bridge.lose_disks()
    world.start(replace(world.options, era_ms=era_ms))
    for number in range(6):
        world.send(f"new {number}", 900)
        if commits > 1:
            world.bridge.run(30)
    world.bridge.run(100)
    world.bridge.stop()
    world.bridge.disks[PARTITION] = old_disk
    world.start(replace(world.options, era_ms=era_ms and era_ms + 1))
    world.bridge.run(2000)
    assert sorted(world.delivered()) == [f"new {number}" for number in range(6)]
    assert logged in caplog.text


# -- damage on disk


@pytest.mark.parametrize("is_full", [False, True])
def test_unreadable_sectors_rebuild_their_partition_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_full: bool
) -> None:
    """Also if the disk first refuses to write that the store is damaged."""

    def refuses(name: str, data: bytes) -> Syncing:
        raise OSError(errno.EROFS, f"{name}: {len(data)} bytes refused")

    kafka, (broken, other), instance = two_partitions()
    for partition in (broken, other):
        for number in range(3):
            send(kafka, partition, str(partition), 500 + number)
    instance.run(50)
    instance.disks[broken].fail_read(BODIES)
    with monkeypatch.context() as patched:
        if is_full:
            patched.setattr(instance.disks[broken], "start_replace", refuses)
        instance.run(1000)
    assert f"{broken}: the local store is damaged (body/" in caplog.text
    delivered = kafka.read("orders")
    assert Counter(entry.value for entry in delivered)[str(broken).encode()] == (0 if is_full else 3)
    of_other = [dict(entry.headers) for entry in delivered if entry.value == str(other).encode()]
    assert len(of_other) == 3
    assert all(headers["timer-released-ms"] == headers["timer-deliver-ms"] for headers in of_other)
    instance.run(10_000)
    assert Counter(e.value for e in kafka.read("orders")) == {
        str(partition).encode(): 3 for partition in (broken, other)
    }


@pytest.mark.parametrize("name", [NAME, CLOSED, RESUME])
def test_an_unreadable_small_file_costs_at_most_a_rebuild(name: str) -> None:
    """The checkpoint may be the last copy, so it is retried for a minute. The other files only shorten a start."""
    world = World()
    world.send("m", 900)
    world.bridge.run(300)
    world.bridge.stop()
    world.bridge.disks[PARTITION].fail_read(name)
    world.bridge.start()
    world.bridge.run(1000)
    assert world.delivered() == ([] if name == NAME else ["m"])
    world.bridge.run(70_000)
    assert world.delivered() == ["m"]


def test_a_cancel_ends_a_timer_whose_id_was_damaged_on_disk(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.send("a", 900, id_="one")
    world.send("b", 900)
    world.bridge.run(100)
    disk = world.bridge.disks[PARTITION]
    (name,) = disk.names(BODIES)
    file = disk.open(f"{BODIES}/{name}")
    file.overwrite(0, file.read(0, file.size()).replace(b"one", b"ono"))
    world.cancel("one")
    world.bridge.run(2000)
    assert f"{PARTITION}: the local store is damaged (body log at" in caplog.text
    assert world.delivered() == ["b"]
    assert ("cancelled", 2) in world.receipts()


def test_a_damaged_body_does_not_move_progress_beyond_pending_timers(caplog: pytest.LogCaptureFixture) -> None:
    """One bit of the lowest timer's offset is flipped. A start reads nothing below the lowest pending offset."""
    world = World()
    world.send("a", 300)
    world.send("b", 900)
    world.bridge.run(100)
    disk, bridge = world.bridge.disks[PARTITION], world.bridge.bridge
    store = bridge.partitions[PARTITION].store
    assert isinstance(store, WheelStore)
    position = int(store._units.read_rows(1, 2)[0]["body"][0])
    (name,) = disk.names(BODIES)
    file = disk.open(f"{BODIES}/{name}")
    file.overwrite(position + 17, bytes([file.read(position + 17, 1)[0] ^ 0x40]))
    world.bridge.run(400)
    assert f"{PARTITION}: the local store is damaged (body log at" in caplog.text
    world.bridge.lose_disks()
    world.bridge.start()
    world.bridge.run(1000)
    assert world.delivered() == ["a", "b"]


def test_a_cancel_of_an_unreadable_timer_does_not_stop_intake() -> None:
    world = World()
    world.send("a", 500, id_="a")
    world.bridge.run(50)
    world.bridge.disks[PARTITION].fail_read(BODIES)
    world.cancel("a")
    world.send("b", 100)
    world.bridge.run(1000)
    assert (world.delivered(), world.receipts("accepted", "delivered")) == (["b"], [("cancelled", 1)])


def test_a_stop_removes_a_partition_being_opened_from_status_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status and metrics outlive the stop, and the next life may be given other partitions."""
    _, partitions, instance = two_partitions()
    real = FakeHistory.progress

    def progress(history: FakeHistory, partition: TimerPartition) -> Progress | None:
        if partition == partitions[0]:
            raise TopicGrownError(f"{partition}: its journal has fewer partitions")
        return real(history, partition)

    instance.start()
    bridge = instance.bridge
    with monkeypatch.context() as patched:
        patched.setattr(FakeHistory, "progress", progress)
        with pytest.raises(TopicGrownError):
            instance.run(100)
        assert partitions[0] in instance.status.partitions()
        instance.status.pauses.pause(partitions[0], "disk")
        bridge.stop()
    assert instance.status.partitions() == {}
    assert instance.status.pauses.by_partition == {}


@pytest.mark.thorough
@TROUBLE
def test_files_are_deleted_although_each_timer_is_replaced_before_it_leaves(trouble: Trouble) -> None:
    """The load of a watchdog: no timer is ever delivered, so no delivery shows that a slot is over."""
    world, sizes = World(), []
    for number in range(60):
        for name in range(20):
            world.send(f"{name} {number}", 300, id_=str(name))
        world.bridge.run(200)
        if number == 30:
            trouble(world)
            world.bridge.run(0)
        kept = world.bridge.disk_for(PARTITION).contents()
        sizes.append(sum(len(kept[name]) for name in kept if name.startswith((UNITS, BODIES))))
    assert world.delivered() == []
    assert max(sizes[40:]) < 2 * max(sizes[5:15])
    world.bridge.run(1000)
    assert sorted(world.delivered()) == sorted(f"{name} 59" for name in range(20))
