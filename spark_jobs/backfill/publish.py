"""The task of a backfill in Spark's Python workers: it sends rows of one partition of the timer topic, in order.

    bodies -> origin, outcome: sent | backfilled-before | expired | failed (and why)

Rows are sent in order. Memory holds one transaction's rows, and 8 bytes for each mark that was written since Spark read
the marks: by another run, by a task that died, or by this one if a transaction is aborted. What happens then:
spark_jobs/kafka/resend.py.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from kafka_timer import headers as names
from schemas.resent import MarkTopics
from spark_jobs.kafka.admin import Place
from spark_jobs.kafka.resend import RECORD, TOPIC_REFUSAL_CODES, MarkReader, OutgoingRecord, Resender, transactions
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import Batches, Row, batches_of, rows_of

_TIMES = [(name, pa.int64()) for name in ("offset", "requested_ms", "due_ms", "expire_ms")]
_ASKED = [("origin", pa.string()), ("partition", pa.int32()), *_TIMES, ("target", pa.string())]
BODIES = pa.schema([*_ASKED, ("want_partition", pa.int32()), ("occurrence", pa.int32()), *RECORD])
SENT = pa.schema([("origin", pa.string()), ("outcome", pa.string()), ("detail", pa.string())])
MOST_RECORDS = 500


@dataclass(frozen=True)
class PublishTask:
    """Sends the records; called by mapInArrow.

    per_s: limit of one partition, on average; None: no limit. marks_read: offset by partition up to which Spark has
    read the marks.
    """

    access: KafkaAccess
    transactional_id: str
    timer_topic: str
    marks: MarkTopics
    marks_partitions: int
    per_s: float | None
    marks_read: Mapping[Place, int] = field(default_factory=dict)

    def __call__(self, batches: Batches) -> Batches:
        return batches_of(self._sent(batches), SENT)

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
    """The only producer of a partition of the timer topic, with the marks of its timers."""

    def __init__(self, job: PublishTask, partition: int) -> None:
        self._job, self._prefix = job, f"{job.timer_topic}/{partition}/"
        self._marks_partition = job.marks.partition(job.marks_partitions, partition)
        self._refused_targets: dict[str, str] = {}
        """Targets that accept no record, with the broker's code."""
        self._reader = MarkReader(job.access, job.marks, partition, job.marks_read)
        self._marked = np.empty(0, np.int64)
        """Sorted offsets of the timers."""
        self._resender = Resender(job.access, f"{job.transactional_id}-{partition}", "backfill", self)

    def read(self) -> None:
        names = (name for name, _ in self._reader.new() if name.startswith(self._prefix))
        found = np.fromiter((int(name.removeprefix(self._prefix)) for name in names), np.int64)
        self._marked = np.union1d(self._marked, found)

    def has(self, row: Row) -> bool:
        at = int(np.searchsorted(self._marked, row["offset"]))
        return at < len(self._marked) and bool(self._marked[at] == row["offset"])

    def send(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Send all in one transaction; if that fails, one by one. Return the outcomes."""
        todo = []
        for row in rows:
            refusal = self._refused_targets.get(row["target"])
            if self.has(row):
                yield _outcome(row, "backfilled-before")
            elif row["expire_ms"] is not None and row["expire_ms"] <= now_ms():  # a rate limit delays it
                yield _outcome(row, "expired")
            elif refusal is not None:
                yield _outcome(row, "failed", refusal)
            else:
                todo.append(row)
        code = self._resender.send(todo, self._records)
        for row in todo:
            if code is not None and len(todo) > 1:
                yield from self.send([row])
                continue
            if code in TOPIC_REFUSAL_CODES:
                self._refused_targets[row["target"]] = code
            yield _outcome(row, "sent" if code is None else "failed", code)

    def _records(self, rows: Sequence[Row]) -> Iterator[OutgoingRecord]:
        yield from map(delivery, rows)
        for row in rows:
            value = json.dumps({"v": 1, "at_ms": now_ms(), "target": row["target"]}).encode()
            marks = self._job.marks
            yield OutgoingRecord(marks.topic, self._marks_partition, marks.key(row["origin"]), value, [])


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


def now_ms() -> int:
    return time.time_ns() // 1_000_000
