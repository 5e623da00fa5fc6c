"""The loop: one thread, one turn after the other, numbered as in `Bridge.turn`.

    1 poll      wait for a request, or until the next due time
    2 intake    requests -> timers, late ones, refusals
    3 store     timers to disk                      nothing of 2-4 is seen by anybody before 5
    4 due       timers whose time has come
    5 publish   one transaction: deliveries, rejected, journal, progress of every shard
    6 advance   what stands in Kafka is settled here; now and then a checkpoint

A crash before the commit of 5: the next life takes the store back to its checkpoint, reads again from C, and nobody saw
anything. A crash behind it: the next life reads (C, K) and the journal, and settles what was delivered.
"""

import logging
from collections import Counter
from collections.abc import Callable

from bridge.complaints import Complaints
from bridge.errors import BridgeError
from bridge.options import TurnOptions
from bridge.ports import Aborted, Clock, Committed, History, Outgoing, Ownership, Record, Sink, Source, Transaction
from bridge.recovery import Recovered, rebuild, recover
from bridge.shard import OwnedShard
from schemas.origin import Shard
from schemas.progress import Progress
from timer.disk import Disk
from timer.errors import CorruptStoreError, WheelFullError

log = logging.getLogger(__name__)

_READING_FIRST_WAIT_MS = 10


