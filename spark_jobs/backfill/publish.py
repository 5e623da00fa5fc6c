"""The task of a backfill in Spark's Python workers: it sends rows of one partition of the timer topic, in order.

    bodies -> origin, outcome: sent | backfilled-before | expired | failed (and why)

Rows are sent in order. Memory holds one transaction's rows, and 8 bytes for each mark that was written since Spark read
the marks: by another run, by a task that died, or by this one if a transaction is aborted.

If a task dies, another one repeats its rows: its producer fences the former, and the marks show what was sent.
"""

import json
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, islice

import pyarrow as pa

from schemas import headers as names
from spark_jobs.kafka.admin import (
    TOPIC_REFUSAL_CODES,
    OutgoingRecord,
    TransactionAbortedError,
    TransactionalSender,
    read_committed,
)
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.arrow_tasks import RECORD, Batches, Row, rows_of, transactions

_TIMER = [("origin", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
_TIMES = [("requested_ms", pa.int64()), ("due_ms", pa.int64()), ("expire_ms", pa.int64())]
_ASKED = [*_TIMER, *_TIMES, ("target", pa.string())]
BODIES = pa.schema([*_ASKED, ("want_partition", pa.int32()), ("occurrence", pa.int32()), *RECORD])
SENT = pa.schema([("origin", pa.string()), ("outcome", pa.string()), ("detail", pa.string())])
MOST_RECORDS = 500
_ROWS = 4_096
_MARKS_SORTED = 100_000


@dataclass(frozen=True)
class PublishTask:
    """Sends the records; called by mapInArrow.

    per_s: limit of one partition, on average; None: no limit. marks_read: offset up to which Spark has read each
    partition of the marks.
    """

    access: KafkaAccess
    transactional_id: str
    marks_topic: str
    marks_partitions: int
    per_s: float | None
    marks_read: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, batches: Batches) -> Batches:
        yield from _batches(self._sent(batches), SENT)

    def _sent(self, batches: Batches) -> Iterator[Row]:
        for partition, rows in groupby(rows_of(batches), key=lambda row: row["partition"]):
            producer = _PartitionProducer(self, partition)
            start_s, count = time.monotonic(), 0
            most = MOST_RECORDS if self.per_s is None else max(1, min(MOST_RECORDS, int(self.per_s)))
            for chunk in transactions(rows, most):
                if self.per_s is not None:
                    time.sleep(max(0.0, start_s + count / self.per_s - time.monotonic()))
                count += len(chunk)
                yield from producer.send(chunk)


class _PartitionProducer:
    """The only producer of a partition of the timer topic."""

    def __init__(self, job: PublishTask, partition: int) -> None:
        self._job = job
        self._id = f"{job.transactional_id}-{partition}"
        self._marks_partition = partition % job.marks_partitions
        self._marked: array[int] = array("q")
        """Offsets of marked timers, sorted."""
        self._marks_end = job.marks_read.get(self._marks_partition, 0)
        self._refused_targets: dict[str, str] = {}
        """Targets that accept no record, with the broker's code."""
        self._begin()

    def _begin(self) -> None:
        """Start the producer. From now on no other producer can add a mark, so marks are read again."""
        self._sender = TransactionalSender(self._job.access, self._id, "backfill")
        self._has_marks = False

    def send(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Send all in one transaction; if that fails, one by one. Return the outcomes."""
        todo = []
        for row in rows:
            if self._is_marked(row):
                yield _outcome(row, "backfilled-before")
            elif _is_expired(row):
                yield _outcome(row, "expired")
            elif row["target"] in self._refused_targets:
                yield _sent(row, self._refused_targets[row["target"]])
            else:
                todo.append(row)
        code = self._send(todo)
        for row in todo:
            yield self._send_alone(row) if code is not None and len(todo) > 1 else self._judged(row, code)

    def _send_alone(self, row: Row) -> Row:
        if _is_expired(row) and not self._is_marked(row):
            return _outcome(row, "expired")
        return self._judged(row, self._refused_targets.get(row["target"]) or self._send([row]))

    def _judged(self, row: Row, code: str | None) -> Row:
        """Return the outcome of a row that was sent alone, or of one of a committed transaction."""
        if code is not None and code in TOPIC_REFUSAL_CODES:
            self._refused_targets[row["target"]] = code
        return _sent(row, code)

    def _send(self, rows: Sequence[Row]) -> str | None:
        """Send the rows in a transaction. Return None if it is committed, else the broker's code."""
        left = [row for row in rows if not self._is_marked(row)]
        if not left:
            return None
        try:
            self._sender.send([*map(delivery, left), *map(self._mark, left)])
        except TransactionAbortedError as refused:
            self._begin()  # the marks show whether a commit without an answer took effect
            return None if all(map(self._is_marked, left)) else str(refused)
        return None

    def _is_marked(self, row: Row) -> bool:
        if not self._has_marks:
            found = self._new_marks(f"{row['origin'].rpartition('/')[0]}/".encode())
            chunks = iter(lambda: array("q", sorted(islice(found, _MARKS_SORTED))), array("q"))
            self._marked = array("q", merge(self._marked, *chunks))
            self._has_marks = True
        at = bisect_left(self._marked, row["offset"])
        return at < len(self._marked) and self._marked[at] == row["offset"]

    def _new_marks(self, prefix: bytes) -> Iterator[int]:
        """Return the offsets of timers that were marked since the last read. `prefix`: of their origins."""
        for mark in read_committed(self._job.access, self._job.marks_topic, self._marks_partition, self._marks_end):
            self._marks_end = max(self._marks_end, mark.offset + 1)
            if mark.value is not None and mark.key is not None and mark.key.startswith(prefix):
                yield int(mark.key.removeprefix(prefix))

    def _mark(self, row: Row) -> OutgoingRecord:
        value = json.dumps({"v": 1, "at_ms": now_ms(), "target": row["target"]}).encode()
        return OutgoingRecord(self._job.marks_topic, self._marks_partition, row["origin"].encode(), value, [])


def _is_expired(row: Row) -> bool:
    """Return True if the timer has expired by now: with a rate limit, long after it was chosen."""
    return row["expire_ms"] is not None and row["expire_ms"] <= now_ms()


def _sent(row: Row, code: str | None) -> Row:
    """Return the outcome. `code`: the broker's, if the record was refused."""
    return _outcome(row, "sent" if code is None else "failed", code)


def _outcome(row: Row, outcome: str, detail: str | None = None) -> Row:
    return {"origin": row["origin"], "outcome": outcome, "detail": detail}


def delivery(row: Row) -> OutgoingRecord:
    """Return the record that a bridge would deliver now."""
    added = {names.ORIGIN: row["origin"], names.DELIVER_MS: row["due_ms"], names.RELEASED_MS: now_ms(), names.ROLLS: 0}
    if row["occurrence"] is not None:
        added[names.OCCURRENCE] = row["occurrence"]
    headers = [(header["key"], header["value"]) for header in row["headers"]]
    headers += [(name, str(value).encode()) for name, value in added.items()]
    partition = -1 if row["want_partition"] is None else row["want_partition"]
    return OutgoingRecord(row["target"], partition, row["key"], row["value"], headers)


def _batches(rows: Iterator[Row], schema: pa.Schema) -> Batches:
    while some := [*islice(rows, _ROWS)]:
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
