"""Tables that jobs write: each column is defined once, by its type in Arrow.

    Column("due_ms", INT64, "...")  ->  REQUESTS.arrow()  pyarrow.field("due_ms", int64)

`requests`: a row for each audited request, and for each origin that a delivery names without a request.
`topics`:   a row for each real topic. `hours`: a row for each real topic and hour of delivery; `minutes`: and minute.
`lateness`: how many deliveries had which lateness, by real topic and minute of delivery.
Times are epoch ms, lateness is in ms. The state of the audit for its next run is in schemas.audit_state.
"""

from enum import Enum, StrEnum
from typing import NamedTuple

import pyarrow as pa


class AuditClass(StrEnum):
    """Class of a request, exactly one for each. The rules are in spark_jobs.audit_rules.verdicts."""

    WAIVED = "waived"
    UNSTAMPED = "unstamped"
    UNEXPLAINED = "unexplained"
    REJECTED_BUT_DELIVERED = "rejected-but-delivered"
    MALFORMED_BUT_DELIVERED = "malformed-but-delivered"
    CANCELLED_BUT_DELIVERED = "cancelled-but-delivered"
    PAUSED_BUT_DELIVERED = "paused-but-delivered"
    EXPIRED_BUT_DELIVERED = "expired-but-delivered"
    WRONG_ORIGIN = "wrong-origin"
    DUPLICATE = "duplicate"
    EARLY = "early"
    OFF_RULE = "off-rule"
    ALTERED = "altered"
    WRONGLY_REJECTED = "wrongly-rejected"
    MISSING = "missing"
    BROKEN_OFF = "broken-off"
    FALSE_RECEIPT = "false-receipt"
    UNJUDGED = "unjudged"
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
    HELD = "held"
    PENDING = "pending"

    @property
    def column(self) -> str:
        """Its count in the table `topics`."""
        return self.value.replace("-", "_")


_TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "BINARY": pa.binary(), "BOOLEAN": pa.bool_()}


def _struct(fields: str, *more: tuple[str, pa.DataType]) -> pa.DataType:
    """Return the type of a struct with these fields, names and types of Spark, and `more`."""
    named = (field.split() for field in fields.split(", "))
    return pa.struct([*((name, _TYPES[type_]) for name, type_ in named), *more])


_HASHES = "key BIGINT, value BIGINT, headers BIGINT"
_WANT = ("want", _struct(_HASHES))


class Kind(Enum):
    """A column's type in Arrow."""

    STRING = pa.string()
    STRINGS = pa.list_(pa.field("element", pa.string()))
    INT32 = pa.int32()
    INT64 = pa.int64()
    BOOL = pa.bool_()
    CONTENTS = _struct(_HASHES)
    """Hashes of what must be delivered unchanged."""
    GOT = _struct(f"topic STRING, {_HASHES}, deliver_ms BIGINT, control BOOLEAN, trace BINARY, occurrence INT")
    """A delivered record; `control`: True if its headers of ours are exactly those that the bridge adds.

    trace: digest of its trace id; null: it has none. occurrence: its timer-occurrence.
    """
    ASKED = _struct(
        "topic STRING, partition INT, offset BIGINT, requested_ms BIGINT, kind STRING, target STRING, due_ms BIGINT, "
        "expected_ms BIGINT, expire_ms BIGINT, want_partition INT, malformed BOOLEAN, id BINARY, own_key BIGINT, "
        "whole_id BINARY, of_origin STRING, trace BINARY, rule STRING, occurrence INT, dubious BOOLEAN",
        _WANT,
    )
    """A parsed request; `id`, `whole_id` and `trace` are digests, `own_key` and `want` hashes of contents.

    want.headers: null if the bridge may read other headers than the audit.

    whole_id: of a cancel for RocketMQ's `topic+id`. Its `target` and `id` are those two; if a timer is pending under
    the whole text, the cancel is for that one. of_origin: the timer that a cancel or move names by its origin.
    rule, occurrence: of a recurring timer (spark_jobs.audit_rules.series). dubious: true if a bridge of 0.3 or later
    refuses it (an unknown header, a time in another unit), and an older one delivers it.
    """
    PLACE = _struct(
        "delivered_ms BIGINT, delivered_topic STRING, delivered_partition INT, delivered_offset BIGINT, clock STRING, "
        "released_ms BIGINT, delivered_rolls INT, key_partition INT"
    )
    """Place and time of a record on a real topic.

    key_partition: that of its key; null: it has no key, or the topic may have had fewer partitions then.
    """
    NEXT = _struct("kind STRING, origin STRING, ms BIGINT, answered_ms BIGINT, left BOOLEAN")
    """The next request with the same id. `answered_ms`: its first receipt; `left`: delivered or rejected."""
    PAUSE = _struct("ms BIGINT, ended_ms BIGINT, answered_ms BIGINT, since_ms BIGINT")
    """A pause of a timer, and its end by a resume or a move: timestamps of the requests. The later one is the higher.

    answered_ms: its first receipt. since_ms: end of the pause before it; or its own time, if only a copy tells of it.
    """
    SAYS = _struct(
        "action STRING, target STRING, due_ms BIGINT, expire_ms BIGINT, want_partition INT, id BINARY, own_key BIGINT, "
        "occurrence INT, rule STRING, scheduled_ms BIGINT",
        _WANT,
    )
    """Fields that a copy has in common with its request."""
    CLAIMS = pa.list_(
        pa.field(
            "element",
            _struct(
                "place STRING, topic STRING, partition INT, offset BIGINT, requested_ms BIGINT, origin STRING, "
                "origin_offset BIGINT, rolls INT, paused BOOLEAN",
                ("says", SAYS),
                ("asked", ASKED),
            ),
        )
    )
    """Records that claim to be copies of one request: spark_jobs.audit_rules.roll_copies."""