class Bridge:
    """All the shards that this instance owns, over its ports. Not for use by two threads, but for `request_stop`."""

    def __init__(
        self,
        *,
        clock: Clock,
        source: Source,
        history: History,
        sink: Sink,
        disk_for: Callable[[Shard], Disk],
        options: TurnOptions,
    ) -> None:
        self._clock = clock
        self._source = source
        self._history = history
        self._sink = sink
        self._disk_for = disk_for
        self._options = options
        self._shards: dict[Shard, OwnedShard] = {}
        self._complaints = Complaints(log)
        self._checkpoint_due_ms = 0
        self._stopping = False
        self.ready = False
        """Shards were assigned and recovered at least once."""

    @property
    def pending(self) -> dict[Shard, int]:
        """Live timers of each shard that is ours."""
        return {shard: counts.total() for shard, counts in self.pending_by_topic().items()}

    def pending_by_topic(self) -> dict[Shard, Counter[str]]:
        """Live timers of each shard that is ours, by real topic."""
        return {shard: owned.pending_by_topic() for shard, owned in self._shards.items()}

    def histogram(self, bucket_ms: int) -> Counter[int]:
        """Live timers of all shards by when they are looked at next: start of the bucket (epoch ms) to their number."""
        total: Counter[int] = Counter()
        for owned in self._shards.values():
            total.update(owned.store.histogram(bucket_ms))
        return total

    def turn(self) -> None:
        """One turn; waits in step 1 until there is something to do, at most `max_wait_ms`."""
        polled = self._source.poll(self._wait_ms(), self._options.max_poll_records)  # 1
        self._change_hands(polled.ownership)
        now_ms = self._clock.now_ms()
        self._take_in(polled.records, now_ms)  # 2, 3
        self._each(lambda owned: owned.find_due(now_ms))  # 4
        if any(owned.is_urgent(now_ms) for owned in self._shards.values()):
            self._publish(polled.fence, now_ms)  # 5, 6
        self._checkpoint(now_ms)

    def request_stop(self) -> None:
        """Ends a waiting poll and any repeating of a transaction; for a signal handler."""
        self._stopping = True
        self._source.wake()

    def stop(self) -> None:
        """A clean end between two turns: what is stored is committed already or will be read again."""
        self._stopping = True
        for shard in list(self._shards):
            self._give_up(shard, checkpoint=True)
        self._source.close()

    # -- 1 poll

    def _wait_ms(self) -> int:
        now_ms = self._clock.now_ms()
        is_reading_first = any(owned.reads_first_until is not None for owned in self._shards.values())
        until_ms = now_ms + (_READING_FIRST_WAIT_MS if is_reading_first else self._options.max_wait_ms)
        looks = [owned.next_look_ms(until_ms) for owned in self._shards.values()]
        return max(0, min(looks, default=until_ms) - now_ms)

    def _change_hands(self, ownership: Ownership) -> None:
        for shard in ownership.lost:
            self._give_up(shard, checkpoint=False)
        for shard in ownership.revoked:
            self._give_up(shard, checkpoint=True)
        for shard in ownership.assigned:
            self._give_up(shard, checkpoint=False)
            disk = self._disk_for(shard)
            self._open(shard, disk, recover(shard, disk, self._history, self._options))

    def _open(self, shard: Shard, disk: Disk, recovered: Recovered) -> None:
        _, end = self._history.bounds(shard)
        self._shards[shard] = owned = OwnedShard(shard, disk, recovered, self._options, readable_end=end)
        self._source.start(shard, owned.store.next_offset)
        self.ready = True

    def _give_up(self, shard: Shard, *, checkpoint: bool) -> None:
        owned = self._shards.pop(shard, None)
        if owned is None:
            return
        try:
            if checkpoint and owned.store.may_checkpoint:
                owned.start_checkpoint(self._history.journal_end(shard))
                owned.store.finish_checkpoint()
        except OSError as wrong:
            log.warning("%s: no checkpoint at the end (%s); the next start reads more", shard, wrong)
        finally:
            owned.store.close()

    # -- 2 intake, 3 store, 4 due

    def _take_in(self, records: dict[Shard, list[Record]], now_ms: int) -> None:
        def take_in(owned: OwnedShard) -> None:
            waited = bool(owned.backlog)
            try:
                owned.take_in(records.get(owned.shard, []), now_ms)
            except (OSError, WheelFullError) as full:
                self._source.pause(owned.shard)
                self._complaints.say(now_ms, str(owned.shard), f"{owned.shard}: intake pauses: {full}")
            else:
                if waited:
                    self._source.resume(owned.shard)
                    self._complaints.over(str(owned.shard))
                self._note_read(owned, was_empty=owned.shard not in records)

        self._each(take_in)

    def _note_read(self, owned: OwnedShard, *, was_empty: bool) -> None:
        """A shard that was opened just now: is all read that was there then? Markers at the end are never read."""
        end = owned.reads_first_until
        if end is not None:
            start = owned.store.next_offset
            nothing_more = was_empty and not any(self._history.requests(owned.shard, start, end))
            owned.note_read(nothing_more=nothing_more)

    def _each(self, step: Callable[[OwnedShard], None]) -> None:
        """`step` for each shard; one whose disk turns out damaged is rebuilt from Kafka and goes on next turn."""
        for owned in list(self._shards.values()):
            try:
                step(owned)
            except CorruptStoreError as wrong:
                self._replace(owned, wrong)

    def _replace(self, owned: OwnedShard, wrong: CorruptStoreError) -> None:
        del self._shards[owned.shard]
        owned.store.close()
        progress = owned.committed_progress
        recovered = rebuild(owned.shard, owned.disk, self._history, self._options, progress, wrong)
        self._open(owned.shard, owned.disk, recovered)

    # -- 5 publish, 6 advance

    def _publish(self, fence: object, now_ms: int) -> None:
        """Repeats until it stands: without what the broker will never take, without shards that are no longer ours."""
        while progress := self._progress():
            transaction, rows = self._transaction(progress, fence, now_ms)
            match self._sink.publish(transaction):
                case Committed():
                    for shard, reached in progress.items():
                        self._shards[shard].committed(reached, now_ms)
                    return
                case Aborted(refused):
                    for index, code in refused.items():
                        self._park(rows, index, code, transaction.outgoing[index])
                    looked = self._source.check()
                    self._change_hands(looked.ownership)
                    fence = looked.fence
            if self._stopping:
                return  # nothing of it stands: the next life reads it again

    def _progress(self) -> dict[Shard, Progress]:
        """What each shard with news has reached."""
        reached: dict[Shard, Progress] = {}

        def note(owned: OwnedShard) -> None:
            if owned.has_news():
                reached[owned.shard] = owned.store.progress()

        self._each(note)
        return reached

    def _transaction(
        self, progress: dict[Shard, Progress], fence: object, now_ms: int
    ) -> tuple[Transaction, list[tuple[OwnedShard, int]]]:
        """The transaction, and for each shard the index behind its last record."""
        outgoing: list[Outgoing] = []
        journal: dict[Shard, bytes] = {}
        ends: list[tuple[OwnedShard, int]] = []
        for shard, reached in progress.items():
            owned = self._shards[shard]
            outgoing += owned.outgoing(now_ms)
            ends.append((owned, len(outgoing)))
            decided = owned.journal(reached)
            if decided is not None:
                journal[shard] = decided.to_bytes()
        return Transaction(outgoing, journal, progress, fence), ends

    def _park(self, ends: list[tuple[OwnedShard, int]], index: int, code: str, record: Outgoing) -> None:
        start = 0
        for owned, end in ends:
            if index < end:
                if not owned.park(index - start, code):
                    raise BridgeError(
                        f"{record.topic} refuses a rejected record ({code}): nothing may vanish, so the bridge stops;"
                        f" mend the topic, then start again"
                    )
                return
            start = end

    def _checkpoint(self, now_ms: int) -> None:
        begin = not 0 <= self._checkpoint_due_ms - now_ms <= self._options.store.checkpoint_interval_ms
        for owned in list(self._shards.values()):
            try:
                owned.store.compact_some()
                if owned.store.continue_checkpoint() and begin and owned.store.may_checkpoint:
                    owned.start_checkpoint(self._history.journal_end(owned.shard))
            except OSError as wrong:
                self._complaints.say(now_ms, f"checkpoint {owned.shard}", f"{owned.shard}: no checkpoint: {wrong}")
            except CorruptStoreError as wrong:
                self._replace(owned, wrong)
        if begin:
            self._checkpoint_due_ms = now_ms + self._options.store.checkpoint_interval_ms
