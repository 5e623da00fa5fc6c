"""Evidence of the audit: all that was seen of each origin, folded into one row.

A monoid: a count is added up, a `_low` or a first one is a minimum, a `_high` is a maximum. So the order in which
records are read does not matter.
"""

from schemas.tables import Column, Kind, Table

EVIDENCE = Table(
    "evidence",
    (
        Column("origin", Kind.STRING, "topic/partition/offset of the request"),
        Column("asked", Kind.ASKED, "the request; null: not seen"),
        Column("copies", Kind.INT64, "copies of it; told anew from claims in each run"),
        Column("rolls", Kind.INT32, "the highest timer-rolls of them; told anew in each run"),
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
        Column("next", Kind.NEXT, "the next request with its id; kept where that decided its class"),
    ),
)
