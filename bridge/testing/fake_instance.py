"""A bridge process over the fake Kafka, with its disks."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from random import Random

from bridge.errors import BridgeError
from bridge.loop.control_state import ControlState
from bridge.loop.loop import Bridge
from bridge.loop.standbys import Standbys
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.partition.options import TurnOptions
from bridge.partition.recover import prepare_store, refresh_standby
from bridge.testing.fake_history import FakeHistory
from bridge.testing.fake_kafka import FakeGroup, FakeKafka
from bridge.testing.fake_sink import FakeSink
from bridge.testing.fake_source import FakeControl, FakeSource
from bridge.testing.timeline import FakeClock, nothing_happens
from kafka_timer.origin import TimerPartition
from timer.errors import UnreadableError
from timer.testing import Crash, Fuse, SimDisk


@dataclass(eq=False, repr=False)
class FakeInstance:
    """A bridge process and its data directory. Tests call `turn`, `run` and `start`.

    standby_interval_ms: time between two refreshes of a standby; None: without standbys.
    bridge, source, history, sink, control: of the running process, new at each `start`.
    """

    kafka: FakeKafka
    group: FakeGroup
    options: TurnOptions
    _: KW_ONLY
    name: str = "bridge"
    clock: FakeClock = None  # type: ignore[assignment]
    rng: Random | None = None
    meanwhile: Callable[[str], None] = nothing_happens
    note: Callable[[], object] = lambda: None
    on_start: Callable[[TimerPartition], None] = lambda _: None
    standby_interval_ms: int | None = None
    holds_preparations: bool = field(default=False, init=False)
    """True to keep background recoveries from ending."""
    bridge: Bridge = field(init=False)
    source: FakeSource = field(init=False)
    history: FakeHistory = field(init=False)
    sink: FakeSink = field(init=False)
    control: FakeControl = field(init=False)

    def __post_init__(self) -> None:
        if self.clock is None:
            self.clock = FakeClock(self.kafka.timeline)  # type: ignore[unreachable]
        self.disks: dict[TimerPartition, SimDisk] = {}
        self.fuse = Fuse()
        self.is_running = False
        self.status = Status()
        self.metrics = Metrics(lambda: self.kafka.timeline.now_ms / 1000, self.status.traffic)
        self._last_member = ""
        self._fault_chance = self._unknown_chance = 0.0
        self.start()

    def start(self) -> None:
        """Start a new process on the current disks. A running one is killed."""
        self.kill()
        self.group.expire(self._last_member)
        kafka, group, fuse, rng = self.kafka, self.group, self.fuse, self.rng
        topic, meanwhile, note = self.options.journal_topic, self.meanwhile, self.note
        others = {timer_topic: own.journal_topic for timer_topic, own in self.options.topics.items()}
        self.control = FakeControl(kafka, fuse=fuse, rng=rng)
        news = self.control.has_news
        self.source = FakeSource(
            kafka, group, self.name, fuse=fuse, rng=rng, on_start=self.on_start, has_other_news=news
        )
        self._last_member = self.source.member
        self.sink = FakeSink(
            kafka, group, self.name, topic, fuse=fuse, rng=rng, meanwhile=meanwhile, other_journals=others, note=note
        )
        self.set_faults(self._fault_chance, self._unknown_chance)
        self.history = FakeHistory(kafka, group, topic, fuse=fuse, rng=rng, meanwhile=meanwhile, other_journals=others)
        self.status = Status(lambda: kafka.timeline.now_ms / 1000)
        self.status.traffic = self.metrics.traffic
        prepare = partial(FakePreparation, self, self.history)
        standbys = None
        if (interval_ms := self.standby_interval_ms) is not None:
            refresh = partial(prepare, is_refresh=True)
            standbys = Standbys(self.clock, self.status, refresh, sorted(group.owner), interval_ms)
        self.bridge = Bridge(
            clock=self.clock,
            source=self.source,
            history=self.history,
            sink=self.sink,
            disk_for=self.disk_for,
            options=self.options,
            prepare=prepare,
            control=ControlState(self.control, others.keys() | {partition.topic for partition in group.owner}),
            status=self.status,
            metrics=self.metrics,
            standbys=standbys,
        )
        self.is_running = True

    def turn(self) -> None:
        """Run one turn. Raises the bridge's errors, and `Crash` if the fuse was armed."""
        assert self.is_running, "not started"
        self.sink.drift()
        self.bridge.turn()
        self.status.turn_ended()

    def run(self, ms: int) -> None:
        """Run turns until `ms` have passed and no work is left."""
        end_ms = self.kafka.timeline.now_ms + ms
        self.kafka.timeline.at(end_ms, self._wake)
        while self.kafka.timeline.now_ms < end_ms:
            self.turn()
        for _ in range(3):
            self._wake()
            self.turn()

    def set_faults(self, chance: float, unknown: float = 0.0) -> None:
        """Set the shares of transactions that end by a passing fault or with an unknown outcome. Needs an `rng`."""
        self._fault_chance, self._unknown_chance = chance, unknown
        self.sink.fault_chance, self.sink.unknown_chance = chance, unknown

    def stop(self) -> None:
        """Stop cleanly, as by SIGTERM."""
        self.bridge.finish()
        self.bridge.stop()
        self.kill()

    def kill(self, *, noticed: bool = True) -> None:
        """kill -9: written files stay. noticed: False if the test ends the membership of the group itself."""
        if self.is_running:
            self._last_member = self.source.member
            del self.source, self.bridge
        self.is_running = False
        if noticed:
            self.group.expire(self._last_member)
        self.fuse = Fuse()
        self.disks = {partition: disk.reopen(self.fuse) for partition, disk in self.disks.items()}

    def leave_the_group(self) -> None:
        """Expire its session. It notices at its next poll."""
        if self.is_running:
            self.group.expire(self.source.member)

    def lose_power(self) -> None:
        """Stop the machine. Data that was not synced is torn or lost."""
        for disk in self.disks.values():
            disk.lose_power(self.rng)
        self.kill()

    def lose_disks(self) -> None:
        """Delete the data directory."""
        self.kill()
        self.disks = {}

    def disk_for(self, partition: TimerPartition) -> SimDisk:
        if partition not in self.disks:
            self.disks[partition] = SimDisk(self.rng, self.fuse)
        return self.disks[partition]

    def _wake(self) -> None:
        if self.is_running:
            self.source.wake()


