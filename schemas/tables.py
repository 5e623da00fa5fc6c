"""Tables that jobs write: each column is defined once, for Arrow and for Spark.

    Column("due_ms", INT64, "...")  ->  REQUESTS.arrow()      pyarrow.field("due_ms", int64)
                                    ->  REQUESTS.spark_ddl()  "`due_ms` BIGINT"

`requests`: a row for each audited request, and for each origin that a delivery names without a request.
`topics`:   a row for each real topic. `hours`: a row for each real topic and hour of delivery; `minutes`: and minute.
Times are epoch ms, lateness is in ms. The state of the audit for its next run is in schemas.audit_state.
The Spark form is text (DDL), so that readers of these tables do not need Spark.
"""

from enum import Enum, StrEnum
from typing import NamedTuple

import pyarrow as pa


class AuditClass(StrEnum):
    """Class of a request, exactly one for each. The rules are in spark_jobs.audit_rules.classes."""

    UNEXPLAINED = "unexplained"
    REJECTED_BUT_DELIVERED = "rejected-but-delivered"
    MALFORMED_BUT_DELIVERED = "malformed-but-delivered"
    CANCELLED_BUT_DELIVERED = "cancelled-but-delivered"
    EXPIRED_BUT_DELIVERED = "expired-but-delivered"
    DUPLICATE = "duplicate"
    EARLY = "early"
    ALTERED = "altered"
    MISSING = "missing"
    EXPIRED = "expired"
    REJECTED = "rejected"
    MOVED = "moved"
    LATE = "late"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    CANCEL_DONE = "cancel-done"
    CANCEL_TOO_LATE = "cancel-too-late"
    CANCEL_NOT_FOUND = "cancel-not-found"
    SWITCH = "switch"
    MOVE = "move"
    PENDING = "pending"

    @property
    def column(self) -> str:
        """Return the name of its count in the `topics` table."""
        return self.value.replace("-", "_")


_CONTENTS = {"key": pa.binary(), "value": pa.binary(), "headers": pa.binary()}
_SPARK_NAMES = {
    pa.string(): "STRING",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.binary(): "BINARY",
    pa.bool_(): "BOOLEAN",
}


def spark_name(type_: pa.DataType) -> str:
    """Return the type in Spark's DDL."""
    if pa.types.is_list(type_):
        return f"ARRAY<{spark_name(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'`{f.name}`: {spark_name(f.type)}' for f in type_)}>"
    return _SPARK_NAMES[type_]


class Kind(Enum):
    """A column's type in Arrow."""

    STRING = pa.string()
    STRINGS = pa.list_(pa.field("element", pa.string()))
    INT32 = pa.int32()
    INT64 = pa.int64()
    BOOL = pa.bool_()
    CONTENTS = pa.struct(list(_CONTENTS.items()))
    """Digests of what must be delivered unchanged."""
    GOT = pa.struct([("topic", pa.string()), *_CONTENTS.items(), ("deliver_ms", pa.int64()), ("control", pa.bool_())])
    """A delivered record; `control`: True if its headers of ours are exactly those that the bridge adds."""
    ASKED = pa.struct(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("requested_ms", pa.int64()),
            ("kind", pa.string()),
            ("target", pa.string()),
            ("due_ms", pa.int64()),
            ("expected_ms", pa.int64()),
            ("expire_ms", pa.int64()),
            ("want_partition", pa.int32()),
            ("malformed", pa.bool_()),
            ("id", pa.binary()),
            ("own_key", pa.binary()),
            ("want", pa.struct(list(_CONTENTS.items()))),
        ]
    )
    """A parsed request; `id`, `own_key` and `want` are digests."""
    PLACE = pa.struct(
        [
            ("delivered_ms", pa.int64()),
            ("delivered_topic", pa.string()),
            ("delivered_partition", pa.int32()),
            ("delivered_offset", pa.int64()),
            ("clock", pa.string()),
            ("released_ms", pa.int64()),
            ("delivered_rolls", pa.int32()),
        ]
    )
    """Place and time of a record on a real topic."""
    NEXT = pa.struct(
        [
            ("kind", pa.string()),
            ("origin", pa.string()),
            ("ms", pa.int64()),
            ("answered_ms", pa.int64()),
            ("left", pa.bool_()),
        ]
    )
    """The next request with the same id. `answered_ms`: its first receipt; `left`: delivered or rejected."""
    SAYS = pa.struct(
        [
            ("action", pa.string()),
            ("target", pa.string()),
            ("due_ms", pa.int64()),
            ("expire_ms", pa.int64()),
            ("want_partition", pa.int32()),
            ("id", pa.binary()),
            ("own_key", pa.binary()),
            ("want", pa.struct(list(_CONTENTS.items()))),
        ]
    )
    """Fields that a copy has in common with its request."""


class Column(NamedTuple):
    name: str
    kind: Kind
    meaning: str


