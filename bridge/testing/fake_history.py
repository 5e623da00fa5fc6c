"""History over the fake Kafka."""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field

from bridge.errors import PartitionUnreadableError
from bridge.ports import Record, Since
from bridge.testing.fake_kafka import FakePort, Partition, record_of
from kafka_timer.origin import TimerPartition
from schemas.journal import writer_key
from schemas.progress import Progress
from timer.testing import Fuse


@dataclass(eq=False, repr=False)
class FakeHistory(FakePort):
    """Implements History. other_journals: by timer topic with its own journal. With `rng`, batch sizes are random."""

    journal_topic: str
    _: KW_ONLY
    other_journals: Mapping[str, str] = field(default_factory=dict)
    silent: set[TimerPartition] = field(default_factory=set, init=False)
    """Partitions without an answer in time."""

    def __post_init__(self) -> None:
        self._committed_ahead: dict[TimerPartition, tuple[int, str | None] | None] = {}
        self._bounds_ahead: dict[TimerPartition, tuple[int, int]] = {}

    def in_process(self, fuse: Fuse) -> "FakeHistory":
        twin = copy(self)
        twin.fuse, twin.silent = fuse, set()  # it waits
        twin.ask_ahead([])
        return twin

    def ask_ahead(self, partitions: Sequence[TimerPartition], since: Since | None = None) -> None:  # noqa: ARG002
        """Takes no step: the calls that follow take theirs."""
        ready = [each for each in partitions if self.kafka.is_stable(self.group.name, each)]
        self._committed_ahead = {each: self.kafka.stable_offset(self.group.name, each) for each in ready}
        logs = [log for each in partitions for log in (self.kafka.partition(each), self._journal(each))]
        self._bounds_ahead = {TimerPartition(log.topic, log.number): (log.first, log.last_stable) for log in logs}

    def progress(self, partition: TimerPartition) -> Progress | None:
        self.step("history.progress")
        known = self._committed_ahead
        found = known.pop(partition) if partition in known else self.kafka.stable_offset(self.group.name, partition)
        return None if found is None else Progress.committed(*found)

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        self.step("history.bounds")
        self.demand_answer(partition)
        return self._bounds(self.kafka.partition(partition))

    def _bounds(self, log: Partition) -> tuple[int, int]:
        place = TimerPartition(log.topic, log.number)
        return self._bounds_ahead.pop(place) if place in self._bounds_ahead else (log.first, log.last_stable)

    def with_open_transactions(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        self.step("history.with_open_transactions")
        return {partition for partition in partitions if self.must_wait(partition)}

    def must_wait(self, partition: TimerPartition) -> bool:
        """Return True if an open transaction has to end before the history can be read."""
        log = self._journal(partition)
        return log.last_stable < log.end or not self.kafka.is_stable(self.group.name, partition)

    def first_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        self.step("history.first_offsets")
        return {partition: self.kafka.partition(partition).first for partition in self._answering(partitions)}

    def stable_and_end_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, tuple[int, int]]:
        self.step("history.stable_and_end_offsets")
        logs = {partition: self.kafka.partition(partition) for partition in self._answering(partitions)}
        return {partition: (log.last_stable, log.end) for partition, log in logs.items()}

    def newest_journal_times(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        self.step("history.newest_journal_times")
        journals = {partition: self._journal(partition).everything() for partition in self._answering(partitions)}
        return {partition: max(e.append_ms for e in entries) for partition, entries in journals.items() if entries}

    def offset_at(self, partition: TimerPartition, timestamp_ms: int) -> int:
        self.step("history.offset_at")
        log = self.kafka.partition(partition)
        return next((e.offset for e in log.everything() if e.append_ms >= timestamp_ms), log.end)

    def requests(
        self, partition: TimerPartition, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        self.step("history.requests")
        self.demand_answer(partition)
        log = self.kafka.partition(partition)
        self.kafka.wait_readable(log, min(to_offset, log.end))
        entries = [e for e in log.committed(from_offset, to_offset) if not e.is_undecodable or e.offset not in skipped]
        stop = next((at for at, entry in enumerate(entries) if entry.is_undecodable), len(entries))
        yield from self._batches([record_of(entry) for entry in entries[:stop]])
        if stop < len(entries):
            offset = entries[stop].offset
            raise PartitionUnreadableError(f"{partition}: offset {offset} cannot be decoded", offset)

    def _answering(self, partitions: Sequence[TimerPartition]) -> list[TimerPartition]:
        return [partition for partition in partitions if partition not in self.silent]

    def demand_answer(self, partition: TimerPartition) -> None:
        if partition in self.silent:
            raise PartitionUnreadableError(f"{partition}: no answer in time")

    def journal_ends(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        self.step("history.journal_ends")
        return {partition: self._journal(partition).end for partition in partitions}

    def journal_bounds(self, partition: TimerPartition) -> tuple[int, int]:
        self.step("history.journal_bounds")
        self.demand_answer(partition)
        return self._bounds(self._journal(partition))

    def journal(self, partition: TimerPartition, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        self.step("history.journal")
        log = self._journal(partition)
        self.kafka.wait_readable(log, log.end)
        start = log.first if from_offset is None else from_offset
        if from_offset is None and since_ms is not None:
            start = next((e.offset for e in log.everything() if e.append_ms >= since_ms), log.end)
        for entry in list(log.committed(start, log.end)):
            self.step("history.journal next")
            assert entry.value is not None
            yield entry.value

    def journal_tails(
        self, partitions: Sequence[TimerPartition], look_back: int
    ) -> dict[TimerPartition, list[tuple[bytes | None, bytes]]]:
        self.step("history.journal_tails")
        found = {}
        for partition in partitions:
            log = self._journal(partition)
            tail = log.committed(log.last_stable - look_back, log.last_stable)
            found[partition] = [(entry.key, entry.value or b"") for entry in tail]
        return found

    def journal_key(self, partition: TimerPartition) -> bytes:
        return writer_key(self.group.name, partition.topic)

    def _journal(self, partition: TimerPartition) -> Partition:
        topic = self.other_journals.get(partition.topic, self.journal_topic)
        return self.kafka.partition(TimerPartition(topic, partition.partition))

    def _batches(self, records: list[Record]) -> Iterator[list[Record]]:
        waiting = deque(records)
        while waiting:
            self.step("history.requests next")
            size = 1000 if self.rng is None else self.rng.choice((1, 2, 5, 20))
            yield [waiting.popleft() for _ in range(min(size, len(waiting)))]