@dataclass(eq=False)
class FakePreparation:
    """A recovery process on the instance's disk. With an `rng` it takes some time and may die at any call."""

    _instance: FakeInstance
    _history: FakeHistory
    _partition: TimerPartition
    is_refresh: bool = False
    refused: OSError | UnreadableError | None = None

    def is_done(self) -> bool:
        rng = self._history.rng
        if self._instance.holds_preparations or (rng is not None and rng.random() < 0.6):
            return False
        if self._history.must_wait(self._partition):
            return False
        self._work(rng.randint(1, 60) if rng is not None and rng.random() < 0.3 else None)
        return True

    def give_up(self) -> None:
        if self._history.rng is not None:
            self._work(self._history.rng.randint(1, 60))
            self._history.meanwhile("recovery.give_up")

    def _work(self, steps: int | None) -> None:
        instance, partition, fuse = self._instance, self._partition, Fuse()
        assert partition not in instance.bridge.partitions, f"two processes write to the directory of {partition}"
        if steps is not None:
            fuse.arm(steps)
        disk = instance.disk_for(partition).reopen(fuse)
        recover = refresh_standby if self.is_refresh else prepare_store
        try:
            recover(partition, disk, self._history.in_process(fuse), instance.options.of(partition.topic))
        except (OSError, UnreadableError) as wrong:
            self.refused = wrong
        except (Crash, BridgeError) as wrong:
            self.refused = OSError(str(wrong)) if self.is_refresh else None
        instance.disks[partition] = disk.reopen(instance.fuse)
