"""Liveness and readiness, by the history of a bridge."""

from dataclasses import replace
from zlib import crc32

import pytest

from bridge.loop.tests.test_histories import LAP_MS, PARTITION, World, two_partitions
from bridge.observe.status import LIVE_WITHIN_S, SPARE_AFTER_S, Status, Verdict
from bridge.testing.timer_world import TIMERS
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from timer.format.body import HEAD, unpack
from timer.testing import SimDisk

OTHER = TimerPartition("timer.requests", 1)
WELL = Verdict()


class TimedStatus(Status):
    """A status with a clock that the test sets."""

    now_s = 1000.0

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s)


@pytest.fixture
def status() -> TimedStatus:
    return TimedStatus()


def test_it_is_live_as_long_as_turns_end_and_ready_once_it_has_partitions(status: TimedStatus) -> None:
    assert status.ready() == Verdict("no partitions assigned yet")
    for _ in range(5):
        status.now_s += LIVE_WITHIN_S
        assert status.live() == WELL
        status.turn_ended()
    status.partition_running(PARTITION)
    status.now_s += LIVE_WITHIN_S + 1
    assert status.live() == status.ready() == Verdict("the loop hangs", "no turn has ended for 61 s")
    status.turn_ended()
    assert status.live() == status.ready() == WELL


def test_while_it_waits_for_a_broker_and_reports_it_it_is_live_and_not_ready(status: TimedStatus) -> None:
    status.partition_running(PARTITION)
    for _ in range(100):
        status.now_s += 3
        status.waiting_for_broker("committing: Connection refused")
        assert status.live() == WELL
        assert status.ready() == Verdict("waiting for the broker", "committing: Connection refused")
    status.broker_wait_ended()
    assert status.ready() == WELL
    status.waiting_for_broker("reading: an open transaction")
    status.now_s += 6
    assert status.ready() == WELL
    status.now_s += LIVE_WITHIN_S
    assert status.live().reason == "the loop hangs"
    status.partition_recovering(OTHER)
    assert (status.live(), status.ready()) == (WELL, Verdict("recovering timer.requests/1"))


def test_a_connection_error_counts_only_without_partitions(status: TimedStatus) -> None:
    status.partition_running(PARTITION)
    status.connection_failed("1/1 brokers are down")
    assert status.ready() == WELL
    status.partition_closed(PARTITION)
    assert status.ready() == Verdict("waiting for the broker", "1/1 brokers are down")
    status.now_s += 6
    assert status.ready() == Verdict("no partitions assigned")


def test_secrets_are_removed_from_errors() -> None:
    status = Status(redact=lambda text: text.replace("s3cr3t", "(hidden)"))
    status.connection_failed("wrong: s3cr3t")
    assert status.ready().detail == "wrong: (hidden)"
    status.waiting_for_broker("logging in: s3cr3t")
    assert status.ready().detail == "logging in: (hidden)"


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


def test_a_member_without_partitions_is_a_spare_and_ready_after_a_while(status: TimedStatus) -> None:
    not_yet = Verdict("no partitions assigned yet")
    status.now_s += SPARE_AFTER_S + 1
    status.polled(is_member=False)
    assert status.ready() == not_yet
    status.polled(is_member=True)
    status.now_s += SPARE_AFTER_S - 1
    status.polled(is_member=True)
    assert status.ready() == not_yet
    status.now_s += 1
    status.turn_ended()
    assert status.ready() == WELL
    status.connection_failed("1/1 brokers are down")
    assert status.ready() == Verdict("waiting for the broker", "1/1 brokers are down")
    status.now_s += 6
    status.polled(is_member=False)
    assert status.ready() == not_yet, "it was put out of the group"


def damage_headers(disk: SimDisk) -> None:
    """Damage the headers of the first body in each file, and make its checksum valid."""
    for name in disk.names("body"):
        file = disk.open(f"body/{name}")
        frame = bytearray(file.read(0, HEAD.unpack_from(file.read(0, HEAD.size))[0]))
        size = len(unpack(bytes(frame), 0).headers)
        frame[-size:] = b"\xff" * size
        frame[4:8] = crc32(frame[8:]).to_bytes(4, "big")
        file.overwrite(0, bytes(frame))


@pytest.mark.parametrize(("target", "own"), [("orders", [("tenant", b"a")]), ("orders", []), ("nowhere", [])], ids=str)
def test_a_store_whose_damage_is_found_while_publishing_is_rebuilt_and_ready(
    target: str, own: Headers, caplog: pytest.LogCaptureFixture
) -> None:
    """Headers are read when records are made; of a timer without own ones, when its target does not take it."""
    kafka, partitions, instance = two_partitions()
    headers: Headers = [("timer-topic", target.encode()), ("timer-delay-ms", b"500"), *own]
    for number in range(2):
        kafka.produce(TIMERS, b"%d" % number, partition=number, headers=headers)
    instance.run(100)
    damage_headers(instance.disks[partitions[0]])
    kafka.topics["orders"].unavailable = not own
    instance.run(2000)
    kafka.topics["orders"].unavailable = False
    instance.run(120_000)
    found = kafka.read("orders" if target == "orders" else "timer.rejected")
    assert sorted(entry.value or b"" for entry in found) == [b"0", b"1"]
    assert instance.status.ready() == WELL
    assert f"{partitions[0]}: the local store is damaged (body log: invalid headers" in caplog.text