class Column(NamedTuple):
    name: str
    kind: Kind
    meaning: str


class Table:
    """A folder of Parquet files and what is in it."""

    def __init__(self, name: str, *columns: Column) -> None:
        self.name, self.columns = name, columns

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema. Every field is nullable, as Spark writes no other."""
        return pa.schema([pa.field(c.name, c.kind.value, metadata={"comment": c.meaning}) for c in self.columns])


REQUESTS = Table(
    "requests",
    Column("origin", Kind.STRING, "topic/partition/offset of the request; of a later occurrence with #2"),
    Column("topic", Kind.STRING, "timer topic of the request; null: no such request (class unexplained)"),
    Column("partition", Kind.INT32, "partition of the request"),
    Column("offset", Kind.INT64, "offset of the request"),
    Column("requested_ms", Kind.INT64, "timestamp of the request on the timer topic"),
    Column("kind", Kind.STRING, "schedule, replace, cancel, move, pause, resume, or copy (which it only claims)"),
    Column("target", Kind.STRING, "the real topic that it names; null: none, or no legal name"),
    Column("due_ms", Kind.INT64, "when it was to be delivered, after moves; null: it gives no time, a cancel"),
    Column("moved_low_ms", Kind.INT64, "the earliest of its time and those that it was moved to; null: not moved"),
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
        "of `cancelled`, `replaced`, classes of cancels: receipt, or order (of the topic); of `missing`,"
        " `unjudged`: unread-outcome if only its delivery or rejected record may be unread",
    ),
    Column("open", Kind.BOOL, "its class may change: carried to the next run of a daily audit"),
)


def lateness_columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(f"lateness_{name}_ms", Kind.INT64, "of first deliveries; negative: early") for name in names)


_LATENESS = lateness_columns("min", "p50", "p99", "max")
_CLOCK = Column("clock", Kind.STRING, "LogAppendTime, CreateTime, or both with a comma between")

TOPICS = Table(
    "topics",
    Column("topic", Kind.STRING, "the real topic; null: requests without a readable one, and cancels"),
    Column("requests", Kind.INT64, "requests that name it"),
    Column("faults", Kind.INT64, "rows in a class that is a fault"),
    *(Column(c.column, Kind.INT64, f"rows in the class {c}") for c in AuditClass),
    *_LATENESS,
    _CLOCK,
)

HOURS = Table(
    "hours",
    Column("topic", Kind.STRING, "the real topic"),
    Column("hour_ms", Kind.INT64, "start of the hour: first deliveries with a timestamp in it are counted"),
    Column("deliveries", Kind.INT64, "first deliveries"),
    *_LATENESS,
    _CLOCK,
)

LATENESS = Table(
    "lateness",
    Column("topic", Kind.STRING, "the real topic"),
    Column("minute_ms", Kind.INT64, "start of the minute: first deliveries with a timestamp in it are counted"),
    Column("value_ms", Kind.INT64, "lateness; from 10 s on rounded towards zero to four digits"),
    Column("deliveries", Kind.INT64, "first deliveries with this lateness"),
    Column("low_ms", Kind.INT64, "the least lateness of them, not rounded"),
    Column("high_ms", Kind.INT64, "the greatest"),
    Column("create_time", Kind.INT64, "how many of them have a timestamp by the sender's clock"),
    Column("log_append_time", Kind.INT64, "how many of them have one by the broker's"),
)
"""Counts: any percentile of any range of minutes follows from them."""

MINUTES = Table(
    "minutes",
    Column("topic", Kind.STRING, "the real topic"),
    Column("minute_ms", Kind.INT64, "start of the minute: first deliveries with a timestamp in it are counted"),
    Column("deliveries", Kind.INT64, "first deliveries; what came later than a batch is in a row of a later one"),
    *lateness_columns("p50", "p90", "p99", "max"),
    _CLOCK,
)

BACKFILL = Table(
    "backfill",
    Column("origin", Kind.STRING, "the missing request"),
    Column("partition", Kind.INT32, "partition of the request"),
    Column("offset", Kind.INT64, "offset of the request"),
    Column("requested_ms", Kind.INT64, "timestamp of the request"),
    Column("target", Kind.STRING, "the real topic that it names"),
    Column("due_ms", Kind.INT64, "when it was to be delivered"),
    Column("outcome", Kind.STRING, "outcome of the backfill: docs/audit.md has the list"),
    Column("detail", Kind.STRING, "the broker's code if it failed; what superseded it; the remedy of cannot-tell"),
)
