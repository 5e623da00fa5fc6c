"""Missing timers that must not be sent, as a bridge may still deliver them. By progress and journal (docs/formats.md).

    C 9800   K (due 5000, 7431)   journal: held 8, rolled (3, 1), ended 5, waits orders (4000, 2]..(4500, 9]
    origin 7, expected 3900       below C, (3900, 7) <= K, and not in the journal                  settled
    origin 9801                   not read yet                                                      unread
    origin 9, expected 6000       (6000, 9) > K: it waits in a store                                live
    origin 8, 3                   held, or a copy in flight                                         held, rolling
    origin 6, expected 4200       its key is in the backlog of its target                           held
    origin 5                      a cancel ended it, which always wins                              ended
    origin 4                      the journal was deleted, or is another's: it may be held          no-journal

The key of a copy has its due time from the journal, or the copy's own time, which is at most that of the journal record
that lists it as landed. A paused timer waits in the year 33658. The key of a timer that is or was rolled may have any
time from its request's up to that one: in a target backlog it may have waited under the key of its roll.

A task reads a partition in three steps: the offsets of its timers, the journal, the timers. Memory holds the offsets, 8
bytes each, and the decisions about them, so neither the timers nor the journal have to fit.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from kafka_timer.headers import PAUSED_MS
from schemas.journal import Decisions, JournalRecord
from schemas.progress import Key, Progress
from spark_jobs.errors import JobFailedError
from spark_jobs.platform.tables import Row, batches_of, rows_of

SKEW_MS = 60_000
"""Largest difference between the clocks of two brokers."""
_OFFSETS, _JOURNAL, _TIMERS = range(3)
"""Steps of a task."""


def with_reasons(asked: DataFrame, journal: DataFrame, progress: Mapping[int, Progress | None]) -> DataFrame:
    """Return `asked` with `waits`: why the timer must not be sent; null: it is settled, and not ended.

    asked: origin, partition, offset, requested_ms, due_ms, target. journal: its records from before the first request
    in question. progress: of each partition, from before the journal was read. Evaluation raises JobFailedError for a
    journal record of another version: an unknown decision could mean that a timer waits.
    """
    records = journal.select("topic", "partition", "offset", F.col("timestamp_ms").alias("at_ms"), "value")
    parts = (asked.select("partition", "offset"), records, asked)
    steps = (part.withColumn("step", F.lit(step)) for step, part in enumerate(parts))
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), steps)
    judged = asked.withColumn("waits", F.lit(None).cast("string")).schema
    in_order = rows.repartition("partition").sortWithinPartitions("partition", "step", "offset")
    schema = to_arrow_schema(judged)
    return in_order.mapInArrow(lambda batches: batches_of(_judged(progress, rows_of(batches)), schema), judged)


def _judged(progress: Mapping[int, Progress | None], rows: Iterator[Row]) -> Iterator[Row]:
    """Judge the timers of each partition; in a task of mapInArrow."""
    for partition, of_partition in groupby(rows, key=itemgetter("partition")):
        offsets = array("q")
        settled = SettledTimers(progress.get(partition), offsets, ())
        for step, found in groupby(of_partition, key=itemgetter("step")):
            if step == _OFFSETS:
                offsets.extend(row["offset"] for row in found)
            elif step == _JOURNAL:
                settled = SettledTimers(progress.get(partition), offsets, found)
            else:
                yield from (row | {"waits": settled.reason_to_wait(row)} for row in found)


class SettledTimers:
    """Settled timers of one partition. `offsets`: of the timers in question, sorted."""

    def __init__(self, progress: Progress | None, offsets: "array[int]", journal: Iterable[Row]) -> None:
        self._progress, self._offsets = progress, offsets
        self._backlogs: dict[int, list[tuple[Key, Key]]] = {}
        """Ranges (after, until] of pending keys by the hash of the target, as of the last record."""
        self._visit_ms: dict[int, int] = {}
        """Latest possible wake-up time of the copies of a timer, but for pauses."""
        self._last_ms: dict[int, int] = {}
        """Due time of the last copy: a timer that was paused before is not any more."""
        self._decisions = Decisions(map(self._read, journal))
        self._rolling = {origin for origin, _ in self._decisions.flights}
        self._ended = self._decisions.ended | self._decisions.dropped

    def reason_to_wait(self, timer: Row) -> str | None:
        """Return why the timer must not be sent; None: settled, but not ended."""
        offset, requested_ms = timer["offset"], timer["requested_ms"]
        expected_ms = max(timer["due_ms"], requested_ms)
        if self._progress is None:
            return "no-progress"
        if offset >= self._progress.next_offset:
            return "unread"
        first = max(offset, self._progress.low_offset)  # below it nothing waits: the journal may be gone
        if first < self._progress.next_offset and self._decisions.rules_from(first)[0] is None:
            return "no-journal"
        told = {"ended": self._ended, "refused": self._decisions.refused, "held": self._decisions.held}
        for why, origins in (told | {"rolling": self._rolling}).items():
            if offset in origins:
                return why
        high = Key(max(expected_ms, self._visit_ms.get(offset, 0), self._last_ms.get(offset, 0)), offset)
        if high > self._progress.settled:
            return "live"
        rules, _ = self._decisions.rules_from(offset)
        was_near = rules is not None and expected_ms - requested_ms <= rules.roll_window_ms
        is_exact = was_near and offset not in self._visit_ms  # neither was it rolled, nor did it have to be
        low = high if is_exact else Key(requested_ms - SKEW_MS, offset)
        backlog = self._backlogs.get(_hash(timer["target"]), ())
        return "held" if any(after < high and low <= until for after, until in backlog) else None

    def _read(self, row: Row) -> JournalRecord:
        """Return the record with what it says of the timers in question. Raises JobFailedError."""
        try:
            record = JournalRecord.from_bytes(row["value"] or b"")
        except ValueError:
            record = None
        if record is None or record.v != 1:
            raise JobFailedError(
                f"{row['topic']}/{row['partition']}/{row['offset']}: not a journal record of this version:"
                " run the release of the bridge that writes it"
            )
        rolled = tuple(flight for flight in record.rolled if self._is_asked(flight.origin_offset))
        landed = tuple(copy for copy in record.landed if self._is_asked(copy[0]))
        self._last_ms |= {flight.origin_offset: flight.due_ms for flight in rolled}
        copies = [(flight.origin_offset, flight.due_ms % PAUSED_MS) for flight in rolled]
        for origin, visit_ms in (*copies, *((origin, row["at_ms"] + SKEW_MS) for origin, _ in landed)):
            self._visit_ms[origin] = max(visit_ms, self._visit_ms.get(origin, 0))
        self._backlogs = {}
        for wait in record.waits:
            self._backlogs.setdefault(_hash(wait.target), []).extend(wait.stretches)
        decided = ("refused", "ended", "dropped", "held", "released")
        told = {name: tuple(filter(self._is_asked, getattr(record, name))) for name in decided}
        return record.model_copy(update={**told, "rolled": rolled, "landed": landed})

    def _is_asked(self, offset: int) -> bool:
        at = bisect_left(self._offsets, offset)
        return self._offsets[at : at + 1] == array("q", [offset])


def _hash(target: str) -> int:
    """Return Java's String.hashCode of a topic's name: targets with the same hash share a backlog."""
    return reduce(lambda found, letter: (31 * found + ord(letter)) & 0xFFFFFFFF, target, 0)
