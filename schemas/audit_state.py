"""Tables that an audit by day or batch keeps for the next run, so that it reads new records and not the history.

    evidence/day=D/open=true|false   all observations of each origin; folding two rows of one origin gives one row
    claims/day=D                     records that claim to be copies of requests which are still open
    days/day=D                       one row: counts and lateness of that day's run, for the trend
    spans/day=D                      the offsets that have been read; written last: it commits the day

A streaming audit has `day=D/batch=N` in place of `day=D`, `batches` in place of `days`, and beside these

    standing/day=D/batch=N           rows of `requests` that were written and may still change; pending deliveries too
    untold/day=D/batch=N             deliveries of minutes that are not over

Evidence is a monoid: counts are added, a `_low` or a first one is a minimum, a `_high` is a maximum. So a record that
is read on day 9 joins the evidence of day 1, and the order of reading does not matter.
"""

from schemas.tables import REQUESTS, AuditClass, Column, Kind, Table, lateness_columns

EVIDENCE = Table(
    "evidence",
    (
        Column("origin", Kind.STRING, "topic/partition/offset of the request"),
        Column("asked", Kind.ASKED, "the request; null: not seen"),
        Column("copies", Kind.INT64, "copies of it; counted again from claims in each run"),
        Column("rolls", Kind.INT32, "the highest timer-rolls of them; found again in each run"),
        Column("deliveries", Kind.INT64, "records on real topics"),
        Column("place", Kind.PLACE, "the first of them"),
        Column("got_low", Kind.GOT, "least contents of them"),
        Column("got_high", Kind.GOT, "greatest contents of them: equal to the least where all are alike"),
        Column("rejections", Kind.INT64, "records on the rejected topic"),
        Column("returned_low", Kind.CONTENTS, "least contents of them"),
        Column("returned_high", Kind.CONTENTS, "greatest contents of them"),
        Column("error", Kind.STRING, "their code"),
        Column("rejected_ms", Kind.INT64, "timestamp of the first of them"),
        Column("answered_ms", Kind.INT64, "timestamp of the first receipt that answers it (not: delivered, rejected)"),
        Column("told_done", Kind.INT64, "receipts which say that it cancelled or replaced something"),
        Column("told_missed", Kind.STRING, "not-found or too-late, where a receipt says so"),
        Column("told_ended", Kind.INT64, "receipts which say that it was cancelled or replaced"),
        Column("told_by_low", Kind.STRING, "least `kind request` of these receipts: `cancelled timer.requests/0/12`"),
        Column("told_by_high", Kind.STRING, "greatest of these: equal to the least where all are alike"),
        Column("next", Kind.NEXT, "the next request with its id"),
        Column("moved_low", Kind.INT64, "the earliest time that a request has moved it to"),
        Column("moved_high", Kind.INT64, "the latest of these times"),
    ),
)

CLAIMS = Table(
    "claims",
    (
        Column("place", Kind.STRING, "topic/partition/offset of the record that says it is a copy"),
        Column("topic", Kind.STRING, "its timer topic"),
        Column("partition", Kind.INT32, "its partition"),
        Column("offset", Kind.INT64, "its offset"),
        Column("requested_ms", Kind.INT64, "its timestamp"),
        Column("origin", Kind.STRING, "the request that it says it is a copy of; null: none that could be"),
        Column("origin_offset", Kind.INT64, "that request's offset"),
        Column("rolls", Kind.INT32, "which copy it says it is"),
        Column("says", Kind.SAYS, "what it has to have in common with the request"),
        Column("asked", Kind.ASKED, "the record as a request of its own, which has to be refused"),
    ),
)

SPANS = Table(
    "spans",
    (
        Column("topic", Kind.STRING, "any topic that the audit reads"),
        Column("partition", Kind.INT32, "its partition"),
        Column("first", Kind.INT64, "the first offset that was ever read"),
        Column("end", Kind.INT64, "the next run begins here"),
        Column("from_log_start", Kind.BOOL, "nothing stood before `first` when it was read"),
    ),
)

DAYS = Table(
    "days",
    (
        Column("as_of_ms", Kind.INT64, "the audit's time"),
        Column("requests", Kind.INT64, "rows that were judged"),
        Column("faults", Kind.INT64, "rows in a class that is a fault"),
        *(Column(c.column, Kind.INT64, f"rows in the class {c}") for c in AuditClass),
        *lateness_columns("p50", "p99", "max"),
    ),
)

OPEN_VERDICTS = Table("standing", REQUESTS.columns)

UNFINISHED_MINUTES = Table(
    "untold",
    (
        Column("topic", Kind.STRING, "the real topic"),
        Column("delivered_ms", Kind.INT64, "timestamp of a first delivery"),
        Column("lateness_ms", Kind.INT64, "its lateness"),
        Column("clock", Kind.STRING, "of both"),
    ),
)

BATCHES = Table(
    "batches",
    (
        Column("batch", Kind.INT64, "its number"),
        Column("as_of_ms", Kind.INT64, "the watermark: what stood on the topics by then has been read"),
        Column("written_ms", Kind.INT64, "when all of it was written, by the audit's clock"),
        Column("rows", Kind.INT64, "rows of `requests` that it told"),
        Column("faults", Kind.INT64, "those of them that are a fault"),
        *(Column(c.column, Kind.INT64, f"those of them in the class {c}") for c in AuditClass),
        Column(
            "standing_faults",
            Kind.INT64,
            "faults of it or of earlier batches that may still be corrected: missing ones",
        ),
        Column("open", Kind.INT64, "timers that are carried to the next batch"),
        Column("gaps", Kind.STRINGS, "what retention took before it was read"),
    ),
)
