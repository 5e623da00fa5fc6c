"""Tables that an audit by day or batch keeps for the next run, so that its cost depends on the new records.

    open/PART      evidence of open timers, sorted by when each has to be looked at again (`wake_ms`)
    gone/PART      rows of earlier parts of `open` that no longer count, as the timer was judged again
    evidence/PART  evidence of timers that were closed in this part, sorted by partition and offset
    state/PART     part.json: which parts of `open` hold the open timers
    days, batches  one row: counts of the part
    standing/PART  stream: rows of `requests` that were written and may still change; pending deliveries too
    untold/PART    stream: deliveries of minutes that are not over
    spans/PART     the offsets that have been read; written last: it commits the part

PART is day=D, of a stream day=D/batch=N. Evidence is a monoid: counts are added, a `_low` or a first one is a minimum,
a `_high` is a maximum. A record that is read on day 9 joins the evidence of day 1, whatever the order of reading.
"""

from schemas.tables import REQUESTS, AuditClass, Column, Kind, Table, lateness_columns

EVIDENCE = Table(
    "evidence",
    Column("origin", Kind.STRING, "topic/partition/offset of the request"),
    Column("asked", Kind.ASKED, "the request; null: not seen"),
    Column("copies", Kind.INT64, "copies of it; counted again from claims in each run"),
    Column("rolls", Kind.INT32, "the highest timer-rolls of them; found again in each run"),
    Column("deliveries", Kind.INT64, "records on real topics"),
    Column("place", Kind.PLACE, "the first of them"),
    Column("got_low", Kind.GOT, "least contents of them"),
    Column("got_high", Kind.GOT, "greatest contents of them: equal to the least if all are alike"),
    Column("rejections", Kind.INT64, "records on the rejected topic"),
    Column("returned_low", Kind.CONTENTS, "least contents of them"),
    Column("returned_high", Kind.CONTENTS, "greatest contents of them"),
    Column("error", Kind.STRING, "their code"),
    Column("rejected_ms", Kind.INT64, "timestamp of the first of them"),
    Column("answered_ms", Kind.INT64, "timestamp of the first receipt that answers it (not: delivered, rejected)"),
    Column("told_done", Kind.INT64, "receipts which say that it cancelled or replaced something"),
    Column("told_missed", Kind.STRING, "not-found, too-late or (refused at intake) rejected, if a receipt says so"),
    Column("told_ended", Kind.INT64, "receipts which say that it was cancelled or replaced"),
    Column("told_by_low", Kind.STRING, "least `kind request` of these receipts: `cancelled timer.requests/0/12`"),
    Column("told_by_high", Kind.STRING, "greatest of these: equal to the least if all are alike"),
    Column("told_ended_ms", Kind.INT64, "timestamp of the first of these receipts"),
    Column("next", Kind.NEXT, "the next request with its id"),
    Column("moved_low", Kind.INT64, "the earliest time that a request has moved it to"),
    Column("moved_high", Kind.INT64, "the latest of these times"),
    Column("pause", Kind.PAUSE, "its last pause, or the last one before its delivery"),
    Column("follows", Kind.STRING, "the request before it with its id"),
    Column("scheduled_ms", Kind.INT64, "of a recurring timer: the occurrence's time by the rule, in its copies"),
)

_PART = Column("part", Kind.INT64, "number of the part that wrote it: of two rows of an origin, the later one counts")

OPEN = Table(
    "open",
    *EVIDENCE.columns,
    Column("claims", Kind.CLAIMS, "its copies, or the claim itself if it is an open claim"),
    Column("family", Kind.STRING, "its origin, or the origin that an open claim claims"),
    Column("chain", Kind.INT64, "hash of its partition and id; null: it has no id"),
    Column("wake_ms", Kind.INT64, "it is read by the first part whose time is not before this"),
    _PART,
)

_JUDGED_AGAIN = Column("origin", Kind.STRING, "the timer that was judged again")
GONE = Table("gone", _JUDGED_AGAIN, Column("wake_ms", Kind.INT64, "of its row"), _PART)

CLOSED = Table(
    "evidence",
    *EVIDENCE.columns,
    Column("at_partition", Kind.INT32, "partition of the origin"),
    Column("at_offset", Kind.INT64, "offset of the origin"),
    _PART,
)

SPANS = Table(
    "spans",
    Column("topic", Kind.STRING, "any topic that the audit reads"),
    Column("partition", Kind.INT32, "its partition"),
    Column("first", Kind.INT64, "first offset of an interval that was read without a gap"),
    Column("end", Kind.INT64, "its end; the next run begins at the last one of the partition"),
    Column("from_log_start", Kind.BOOL, "the log began at the first interval when it was read"),
    Column("topic_id", Kind.STRING, "Kafka's id of the topic; null: unknown"),
    Column("since_ms", Kind.INT64, "all that it got since then was read; what came earlier may be gone"),
)

DAYS = Table(
    "days",
    Column("as_of_ms", Kind.INT64, "the audit's time"),
    Column("requests", Kind.INT64, "rows that were judged"),
    Column("faults", Kind.INT64, "rows in a class that is a fault"),
    *(Column(c.column, Kind.INT64, f"rows in the class {c}") for c in AuditClass),
    *lateness_columns("p50", "p99", "max"),
)

OPEN_VERDICTS = Table("standing", *REQUESTS.columns)

UNFINISHED_MINUTES = Table(
    "untold",
    Column("topic", Kind.STRING, "the real topic"),
    Column("delivered_ms", Kind.INT64, "timestamp of a first delivery"),
    Column("lateness_ms", Kind.INT64, "its lateness"),
    Column("clock", Kind.STRING, "of both"),
)

BATCHES = Table(
    "batches",
    Column("batch", Kind.INT64, "its number"),
    Column("as_of_ms", Kind.INT64, "the watermark: all records of the topics up to then have been read"),
    Column("written_ms", Kind.INT64, "when all of it was written, by the audit's clock"),
    Column("rows", Kind.INT64, "rows of `requests` that it wrote"),
    Column("faults", Kind.INT64, "rows among them that are a fault"),
    *(Column(c.column, Kind.INT64, f"rows among them in the class {c}") for c in AuditClass),
    Column("standing_faults", Kind.INT64, "faults up to this batch that may still be corrected: missing ones"),
    Column("open", Kind.INT64, "timers that are open after it"),
    Column("gaps", Kind.STRINGS, "what retention took before it was read"),
)