class Table(NamedTuple):
    """A folder of Parquet files and what is in it."""

    name: str
    columns: tuple[Column, ...]

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema. Every field is nullable, as Spark writes no other."""
        return pa.schema([pa.field(c.name, c.kind.value, metadata={"comment": c.meaning}) for c in self.columns])

    def spark_ddl(self) -> str:
        """Return the DDL for StructType.fromDDL, `DataFrameReader.schema` and CREATE TABLE."""
        return ", ".join(f"`{c.name}` {spark_name(c.kind.value)}" for c in self.columns)


REQUESTS = Table(
    "requests",
    (
        Column("origin", Kind.STRING, "topic/partition/offset of the request: its identity"),
        Column("topic", Kind.STRING, "timer topic of the request; null: no such request (class unexplained)"),
        Column("partition", Kind.INT32, "partition of the request"),
        Column("offset", Kind.INT64, "offset of the request"),
        Column("requested_ms", Kind.INT64, "timestamp of the request on the timer topic"),
        Column(
            "kind", Kind.STRING, "schedule, replace, cancel, move, pause, resume, or copy (says it is one, but is none)"
        ),
        Column("target", Kind.STRING, "the real topic that it names; null: none, or no legal name"),
        Column(
            "due_ms",
            Kind.INT64,
            "when it was to be delivered, moves counted; null: its headers do not say, or it is a cancel",
        ),
        Column(
            "moved_low_ms", Kind.INT64, "the earliest of its time and those that requests moved it to; null: none did"
        ),
        Column("expire_ms", Kind.INT64, "from when on it was not to be delivered any more; null: never"),
        Column("class", Kind.STRING, "what became of it: a value of AuditClass"),
        Column("faults", Kind.STRINGS, "every fault that was found, worst first; empty: none"),
        Column("altered", Kind.STRINGS, "which parts of the delivered or rejected record differ from the request"),
        Column("copies", Kind.INT64, "rolled copies of it on the timer topic"),
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
        Column("rejected_ms", Kind.INT64, "timestamp of the rejected record"),
        Column("ended_by", Kind.STRING, "origin of the next request with its id in its partition, if any"),
        Column("ended_by_ms", Kind.INT64, "timestamp of that request"),
        Column(
            "proof",
            Kind.STRING,
            "what `cancelled`, `replaced` and the classes of cancels rest on: receipt, or order (of the timer topic)",
        ),
        Column("open", Kind.BOOL, "its class may change: carried to the next run of a daily audit"),
    ),
)

_LATENESS = (
    Column("lateness_min_ms", Kind.INT64, "of first deliveries; negative: early"),
    Column("lateness_p50_ms", Kind.INT64, "of first deliveries"),
    Column("lateness_p99_ms", Kind.INT64, "of first deliveries"),
    Column("lateness_max_ms", Kind.INT64, "of first deliveries"),
)
_CLOCK = Column("clock", Kind.STRING, "LogAppendTime, CreateTime, or both with a comma between")

TOPICS = Table(
    "topics",
    (
        Column("topic", Kind.STRING, "the real topic; null: requests without a readable one, and cancels"),
        Column("requests", Kind.INT64, "requests that name it"),
        Column("faults", Kind.INT64, "rows in a class that is a fault"),
        *(Column(c.column, Kind.INT64, f"rows in the class {c}") for c in AuditClass),
        *_LATENESS,
        _CLOCK,
    ),
)

HOURS = Table(
    "hours",
    (
        Column("topic", Kind.STRING, "the real topic"),
        Column("hour_ms", Kind.INT64, "the hour's begin: first deliveries with a timestamp in it are counted"),
        Column("deliveries", Kind.INT64, "first deliveries"),
        *_LATENESS,
        _CLOCK,
    ),
)

MINUTES = Table(
    "minutes",
    (
        Column("topic", Kind.STRING, "the real topic"),
        Column("minute_ms", Kind.INT64, "the minute's begin: first deliveries with a timestamp in it are counted"),
        Column("deliveries", Kind.INT64, "first deliveries; what came later than a batch is in a row of a later one"),
        Column("lateness_p50_ms", Kind.INT64, "of these; negative: early"),
        Column("lateness_p90_ms", Kind.INT64, "of these"),
        Column("lateness_p99_ms", Kind.INT64, "of these"),
        Column("lateness_max_ms", Kind.INT64, "of these"),
        _CLOCK,
    ),
)

BACKFILL = Table(
    "backfill",
    (
        Column("origin", Kind.STRING, "the missing request"),
        Column("partition", Kind.INT32, "partition of the request"),
        Column("offset", Kind.INT64, "offset of the request"),
        Column("requested_ms", Kind.INT64, "timestamp of the request"),
        Column("target", Kind.STRING, "the real topic that it names"),
        Column("due_ms", Kind.INT64, "when it was to be delivered"),
        Column("outcome", Kind.STRING, "what became of it: docs/spark-jobs.md has the list"),
        Column("detail", Kind.STRING, "the broker's code where it failed; the later request where that superseded it"),
    ),
)
