"""Tasks of a backfill in Spark's Python workers: rows of one partition of the timer topic at a time, in order.

    JudgeTask     origin, due, ...    ->  the same, and why it has to wait (spark_jobs.backfill.undeliverable)
    PublishTask   bodies              ->  origin, outcome: sent | backfilled-before | expired | failed (and why)

If a task dies, another one repeats its rows: its producer fences the former, and the marks show what was sent.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import pyarrow as pa

from schemas import headers as names
from schemas.tables import spark_name
from spark_jobs.backfill.undeliverable import SKEW_MS, JournalEntry, SettledTimers
from spark_jobs.kafka.admin import (
    TOPIC_REFUSAL_CODES,
    OutgoingRecord,
    TransactionAbortedError,
    TransactionalSender,
    committed_progress,
    read_committed,
)
from spark_jobs.kafka.security import KafkaAccess

_TIMER = [("origin", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
_TIMES = [("requested_ms", pa.int64()), ("due_ms", pa.int64()), ("expire_ms", pa.int64())]
_ASKED = [*_TIMER, *_TIMES, ("target", pa.string())]
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_RECORD = [("key", pa.binary()), ("value", pa.binary()), ("headers", pa.list_(_HEADER))]
WAITS = pa.schema([*_ASKED, ("earliest_ms", pa.int64()), ("ended_by", pa.string()), ("waits", pa.string())])
BODIES = pa.schema([*_ASKED, ("want_partition", pa.int32()), *_RECORD])
SENT = pa.schema([("origin", pa.string()), ("outcome", pa.string()), ("detail", pa.string())])
_MOST_RECORDS = 500
_MOST_BYTES = 8 << 20
_ROWS = 4_096

Row = dict[str, Any]
Batches = Iterable[pa.RecordBatch]


def ddl(schema: pa.Schema) -> str:
    """Return the schema as Spark's DDL."""
    return ", ".join(f"`{field.name}` {spark_name(field.type)}" for field in schema)


@dataclass(frozen=True)
class JudgeTask:
    """Finds timers that a bridge may still deliver; called by mapInArrow."""

    access: KafkaAccess
    group: str
    journal_topic: str

    def __call__(self, batches: Batches) -> Batches:
        yield from _batches(self._judged(batches), WAITS)

    def _judged(self, batches: Batches) -> Iterator[Row]:
        for partition, rows in groupby(_rows(batches), key=lambda row: row["partition"]):
            asked = list(rows)
            since_ms = max(0, min(row["requested_ms"] for row in asked) - SKEW_MS)
            topic = asked[0]["origin"].split("/")[0]
            # Progress before the journal: a newer journal record can only make a timer wait.
            told = committed_progress(self.access, self.group, topic, partition)
            settled = SettledTimers(told, self._journal(partition, since_ms) if told is not None else ())
            for row in asked:
                sent_ms, due_ms = row["requested_ms"], row["due_ms"]
                why = settled.reason_to_wait(row["offset"], max(due_ms, sent_ms), row["target"], requested_ms=sent_ms)
                yield {**row, "waits": why}

    def _journal(self, partition: int, since_ms: int) -> Iterator[JournalEntry]:
        for record in read_committed(self.access, self.journal_topic, partition, from_ms=since_ms):
            yield JournalEntry.read(record.timestamp_ms, record.value or b"")


@dataclass(frozen=True)
class PublishTask:
    """Sends the records; called by mapInArrow. `per_s`: average of one partition at most; None: no limit."""

    access: KafkaAccess
    transactional_id: str
    marks_topic: str
    marks_partitions: int
    per_s: float | None

    def __call__(self, batches: Batches) -> Batches:
        yield from _batches(self._sent(batches), SENT)

    def _sent(self, batches: Batches) -> Iterator[Row]:
        for partition, rows in groupby(_rows(batches), key=lambda row: row["partition"]):
            producer = _PartitionProducer(self, partition)
            start_s, count = time.monotonic(), 0
            for chunk in _chunks(rows, self.per_s):
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
        self._refused_targets: dict[str, str] = {}
        """Targets that accept no record, with the broker's code."""
        self._begin()

    def _begin(self) -> None:
        """Start the producer, then read the marks: after the start no other producer can add one."""
        self._sender = TransactionalSender(self._job.access, self._id, "backfill")
        marks = read_committed(self._job.access, self._job.marks_topic, self._marks_partition)
        self._marked = {mark.key for mark in marks if mark.value is not None}

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
        return row["origin"].encode() in self._marked

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
    headers = [(header["key"], header["value"]) for header in row["headers"]]
    headers += [(name, str(value).encode()) for name, value in added.items()]
    partition = -1 if row["want_partition"] is None else row["want_partition"]
    return OutgoingRecord(row["target"], partition, row["key"], row["value"], headers)


def _chunks(rows: Iterator[Row], per_s: float | None) -> Iterator[list[Row]]:
    most = _MOST_RECORDS if per_s is None else max(1, min(_MOST_RECORDS, int(per_s)))
    chunk: list[Row] = []
    size = 0
    for row in rows:
        bytes_ = len(row["key"] or b"") + len(row["value"] or b"") + sum(len(h["value"] or b"") for h in row["headers"])
        if chunk and (len(chunk) == most or size + bytes_ > _MOST_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += bytes_
    if chunk:
        yield chunk


def _rows(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def _batches(rows: Iterator[Row], schema: pa.Schema) -> Batches:
    while some := [*islice(rows, _ROWS)]:
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
