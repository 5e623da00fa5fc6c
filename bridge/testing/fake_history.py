"""History over the fake Kafka."""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from copy import copy
from random import Random

from bridge.errors import PartitionUnreadableError
from bridge.ports import Record
from bridge.testing.fake_group import FakeGroup
from bridge.testing.fake_kafka import FakeKafka
from bridge.testing.fake_log import Partition, record_of
from bridge.testing.timeline import nothing_happens
from kafka_timer.origin import Shard
from schemas.journal import writer_key
from schemas.progress import Progress
from timer.testing import Fuse


class FakeHistory:
    """Implements History. other_journals: by timer topic with its own journal. With `rng`, batch sizes are random."""

    def __init__(
        self,
        kafka: FakeKafka,
        group: FakeGroup,
        journal_topic: str,
        *,
        other_journals: Mapping[str, str] | None = None,
        fuse: Fuse | None = None,
        rng: Random | None = None,
        meanwhile: Callable[[str], None] = nothing_happens,
    ) -> None:
        self._kafka = kafka
        self._group = group
        self._journal_topic = journal_topic
        self._other_journals = other_journals or {}
        self._fuse = fuse or Fuse()
        self._rng = rng
        self._meanwhile = meanwhile
        self.silent: set[Shard] = set()
        """Partitions without an answer in time."""

    def in_process(self, fuse: Fuse) -> "FakeHistory":
        """Return a History for another process."""
        twin = copy(self)
        twin._fuse = fuse  # noqa: SLF001  (its own)
        twin.silent = set()  # it waits
        return twin

    def progress(self, shard: Shard) -> Progress | None:
        self._step("history.progress")
        found = self._kafka.stable_offset(self._group.name, shard)
        return None if found is None else Progress.committed(*found)

    def bounds(self, shard: Shard) -> tuple[int, int]:
        self._step("history.bounds")
        self.demand_answer(shard)
        log = self._kafka.partition(shard)
        return log.first, log.last_stable

    def with_open_transactions(self, shards: Sequence[Shard]) -> set[Shard]:
        self._step("history.with_open_transactions")
        return {shard for shard in shards if self.must_wait(shard)}

    def must_wait(self, shard: Shard) -> bool:
        """Return True if an open transaction has to end before the history can be read."""
        log = self._journal(shard)
        return log.last_stable < log.end or not self._kafka.is_stable(self._group.name, shard)

    def first_offsets(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        self._step("history.first_offsets")
        return {shard: self._kafka.partition(shard).first for shard in shards}

    def stable_and_end_offsets(self, shards: Sequence[Shard]) -> dict[Shard, tuple[int, int]]:
        self._step("history.stable_and_end_offsets")
        logs = {shard: self._kafka.partition(shard) for shard in shards}
        return {shard: (log.last_stable, log.end) for shard, log in logs.items()}

    def newest_journal_times(self, shards: Sequence[Shard]) -> dict[Shard, int]:
        self._step("history.newest_journal_times")
        written = {shard: [entry.append_ms for entry in self._journal(shard).everything()] for shard in shards}
        return {shard: max(times) for shard, times in written.items() if times}

    def offset_at(self, shard: Shard, timestamp_ms: int) -> int:
        self._step("history.offset_at")
        log = self._kafka.partition(shard)
        return next((e.offset for e in log.everything() if e.append_ms >= timestamp_ms), log.end)

    def requests(
        self, shard: Shard, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        self._step("history.requests")
        self.demand_answer(shard)
        log = self._kafka.partition(shard)
        self._kafka.wait_readable(log, min(to_offset, log.end))
        entries = [e for e in log.committed(from_offset, to_offset) if not e.is_undecodable or e.offset not in skipped]
        stop = next((at for at, entry in enumerate(entries) if entry.is_undecodable), len(entries))
        yield from self._batches([record_of(entry) for entry in entries[:stop]])
        if stop < len(entries):
            offset = entries[stop].offset
            raise PartitionUnreadableError(f"{shard}: offset {offset} cannot be decoded", offset)

    def demand_answer(self, shard: Shard) -> None:
        if shard in self.silent:
            raise PartitionUnreadableError(f"{shard}: no answer in time")

    def journal_end(self, shard: Shard) -> int:
        self._step("history.journal_end")
        return self._journal(shard).end

    def journal_bounds(self, shard: Shard) -> tuple[int, int]:
        self._step("history.journal_bounds")
        self.demand_answer(shard)
        log = self._journal(shard)
        return log.first, log.last_stable

    def journal(self, shard: Shard, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        self._step("history.journal")
        log = self._journal(shard)
        self._kafka.wait_readable(log, log.end)
        start = log.first if from_offset is None else from_offset
        if from_offset is None and since_ms is not None:
            start = next((e.offset for e in log.everything() if e.append_ms >= since_ms), log.end)
        for entry in list(log.committed(start, log.end)):
            self._step("history.journal next")
            assert entry.value is not None
            yield entry.value

    def journal_tails(self, shards: Sequence[Shard], look_back: int) -> dict[Shard, list[tuple[bytes | None, bytes]]]:
        self._step("history.journal_tails")
        logs = {shard: self._journal(shard) for shard in shards}
        return {
            shard: [
                (each.key, each.value or b"") for each in log.committed(log.last_stable - look_back, log.last_stable)
            ]
            for shard, log in logs.items()
        }

    def journal_key(self, shard: Shard) -> bytes:
        return writer_key(self._group.name, shard.topic)

    def _step(self, where: str) -> None:
        self._fuse.step(where)
        self._meanwhile(where)

    def _journal(self, shard: Shard) -> Partition:
        topic = self._other_journals.get(shard.topic, self._journal_topic)
        return self._kafka.partition(Shard(topic, shard.partition))

    def _batches(self, records: list[Record]) -> Iterator[list[Record]]:
        waiting = deque(records)
        while waiting:
            self._step("history.requests next")
            size = 1000 if self._rng is None else self._rng.choice((1, 2, 5, 20))
            yield [waiting.popleft() for _ in range(min(size, len(waiting)))]
