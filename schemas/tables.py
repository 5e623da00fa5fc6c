"""Tables that outlive the job which wrote them: each column said once, in an Arrow and in a Spark form.

    Column("due_ms", INT64, "...")  ->  REQUESTS.arrow()      pyarrow.field("due_ms", int64)
                                    ->  REQUESTS.spark_ddl()  "`due_ms` BIGINT"

`requests`: a row for each request that was audited, and one for each origin that a delivery names and no request has.
`topics`:   a row for each real topic. Times are epoch ms, lateness is in ms.
The Spark form is text (DDL), so that nobody needs Spark to read these tables.
"""

from enum import Enum, StrEnum
from typing import NamedTuple

import pyarrow as pa


class AuditClass(StrEnum):
    """What became of a request. Each has exactly one; the rules are in spark_jobs.classes."""

    UNEXPLAINED = "unexplained"
    REJECTED_BUT_DELIVERED = "rejected-but-delivered"
    MALFORMED_BUT_DELIVERED = "malformed-but-delivered"
    DUPLICATE = "duplicate"
    EARLY = "early"
    ALTERED = "altered"
    MISSING = "missing"
    REJECTED = "rejected"
    DELIVERED = "delivered"
    PENDING = "pending"

    @property
    def column(self) -> str:
        """Its count in the `topics` table."""
        return self.value.replace("-", "_")


class Kind(Enum):
    """A column's type, in both forms."""

    STRING = (pa.string(), "STRING")
    STRINGS = (pa.list_(pa.field("element", pa.string())), "ARRAY<STRING>")
    INT32 = (pa.int32(), "INT")
    INT64 = (pa.int64(), "BIGINT")


class Column(NamedTuple):
    name: str
    kind: Kind
    meaning: str


class Table(NamedTuple):
    """A folder of Parquet files and what is in it."""

    name: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """Every field may be null: a writer in Spark cannot promise more."""
        return pa.schema([pa.field(c.name, c.kind.value[0], metadata={"comment": c.meaning}) for c in self.columns])

    def spark_ddl(self) -> str:
        """For StructType.fromDDL, `DataFrameReader.schema` and CREATE TABLE."""
        return ", ".join(f"`{c.name}` {c.kind.value[1]}" for c in self.columns)


REQUESTS = Table(
    "requests",
    (
        Column("origin", Kind.STRING, "topic/partition/offset of the request: its identity"),
        Column("topic", Kind.STRING, "timer topic of the request; null: no such request (class unexplained)"),
        Column("partition", Kind.INT32, "partition of the request"),
        Column("offset", Kind.INT64, "offset of the request"),
        Column("requested_ms", Kind.INT64, "timestamp of the request on the timer topic"),
        Column("target", Kind.STRING, "the real topic that it names; null: none, or no legal name"),
        Column("due_ms", Kind.INT64, "when it was to be delivered; null: its headers do not say"),
        Column("class", Kind.STRING, "what became of it: a value of AuditClass"),
        Column("faults", Kind.STRINGS, "every fault that was found, worst first; empty: none"),
        Column("altered", Kind.STRINGS, "which parts of the delivered or rejected record differ from the request"),
        Column("deliveries", Kind.INT64, "how many records on real topics name this origin"),
        Column("rejections", Kind.INT64, "how many records on the rejected topic name this origin"),
        Column("delivered_topic", Kind.STRING, "where the first delivery is"),
        Column("delivered_partition", Kind.INT32, "where the first delivery is"),
        Column("delivered_offset", Kind.INT64, "where the first delivery is"),
        Column("delivered_ms", Kind.INT64, "timestamp of the first delivery, by `clock`"),
        Column("clock", Kind.STRING, "LogAppendTime (the broker's) or CreateTime (the bridge's, when it released it)"),
        Column("released_ms", Kind.INT64, "what the bridge says in timer-released-ms; shown, never judged by"),
        Column("lateness_ms", Kind.INT64, "delivered_ms - due_ms; negative: early"),
        Column("error", Kind.STRING, "the code in timer-error, when rejected"),
    ),
)

TOPICS = Table(
    "topics",
    (
        Column("topic", Kind.STRING, "the real topic; null: requests without a readable one"),
        Column("requests", Kind.INT64, "requests that name it"),
        Column("faults", Kind.INT64, "rows in a class that is a fault"),
        *(Column(c.column, Kind.INT64, f"rows in the class {c}") for c in AuditClass),
        Column("lateness_min_ms", Kind.INT64, "of first deliveries; negative: early"),
        Column("lateness_p50_ms", Kind.INT64, "of first deliveries"),
        Column("lateness_p99_ms", Kind.INT64, "of first deliveries"),
        Column("lateness_max_ms", Kind.INT64, "of first deliveries"),
        Column("clock", Kind.STRING, "LogAppendTime, CreateTime, or both with a comma between"),
    ),
)
