"""Records of the three kinds of topics, each with defaults that make a faultless pair.

asked = request(offset=7, due_ms=5_000)
history = History([asked], [delivery(asked)], [])          -> class delivered
history = History([asked], [delivery(asked, at_ms=4_999)]) -> class early
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from schemas import headers as names
from spark_jobs import rows
from spark_jobs.brokers import Span
from spark_jobs.classes import classify
from spark_jobs.table_io import RECORDS_DDL

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
AS_OF_MS = 100_000
SPANS = (Span("timer.requests", 0, 0, 1_000),)


class Record(NamedTuple):
    """One row as `read_records` gives it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    clock: str
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def header(self, name: str) -> bytes | None:
        return dict(self.headers).get(name)


def request(
    offset: int = 0,
    *,
    due_ms: int | None = 5_000,
    target: str | None = "orders",
    at_ms: int = 1_000,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    foreign: Headers = (("tenant", b"a"),),
    also: Headers = (),
) -> Record:
    """`also`: more control headers, or wrong ones."""
    time = [(names.DELIVER_MS, b"%d" % due_ms)] if due_ms is not None else []
    where = [(names.TOPIC, target.encode())] if target is not None else []
    headers = (*where, *time, *foreign, *also)
    return Record("timer.requests", 0, offset, at_ms, "LogAppendTime", key, value, headers)


def foreign_of(asked: Record) -> Headers:
    return tuple(header for header in asked.headers if header[0] not in names.CONTROL)


def delivery(
    asked: Record,
    *,
    at_ms: int | None = None,
    due_ms: int | None = None,
    topic: str = "orders",
    partition: int = 0,
    offset: int | None = None,
    clock: str = "LogAppendTime",
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    foreign: Headers | None = None,
    origin: str | None = None,
    also: Headers = (),
) -> Record:
    """What the bridge makes of a request, 3 ms late; `due_ms` where its header gives a delay or nothing."""
    due_ms = due_ms if due_ms is not None else int(asked.header(names.DELIVER_MS) or 0)
    at_ms = at_ms if at_ms is not None else due_ms + 3
    added = (
        (names.ORIGIN, (origin or asked.origin).encode()),
        (names.DELIVER_MS, b"%d" % due_ms),
        (names.RELEASED_MS, b"%d" % at_ms),
        (names.ROLLS, b"0"),
    )
    headers = (*(foreign if foreign is not None else foreign_of(asked)), *added, *also)
    place = offset if offset is not None else asked.offset
    return Record(topic, partition, place, at_ms, clock, key, value, headers)


def rejection(
    asked: Record, code: str = "bad-header", *, offset: int | None = None, value: bytes | None = b"value"
) -> Record:
    added = (
        (names.ERROR, code.encode()),
        (names.ERROR_DETAIL, b"why"),
        (names.ORIGIN, asked.origin.encode()),
    )
    place = offset if offset is not None else asked.offset
    headers = (*asked.headers, *added)
    return Record("timer.rejected", 0, place, asked.timestamp_ms + 2, "LogAppendTime", asked.key, value, headers)


@dataclass
class History:
    """What lies on the topics."""

    requests: list[Record] = field(default_factory=list)
    deliveries: list[Record] = field(default_factory=list)
    rejections: list[Record] = field(default_factory=list)

    def judged(self, spark: SparkSession, *, settle_ms: int = 0, spans: Sequence[Span] = SPANS) -> DataFrame:
        """The audit without Kafka: one row per origin, with its class."""
        requested, delivered, rejected = (
            spark.createDataFrame(records, RECORDS_DDL) for records in (self.requests, self.deliveries, self.rejections)
        )
        outcomes = rows.outcomes(rows.requests(requested), rows.deliveries(delivered), rows.rejections(rejected))
        inside = outcomes.where(F.col("requested") | ~rows.outside("timer.requests", spans))
        return classify(inside, as_of_ms=AS_OF_MS, settle_ms=settle_ms)

    def classes(self, spark: SparkSession, *, settle_ms: int = 0, spans: Sequence[Span] = SPANS) -> dict[str, str]:
        """Offset of the origin (or the whole of a foreign one) -> class."""
        found = self.judged(spark, settle_ms=settle_ms, spans=spans).select("origin", "class").collect()
        return {origin.removeprefix("timer.requests/0/"): name for origin, name in found}
