"""This version upgrades from each version's fixture: the data directory, and Kafka's topics, that a bridge left.

    upgrade/0.2.0/kafka.jsonl + closed/       after a clean end; its store is of another format, so it is rebuilt
                              + killed/       after kill -9
                              + nothing       from Kafka alone
    played now                                the same life, as the maker plays it: the next fixture would be sound

Each timer that was pending is delivered exactly once, at or after its due time; none that was cancelled is.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.config.data_directory import DataDir
from bridge.partition.options import TurnOptions
from bridge.testing import FakeInstance
from bridge.testing.fake_kafka import Entry, FakeGroup, FakeKafka
from integration_tests.golden import FOLDER, life, make
from integration_tests.golden.life import GROUP, INSTANCE_ID, LEFT_MS, OPTIONS, OTHER, PARTITION, START_MS
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.origin import TimerPartition
from schemas.rules import Rules
from timer.disk import ReadOnlyDisk, RealDisk
from timer.format.checkpoint import NAME, Checkpoint
from timer.wheel import shutdown_snapshot as resume

pytestmark = pytest.mark.timeout(60)  # a bridge that takes its store for damaged may turn forever, as no time passes

VERSIONS = sorted(path.name for path in (FOLDER / "upgrade").iterdir())
NOW = "played now"
RULES_OF_NOW = Rules(max_delay_ms=9_000, roll_window_ms=4_000, own_topics=OPTIONS.rules.own_topics)
"""Rules that differ from those of the earlier bridge, under which it read its requests."""

DELIVERED_BEFORE = {"delivered", "delivered with id", "ahead", "held and delivered"}
PENDING = {
    "held": 9_400,
    "held with id": 9_900,
    "other 0": 11_000,
    "unread": 12_000,
    "near": 12_600,
    "near with id": 12_700,
    "other 1": 13_000,
    "tombstone": 13_100,
    "other 2": 15_000,
    "other 3": 17_000,
    "rocketmq": 33_000,
    "other far": 40_000,
    "replacement": 42_000,
    "moved": 45_000,
    "flying": 51_000,
    "flying moved": 54_000,
    "far": 60_000,
    "far with id": 61_000,
}
"""Timers for `orders`: due time after START_MS by name."""
PAUSED = {"bill": 1_000, "bill with id": 2_500, "far bill": 70_000}
"""Timers for `bills`, which is paused until RESUMED_MS."""
RESUMED_MS = 20_000
LAST_MS = 80_000
UNDECODABLE, EXPIRED = ("undecodable", None), ("expired", "expired bill")
REJECTED_BEFORE = [
    ("bad-header", "refused"),
    ("missing-topic", "without topic"),
    ("bad-header", "refused late"),
    UNDECODABLE,
]
"""Code and value. One more undecodable record is skipped, and not read yet."""


class OnDisk(FakeInstance):
    """A bridge on a real data directory."""

    def __init__(self, data: DataDir, kafka: FakeKafka, group: FakeGroup, options: TurnOptions) -> None:
        self._data = data
        super().__init__(kafka, group, options)

    def disk_for(self, timer_partition: TimerPartition) -> RealDisk:  # type: ignore[override]  # both are a Disk
        return self._data.disk_for(timer_partition)


class World:
    """Kafka of an earlier version (`fixture`), and its data directory `end` (None: no directory), copied to `place`."""

    def __init__(self, fixture: Path, place: Path, end: str | None) -> None:
        self.kafka = life.load((fixture / "kafka.jsonl").read_bytes())
        self.folder = place / "data"
        if end is not None:
            shutil.copytree(fixture / end, self.folder)
            self.folder.chmod(0o700)

    @contextmanager
    def started(self) -> Iterator[OnDisk]:
        """Run a bridge of this version, 100 ms after the earlier one ended."""
        self.kafka.timeline.advance(100)
        options = replace(OPTIONS, rules=RULES_OF_NOW, era_ms=self.kafka.timeline.now_ms)
        with closing(DataDir(self.folder)) as data:
            instance = OnDisk(data, self.kafka, FakeGroup(GROUP, [PARTITION, OTHER]), options)
            yield instance
            instance.stop()

    def run_until(self, instance: OnDisk, at_ms: int) -> None:
        instance.run(START_MS + at_ms - self.kafka.timeline.now_ms)

    def resume(self, target: str) -> None:
        """Resume a target by the record that docs/formats.md describes, in any version."""
        key = f"pause/timer.requests/{target}".encode()
        self.kafka.produce(CONTROL_TOPIC, b'{"v":1,"on":false}', key=key)

    def delivered(self, topic: str) -> dict[str, list[Entry]]:
        """Return the records of `topic` by value, or by key if the value is null."""
        found: dict[str, list[Entry]] = {}
        for entry in self.kafka.read(topic):
            found.setdefault((entry.value or entry.key or b"").decode(), []).append(entry)
        return found

    def rejected(self) -> list[tuple[str, str | None]]:
        """Return code and value of each rejected record."""
        found: list[tuple[str, str | None]] = []
        for entry in self.kafka.read("timer.rejected"):
            code = dict(entry.headers)["timer-error"] or b""
            found.append((code.decode(), None if entry.value is None else entry.value.decode()))
        return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    make.write_missing(folder, life.leave())
    return folder


@pytest.fixture(params=[*VERSIONS, NOW])
def left(request: pytest.FixtureRequest) -> Path:
    """Return the folder of an earlier bridge. Tests must not change it."""
    if request.param != NOW:
        return FOLDER / "upgrade" / str(request.param)
    folder = request.getfixturevalue("played")
    assert isinstance(folder, Path)
    return folder


def demand_once_and_in_time(found: dict[str, list[Entry]], dues: dict[str, int], from_ms: int) -> None:
    """Fail unless each is delivered once, not before its due time, within 1 s of that or of `from_ms`."""
    assert {name: len(entries) for name, entries in found.items() if name in dues} == dict.fromkeys(dues, 1)
    for name, due_ms in dues.items():
        (entry,) = found[name]
        released_ms = int(dict(entry.headers)["timer-released-ms"] or b"") - START_MS
        assert released_ms == entry.append_ms - START_MS
        assert due_ms <= released_ms <= max(due_ms, from_ms) + 1_000, name


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["closed", "killed", None])
def test_each_pending_timer_is_delivered_once_and_in_time(
    end: str | None, left: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = World(left, tmp_path, end)
    assert world.delivered("orders").keys() == DELIVERED_BEFORE
    assert world.rejected() == REJECTED_BEFORE
    with world.started() as instance:
        world.run_until(instance, RESUMED_MS)
        assert world.delivered("bills") == {}, "they are paused"
        assert world.rejected() == [*REJECTED_BEFORE, UNDECODABLE]
        world.resume("bills")
        world.run_until(instance, LAST_MS)
        assert sum(instance.bridge.pending.values()) == 0
    orders, bills = world.delivered("orders"), world.delivered("bills")
    demand_once_and_in_time(orders, PENDING, LEFT_MS + 100)
    demand_once_and_in_time(bills, PAUSED, RESUMED_MS)
    assert orders.keys() == PENDING.keys() | DELIVERED_BEFORE, "nothing that was cancelled or replaced"
    assert bills.keys() == PAUSED.keys()
    assert {len(orders[name]) for name in DELIVERED_BEFORE} == {1}
    assert world.rejected() == [*REJECTED_BEFORE, UNDECODABLE, EXPIRED]
    (near,), (tombstone,) = orders["near with id"], orders["tombstone"]
    ours = ["timer-origin", "timer-deliver-ms", "timer-released-ms", "timer-rolls"]
    assert (near.key, near.value, near.headers[0]) == (b"near key", b"near with id", ("trace", b"1"))
    assert [name for name, _ in near.headers[1:]] == ours
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)
    how = "from Kafka alone" if end is None or left.name in VERSIONS else "from its directory"
    told = [line for line in caplog.messages if "recovered to offset" in line]
    assert [how in line for line in told] == [True, True], told
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_cancel_after_the_upgrade_finds_its_timer(end: str, left: Path, tmp_path: Path) -> None:
    """The timer is in the store, out of order, a copy in flight, paused, or moved."""
    ids = ["near", "held", "flying", "far", "bill", "moved", "other far"]
    world = World(left, tmp_path, end)
    with world.started() as instance:
        for id_ in ids:
            partition = OTHER.partition if id_.startswith("other") else PARTITION.partition
            headers = [("timer-action", b"cancel"), ("timer-id", id_.encode())]
            world.kafka.produce(PARTITION.topic, None, headers=headers, partition=partition)
        world.run_until(instance, RESUMED_MS)
        world.resume("bills")
        world.run_until(instance, LAST_MS)
    cancelled = {"near with id", "held with id", "flying", "far with id", "moved", "other far"}
    assert world.delivered("orders").keys() == (PENDING.keys() | DELIVERED_BEFORE) - cancelled
    assert world.delivered("bills").keys() == PAUSED.keys() - {"bill with id"}


# -- the fixtures


def checkpoint_of(folder: Path) -> Checkpoint:
    found = Checkpoint.from_bytes((folder / NAME).read_bytes())
    assert found is not None
    return found


def test_the_fixtures_have_timers_in_all_states(played: Path) -> None:
    kafka = life.load((played / "kafka.jsonl").read_bytes())
    closed, killed, other = (
        checkpoint_of(played / path) for path in (f"closed/{PARTITION}", f"killed/{PARTITION}", f"closed/{OTHER}")
    )
    committed = kafka.stable_offset(GROUP, PARTITION)
    assert committed is not None
    assert killed.progress.next_offset < closed.progress.next_offset == committed[0]
    assert len(closed.flights) == 3
    assert len(closed.ended_flights) == 1
    assert len(closed.held) == 3
    assert [wait.target for wait in closed.waits] == ["bills"]
    assert len(other.flights) == 4
    for timer_partition, told in ((PARTITION, closed), (OTHER, other)):
        assert resume.read(ReadOnlyDisk(played / "closed" / str(timer_partition)), told) is not None


def test_the_journal_holds_decisions_of_each_kind(left: Path) -> None:
    kafka = life.load((left / "kafka.jsonl").read_bytes())
    found: set[str] = set()
    for entry in kafka.read("timer.journal"):
        found |= {name for name, told in json.loads(entry.value or b"").items() if isinstance(told, list) and told}
    assert found == {"refused", "ended", "rolled", "landed", "dropped", "held", "released", "waits"}


def test_the_instance_id_is_kept(left: Path, tmp_path: Path) -> None:
    world = World(left, tmp_path, "closed")
    with closing(DataDir(world.folder)) as data:
        assert data.instance_id() == INSTANCE_ID
