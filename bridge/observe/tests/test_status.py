"""Liveness and readiness, by the history of a bridge."""

from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import pytest

from bridge.loop.tests.test_histories import LAP_MS, PARTITION, World, two_partitions
from bridge.observe.status import LIVE_WITHIN_S, SPARE_AFTER_S, Status, Verdict
from bridge.testing import FakeInstance
from bridge.testing.timer_world import TIMERS
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from timer.errors import CorruptStoreError
from timer.format.body import HEAD, unpack, unpack_headers
from timer.testing import SimDisk

OTHER = TimerPartition("timer.requests", 1)
WELL = Verdict()


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def status(clock: Clock) -> Status:
    return Status(clock)


def test_it_is_live_as_long_as_turns_end_and_ready_once_it_has_partitions(status: Status, clock: Clock) -> None:
    assert status.ready() == Verdict("no partitions assigned yet")
    for _ in range(5):
        clock.now_s += LIVE_WITHIN_S
        assert status.live() == WELL
        status.turn_ended()
    status.partition_running(PARTITION)
    clock.now_s += LIVE_WITHIN_S + 1
    assert status.live() == status.ready() == Verdict("the loop hangs", "no turn has ended for 61 s")
    status.turn_ended()
    assert status.live() == status.ready() == WELL


def test_while_it_waits_for_a_broker_it_is_live_and_not_ready(status: Status, clock: Clock) -> None:
    status.partition_running(PARTITION)
    for _ in range(100):
        clock.now_s += 3
        status.waiting_for_broker("committing: Connection refused")
        assert status.live() == WELL
        assert status.ready() == Verdict("waiting for the broker", "committing: Connection refused")
    status.broker_wait_ended()
    assert status.ready() == WELL


def test_a_wait_that_is_no_longer_reported_has_ended(status: Status, clock: Clock) -> None:
    status.partition_running(PARTITION)
    status.waiting_for_broker("reading: an open transaction")
    clock.now_s += 6
    assert status.ready() == WELL
    clock.now_s += LIVE_WITHIN_S
    assert status.live().reason == "the loop hangs"
    status.partition_recovering(OTHER)
    assert (status.live(), status.ready()) == (WELL, Verdict("recovering timer.requests/1"))


def test_a_connection_error_counts_only_without_partitions(status: Status, clock: Clock) -> None:
    status.partition_running(PARTITION)
    status.connection_failed("1/1 brokers are down")
    assert status.ready() == WELL
    status.partition_closed(PARTITION)
    assert status.ready() == Verdict("waiting for the broker", "1/1 brokers are down")
    clock.now_s += 6
    assert status.ready() == Verdict("no partitions assigned")


def test_secrets_are_removed_from_errors() -> None:
    status = Status(redact=lambda text: text.replace("s3cr3t", "(hidden)"))
    status.connection_failed("wrong: s3cr3t")
    assert status.ready().detail == "wrong: (hidden)"
    status.waiting_for_broker("logging in: s3cr3t")
    assert status.ready().detail == "logging in: (hidden)"


def test_a_full_disk_pauses_intake_until_there_is_room() -> None:
    world = World()
    assert world.bridge.status.ready() == WELL
    disk = world.bridge.disks[PARTITION]
    room, disk.free = disk.free, 5
    world.send()
    world.bridge.run(0)
    assert world.bridge.status.ready().reason == "intake paused: disk"
    assert "5 bytes are free" in world.bridge.status.ready().detail
    assert world.bridge.status.live() == WELL
    disk.free = room
    world.bridge.run(600)
    assert world.bridge.status.ready() == WELL
    assert world.delivered() == ["m"]


def test_a_full_wheel_pauses_intake_until_the_slot_is_free() -> None:
    """The settings refuse a roll window of more than a lap."""
    usual = World().options
    world = World(replace(usual, rules=usual.rules.model_copy(update={"roll_window_ms": 2 * LAP_MS})))
    world.send("a lap on", LAP_MS + 500)
    world.bridge.run(0)
    world.send("m", 500)
    world.bridge.run(100)
    assert world.bridge.status.ready().reason == "intake paused: wheel"
    assert "timers of another lap" in world.bridge.status.ready().detail
    world.bridge.run(LAP_MS + 500)
    assert world.bridge.status.ready() == WELL
    assert sorted(world.delivered()) == ["a lap on", "m"]


