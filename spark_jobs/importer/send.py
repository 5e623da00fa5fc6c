"""Step 2 of an import, in Spark's Python workers: send staged rows, and mark them in the same transaction.

    NAME/part-7.parquet        mark: rows of this part that are done
    NAME/part-7.parquet/41     mark: the broker's code for a row that it refuses

NAME is of one import; schemas.resent has the bytes. Each part has one transactional id (spark_jobs/kafka/resend.py).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from kafka_timer.headers import ID
from kafka_timer.murmur2 import partition_of
from schemas.resent import MarkTopics
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.resend import MarkReader, OutgoingRecord, Resender, transactions
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.tables import Batches, Row, rows_of

MOST_ROWS = 1_000
"""Most rows of a transaction."""
SENT = pa.schema([("part", pa.string()), ("sent", pa.int64())])
_RECORD_ERRORS = ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP")
"""Codes that depend on the record alone: a retry would fail again."""


@dataclass
class ImportMarks:
    """The marks of one import, as far as they were read: by the driver, then by each worker from there on."""

    reader: MarkReader
    topics: MarkTopics
    name: str
    done: dict[str, int] = field(default_factory=dict)
    """Rows of each part that are done."""
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    """Codes of rows by part and row."""

    def read(self) -> None:
        for name, value in self.reader.new():
            import_name, *at = name.split("/")
            if import_name != self.name:
                continue
            told = json.loads(value)
            if len(at) == 1:
                self.note(at[0], told["rows"])
            else:
                self.refused[at[0], int(at[1])] = told["failed"]

    def note(self, part: str, rows: int) -> None:
        self.done[part] = max(rows, self.done.get(part, 0))

    def has(self, row: Row) -> bool:
        return bool(row["row"] < self.done.get(row["part"], 0))

    def record(self, at: str, **told: object) -> OutgoingRecord:
        """Return the mark of a part, or of a row of it. told: `rows` that are done, or the code as `failed`."""
        value = json.dumps({"v": 1, **told}).encode()
        return OutgoingRecord(self.topics.topic, 0, self.topics.key(f"{self.name}/{at}"), value, [])


@dataclass(frozen=True)
class SendTask:
    """Sends staged rows: RECORD, and the `part` and `row` of each, by which they are sorted. Called by mapInArrow."""

    access: KafkaAccess
    marks: ImportMarks
    timer_topic: str
    partitions: int
    transactional_id: str

    def __call__(self, batches: Batches) -> Batches:
        for part, rows in groupby(rows_of(batches), key=lambda row: row["part"]):
            yield pa.RecordBatch.from_pylist([{"part": part, "sent": _Part(self, part).send_all(rows)}], schema=SENT)

    def outgoing(self, row: Row) -> OutgoingRecord:
        """Return the record. With an id, its partition is the one of its later cancel."""
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        id_ = dict(headers).get(ID)
        partition = -1 if id_ is None else partition_of(id_, self.partitions)
        return OutgoingRecord(self.timer_topic, partition, row["key"], row["value"], headers)


class _Part:
    """The only producer of a staged file."""

    def __init__(self, job: SendTask, name: str) -> None:
        self._job, self._name, self._marks = job, name, job.marks
        id_ = f"{job.transactional_id}-{job.marks.name}-{name}"
        self._resender = Resender(job.access, id_, "run of this import", job.marks)

    def send_all(self, rows: Iterator[Row]) -> int:
        """Send the rows that are not done, and return how many were sent."""
        start, refused = self._marks.done.get(self._name, 0), 0
        for chunk in transactions(rows, MOST_ROWS):
            if self._send(chunk) is None:
                continue
            for row in chunk:
                code = self._send([row])
                if code is not None:
                    self._pass_over(row, code)
                    refused += 1
        return self._marks.done.get(self._name, 0) - start - refused

    def _send(self, rows: Sequence[Row]) -> str | None:
        """Send those of the rows that are not done. Return None if they are then, else the broker's code for one."""
        code = self._resender.send(rows, lambda left: [*map(self._job.outgoing, left), self._mark(rows)])
        if code is None:
            self._marks.note(self._name, rows[-1]["row"] + 1)
        elif code not in _RECORD_ERRORS:
            raise JobFailedError(f"{self._name}: the broker takes no record ({code}): run it again")
        return code

    def _pass_over(self, row: Row, code: str) -> None:
        """Mark the row as done and as refused, in one transaction."""
        refusal = self._marks.record(f"{self._name}/{row['row']}", failed=code)
        wrong = self._resender.send([row], lambda left: [refusal, self._mark(left)])
        if wrong is not None:
            raise JobFailedError(f"{self._name}: the broker takes no mark ({wrong}): run it again")
        self._marks.note(self._name, row["row"] + 1)

    def _mark(self, rows: Sequence[Row]) -> OutgoingRecord:
        return self._marks.record(self._name, rows=rows[-1]["row"] + 1)
