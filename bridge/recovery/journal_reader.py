"""Read what the journal has decided about the requests that a recovery reads again."""

from collections.abc import Iterator
from dataclasses import dataclass

from bridge.config.loop_options import TurnOptions
from bridge.errors import BridgeError, PartitionUnreadableError
from bridge.ports import History
from schemas.journal import Decisions, JournalRecord, Wait
from schemas.origin import Shard
from schemas.progress import Progress
from timer.format.checkpoint import Checkpoint

_LOOK_BACK = 1000
"""Offsets read from the end of a topic for its last record, before all of it is read."""


def parse_record(shard: Shard, value: bytes) -> JournalRecord:
    try:
        return JournalRecord.from_bytes(value)
    except ValueError as wrong:
        raise BridgeError(
            f"{shard}: a record of the journal was written by a newer bridge, or by none: upgrade this one"
        ) from wrong


@dataclass(frozen=True)
class JournalReader:
    """The journal of one partition, for a recovery to `progress`."""

    _shard: Shard
    _history: History
    _options: TurnOptions
    _progress: Progress

    def since(self, found: Checkpoint) -> Decisions | None:
        """Return the decisions after a checkpoint; None if the journal does not continue there: it is another one."""
        known = (found.held, found.flights, found.progress.next_offset, found.waits)
        decisions = Decisions(self._records(found.journal_offset), *known)
        return decisions if self._covers(decisions, found.progress.next_offset) else None

    def for_rebuild(self) -> Decisions:
        """Return the decisions on all that may be pending. Raises BridgeError, before any change, if they are lost."""
        first, _ = self._history.bounds(self._shard)
        for since_ms in (self._since_ms(), None):  # the whole journal if brokers' clocks differed by more
            decisions = Decisions(self._records(None, since_ms), waits=self._last_waits())
            if self._covers(decisions, max(first, self._progress.low_offset)):
                return decisions
        raise BridgeError(
            f"{self._shard}: the journal does not cover what may be pending from offset"
            f" {self._progress.low_offset} on: it was deleted, or its retention is shorter than the timer topic's. It"
            f" is unknown what was cancelled or delivered. Go on as after lost progress, and keep the directories:"
            f" `timer-bridge export` first, delete the group's offset of {self._shard}, start with --adopt-progress"
        )

    def _covers(self, decisions: Decisions, start: int) -> bool:
        """Return True if the journal covers the requests from `start` to C. Its ranges are contiguous."""
        return start >= self._progress.next_offset or decisions.rules_from(start)[0] is not None

    def _records(self, from_offset: int | None, since_ms: int | None = None) -> Iterator[JournalRecord]:
        for value in self._history.journal(self._shard, from_offset=from_offset, since_ms=since_ms):
            yield parse_record(self._shard, value)

    def _last_waits(self) -> tuple[Wait, ...]:
        """Return the waiting targets of the journal's last record. A paused target may have no timers."""
        first, end = self._history.journal_bounds(self._shard)
        for start in (max(first, end - _LOOK_BACK), first):
            last = None
            for value in self._history.journal(self._shard, from_offset=start, since_ms=None):
                last = value
            if last is not None:
                return parse_record(self._shard, last).waits
        return ()

    def _since_ms(self) -> int | None:
        """Return the time from which the journal is needed: of L's record, minus the clock skew. None: all of it.

        If no timer is pending, copies may still be in flight, hidden by a transaction that hangs. They were written
        after the last record that can be read.
        """
        low = self._progress.low_offset
        first, end = self._history.bounds(self._shard)
        for start in (low, max(first, low - _LOOK_BACK)):
            try:
                records = next(self._history.requests(self._shard, start, end), None)
            except PartitionUnreadableError as wrong:
                if wrong.undecodable is None:
                    raise
                continue
            if records:
                at_ms = (records[0] if start == low else records[-1]).timestamp_ms
                return max(0, at_ms - self._options.clock_skew_margin_ms)
        return None