def test_a_member_without_partitions_is_a_spare_and_ready_after_a_while(status: Status, clock: Clock) -> None:
    not_yet = Verdict("no partitions assigned yet")
    clock.now_s += SPARE_AFTER_S + 1
    status.polled(is_member=False)
    assert status.ready() == not_yet
    status.polled(is_member=True)
    clock.now_s += SPARE_AFTER_S - 1
    status.polled(is_member=True)
    assert status.ready() == not_yet
    clock.now_s += 1
    status.turn_ended()
    assert status.ready() == WELL
    status.connection_failed("1/1 brokers are down")
    assert status.ready() == Verdict("waiting for the broker", "1/1 brokers are down")
    clock.now_s += 6
    status.polled(is_member=False)
    assert status.ready() == not_yet, "it was put out of the group"


def test_a_spare_of_a_rolling_upgrade_is_ready_before_and_after_it_had_partitions() -> None:
    world = World()
    spare = FakeInstance(world.kafka, world.group, world.options, name="spare")
    spare.run(20_000)
    assert (spare.status.ready(), spare.status.partitions()) == (WELL, {})
    world.bridge.stop()
    spare.run(100)
    assert spare.status.partitions().keys() == {PARTITION}
    other = world.group.join("another")
    world.group.move(PARTITION, other)
    spare.run(0)
    assert spare.status.ready() == Verdict("no partitions assigned")
    spare.run(20_000)
    assert spare.status.ready() == WELL


def damage_bodies(disk: SimDisk) -> None:
    for name in disk.names("body"):
        file = disk.open(f"body/{name}")
        file.overwrite(0, bytes(file.size()))


def damage_headers(disk: SimDisk) -> None:
    """Damage the headers of the first body in each file, and make its checksum valid."""
    for name in disk.names("body"):
        file = disk.open(f"body/{name}")
        frame = bytearray(file.read(0, HEAD.unpack_from(file.read(0, HEAD.size))[0]))
        size = len(unpack(bytes(frame), 0).headers)
        frame[-size:] = b"\xff" * size
        frame[4:8] = crc32(frame[8:]).to_bytes(4, "big")
        with pytest.raises(CorruptStoreError, match="headers"):
            unpack_headers(unpack(bytes(frame), 0).headers)
        file.overwrite(0, bytes(frame))


@pytest.mark.parametrize(
    ("damage", "told"), [(damage_bodies, "body log at 0: the checksum"), (damage_headers, "body log: invalid headers")]
)
def test_a_store_whose_damage_is_found_while_publishing_is_rebuilt_and_ready(
    damage: Callable[[SimDisk], None], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged headers are found when the records of the partition are made."""
    kafka, partitions, instance = two_partitions()
    headers: Headers = [("timer-topic", b"orders"), ("timer-delay-ms", b"500"), ("tenant", b"a")]
    for number in range(2):
        kafka.produce(TIMERS, b"%d" % number, partition=number, headers=headers)
    instance.run(100)
    damage(instance.disks[partitions[0]])
    instance.run(2000)
    assert sorted(entry.value or b"" for entry in kafka.read("orders")) == [b"0", b"1"]
    assert instance.status.ready() == WELL
    assert f"{partitions[0]}: the local store is damaged ({told}" in caplog.text


@pytest.mark.parametrize("target", ["orders", "nowhere"])
def test_a_store_whose_damage_is_found_at_a_retry_is_rebuilt(target: str, caplog: pytest.LogCaptureFixture) -> None:
    """The headers of a timer without own ones are read when its target does not take it."""
    kafka, partitions, instance = two_partitions()
    for number in range(2):
        headers: Headers = [("timer-topic", target.encode()), ("timer-delay-ms", b"500")]
        kafka.produce(TIMERS, b"%d" % number, partition=number, headers=headers)
    instance.run(100)
    damage_headers(instance.disks[partitions[0]])
    kafka.topics["orders"].unavailable = True
    instance.run(2000)
    kafka.topics["orders"].unavailable = False
    instance.run(120_000)
    found = kafka.read("orders" if target == "orders" else "timer.rejected")
    assert sorted(entry.value or b"" for entry in found) == [b"0", b"1"]
    assert f"{partitions[0]}: the local store is damaged (body log: invalid headers" in caplog.text
