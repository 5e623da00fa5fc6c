"""Class of each request, by one table of rules and one pure function.

    origin  due_ms  deliveries  rejections  delivered_ms  next    ->  class      faults
    t/0/7   5000    1           0           5003          null        delivered  []
    t/0/8   5000    2           0           4998          null        duplicate  [duplicate, early]
    t/0/9   5000    0           0           null          null        missing    [missing]
    t/0/10  5000    0           0           null          cancel      cancelled  []

The first rule that holds names the class. `faults` lists every fault that holds, so that none hides another.

Ids: the timer topic shows that a request with the same id follows (`next`), not whether the bridge read it before the
release. A receipt shows when the bridge read it, by the broker's clock. Without a receipt, the request's timestamp plus
`tolerance_ms` is taken. docs/audit.md says what that proves.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer.headers import DELIVER_MS, MAX_DELAY_MS, ROLLS
from schemas.tables import AuditClass
from spark_jobs.audit_rules.evidence import AMBIGUOUS_CODES, DELIVERY_CODES
from spark_jobs.audit_rules.headers import distinct_non_null

TRACE = "trace-id"
"""Part of `altered`: the delivery has the trace id of another request."""


@dataclass(frozen=True, kw_only=True)
class AuditLimits:
    """Limits of the audit's rules, in ms: those of the flags with these names (spark_jobs.audit_run.arguments)."""

    as_of_ms: int
    settle_ms: int = 10_000
    """The transaction timeout: by then a released timer is committed or aborted."""
    tolerance_ms: int = 10_000
    skew_ms: int = 1_000
    late_ms: int | None = None
    max_delay_ms: int = MAX_DELAY_MS


class Rule(NamedTuple):
    """`holds`: SQL over the columns of `outcomes` and `_FACTS`; null counts as false."""

    name: AuditClass
    holds: str
    meaning: str


PARSE_CODES = (
    *("bad-header", "missing-time", "ambiguous-time", "missing-topic", "missing-id", "unknown-action", "not-ours"),
)
"""Codes that follow from the request alone: the audit's own parse decides whether they are right."""
UNPROVED_CODES = (
    *("bad-target", "denied-target", "denied-action", "quota-exceeded", "too-large", "too-many-headers"),
    *("unknown-topic", "unknown-partition", "not-authorized", "undecodable"),
)
"""Codes that depend on settings, on the state of a target topic or on an operator: the audit cannot check them."""
_OWN_RULE_CODES = ("too-far", "expired", "no-occurrence", "missed")


_A = AuditClass
_FAULT_RULES = (
    Rule(
        _A.UNSTAMPED,
        "origin LIKE '?trace/%'",
        "a record has the trace id of a request, but no header of the bridge: the row names both",
    ),
    Rule(
        _A.UNEXPLAINED,
        "NOT requested AND NOT in_hole",
        "a record names a request, or an occurrence of it, that does not exist",
    ),
    Rule(_A.REJECTED_BUT_DELIVERED, "deliveries > 0 AND rejections > 0", "delivered, and on the rejected topic too"),
    Rule(
        _A.MALFORMED_BUT_DELIVERED,
        "deliveries > 0 AND (malformed OR bad_rule OR kind IN ('cancel', 'move', 'pause', 'resume'))",
        "its headers lack a time or a target, or it is not a timer: it must not be delivered",
    ),
    Rule(
        _A.CANCELLED_BUT_DELIVERED,
        "deliveries > 0 AND (told_ended > 0 OR (next.kind IS NOT NULL AND read_before_release))",
        "delivered, though a request with its id (a cancel, or one that replaces it) was read before",
    ),
    Rule(
        _A.PAUSED_BUT_DELIVERED,
        "deliveries > 0 AND pause_read_ms < delivered_ms"
        " AND delivered_ms < coalesce(pause.ended_ms, as_of_ms) - skew_ms",
        "delivered, though a request to pause it was read before, and none that ends the pause had been sent",
    ),
    Rule(_A.EXPIRED_BUT_DELIVERED, "delivered_ms - tolerance_ms > expire_ms", "delivered after its timer-expire-ms"),
    Rule(
        _A.WRONG_ORIGIN,
        f"array_contains(altered, '{TRACE}')",
        "the delivery that names it in timer-origin has another trace id, which another request may have",
    ),
    Rule(_A.DUPLICATE, "deliveries > 1 OR rejections > 1", "delivered (or rejected) more than once"),
    Rule(_A.EARLY, "delivered_ms < due_ms", "delivered before it was due"),
    Rule(
        _A.OFF_RULE,
        "off_rule AND (was_due OR copies > 0)",
        "an occurrence whose number or time does not follow from its rule and the occurrence before it",
    ),
    Rule(_A.ALTERED, "size(altered) > 0", "its topic, partition, key, value or headers differ"),
    Rule(_A.WRONGLY_REJECTED, "rejections > 0 AND wrongly_refused", "rejected as malformed, though it is well-formed"),
    Rule(
        _A.MISSING,
        "deliveries = 0 AND (wrongly_expired OR"
        " (rejections = 0 AND kind_of_timer AND NOT is_undecided AND NOT told_ahead AND NOT is_unread"
        " AND (lost OR has_later OR (next.kind IS NULL AND expected_ms <= settled_ms AND NOT waits))))",
        "due, but neither delivered nor rejected; or gone before the request that should have ended it",
    ),
    Rule(
        _A.BROKEN_OFF,
        "next_due_ms IS NOT NULL AND NOT has_later AND NOT is_undecided AND NOT before_hole AND was_due"
        " AND coalesce(delivered_ms, rejected_ms) <= settled_ms",
        "an occurrence left without the copy for the next one, which its rule has",
    ),
    Rule(
        _A.FALSE_RECEIPT,
        "told_done > 0 AND told_missed IS NOT NULL OR told_ended > 0 AND requested AND (rejections > 0 OR NOT may_end"
        " OR (id IS NULL AND next.kind IS NULL AND NOT told_ahead AND NOT may_be_ended)"
        " OR (next.kind IS NOT NULL AND NOT told_truly AND NOT may_be_ended))",
        "a receipt says that it was ended, but not by the next request with its id; or it cannot have been ended",
    ),
)
_OTHER_RULES = (
    Rule(
        _A.UNJUDGED,
        "NOT requested OR (deliveries = 0 AND rejections = 0 AND is_unread AND NOT is_undecided"
        " AND (lost OR (next.kind IS NULL AND expected_ms <= settled_ms AND NOT waits)))",
        "its request, its outcome, or a request that may have ended it may be among records that were never read",
    ),
    Rule(_A.EXPIRED, "rejections > 0 AND error = 'expired'", "not delivered before its timer-expire-ms"),
    Rule(_A.REJECTED, "rejections > 0", "on the rejected topic, with a code that says why"),
    Rule(
        _A.MOVED,
        "deliveries > 0 AND moved_low IS NOT NULL AND NOT is_ahead",
        "delivered; a request had given it another time, and which of its times held is not proved",
    ),
    Rule(_A.LATE, "delivered_ms - expected_ms > late_ms AND NOT is_ahead", "delivered, later than the limit"),
    Rule(_A.DELIVERED, "deliveries > 0 AND NOT is_ahead", "once, as it was sent, not before it was due"),
    Rule(
        _A.CANCELLED,
        "deliveries = 0 AND kind_of_timer AND ended AND next.kind = 'cancel'",
        "ended by a cancel with its id",
    ),
    Rule(_A.REPLACED, "deliveries = 0 AND kind_of_timer AND ended", "ended by a later request with its id"),
    Rule(_A.CANCEL_DONE, "is_cancel AND (told_done > 0 OR (unanswered AND found))", "a cancel that ended a timer"),
    Rule(
        _A.CANCEL_TOO_LATE,
        "is_cancel AND (told_missed = 'too-late' OR (unanswered AND previous.left))",
        "a cancel whose timer had left already",
    ),
    Rule(
        _A.CANCEL_NOT_FOUND,
        "is_cancel AND (told_missed IS NOT NULL OR unanswered)",
        "a cancel with nothing pending under its id",
    ),
    Rule(_A.SWITCH, "is_switch", "pauses or resumes a target topic"),
    Rule(_A.MOVE, "is_move", "gives what is pending under its id another time, or pauses or resumes it"),
    Rule(
        _A.HELD,
        "deliveries = 0 AND rejections = 0 AND next.kind IS NULL AND expected_ms <= settled_ms AND waits",
        "due, but it is paused, or its target topic is",
    ),
    Rule(_A.PENDING, "true", "not due yet; or due too recently to judge, or hidden by an open transaction"),
)

_WAIVED = Rule(_A.WAIVED, "is_waived AND size(faults) > 0", "a known fault: --waivers has the reason and the end")
RULES = (_WAIVED, *_FAULT_RULES, *_OTHER_RULES)
FAULTS = tuple(rule.name for rule in _FAULT_RULES)


def _paused_until(time_ms: str) -> str:
    """Return the SQL of: its target was paused before it was due, and not resumed before that time."""
    return (
        f"coalesce(expected_ms >= paused_ms - tolerance_ms AND (resumed_ms IS NULL OR resumed_ms > {time_ms}), false)"
    )


def _read_ms(request: str) -> str:
    """Return the SQL of the time by which the bridge had read a request with `ms` and `answered_ms`.

    By its receipt; or it has none and was sent more than the tolerance earlier. A receipt older than its request comes
    from a bridge whose clock was behind: ignore it.
    """
    told_ms = f"{request}.answered_ms + skew_ms"
    return f"IF(coalesce({told_ms} >= {request}.ms, false), {told_ms}, {request}.ms + tolerance_ms)"


_FACTS = {
    # Delivered during the audit, from a copy after the last offset that was read; a move may lie there too.
    "is_ahead": "coalesce(delivered_rolls > coalesce(rolls, 0) AND delivered_ms + skew_ms >= as_of_ms, false)",
    "is_cancel": "coalesce(kind = 'cancel' AND NOT malformed, false)",
    "is_switch": "coalesce(kind IN ('pause', 'resume') AND NOT malformed AND id IS NULL AND of_origin IS NULL, false)",
    "is_move": "coalesce(kind IN ('move', 'pause', 'resume') AND NOT malformed AND NOT is_switch, false)",
    "kind_of_timer": "coalesce(NOT (kind IN ('cancel', 'move', 'pause', 'resume') AND NOT malformed), false)",
    "read_before_release": f"{_read_ms('next')} < delivered_ms",
    "pause_read_ms": _read_ms("pause"),
    # A receipt says that there was a timer to pause; or it was not overdue then.
    "is_paused": "coalesce(pause.ended_ms IS NULL AND (pause.answered_ms IS NOT NULL"
    " OR greatest(expected_ms, pause.since_ms) >= pause.ms - tolerance_ms), false)",
    "may_end": "NOT malformed AND kind IN ('schedule', 'replace')",
    # Every receipt that says that this was ended names the next request, and its kind.
    "told_truly": "coalesce(told_ended > 0 AND (told_by_low IS NULL OR (told_by_low = told_by_high"
    " AND told_by_low = concat(IF(next.kind = 'cancel', 'cancelled ', 'replaced '), next.origin))), false)",
    # The next request was read and ended nothing; or it came when this was overdue, and no receipt says it ended it.
    "lost": "coalesce(next.kind IS NOT NULL AND NOT told_truly"
    " AND (next.answered_ms IS NOT NULL OR (expected_ms < next.ms - tolerance_ms AND NOT is_paused"
    f" AND NOT {_paused_until('next.ms - tolerance_ms')})), false)",
    "waits": f"may_end AND (is_paused OR {_paused_until('settled_ms')})",
    "ended": "coalesce(next.kind IS NOT NULL AND (told_truly OR (next.ms <= settled_ms AND NOT is_undecided)), false)",
    # A receipt says that it was ended, by a request that came after the last one that was read.
    "told_ahead": "coalesce(may_end AND next.kind IS NULL AND told_ended_ms > as_of_ms, false)",
    # A request that names it may be among those that were never read.
    "may_be_ended": "coalesce(kind_of_timer AND before_hole, false)",
    "is_unread": "coalesce(may_be_ended OR kind_of_timer AND unread_margin_ms > 0, false)",
    "unanswered": "answered_ms IS NULL AND requested_ms <= settled_ms",
    "found": "coalesce(previous.kind <> 'cancel' AND NOT previous.left"
    " AND previous.expected_ms >= requested_ms - tolerance_ms, false)",
    # Not refused at intake: it was delivered, or rejected when it was due.
    "was_due": "coalesce(deliveries > 0"
    f" OR error IN {DELIVERY_CODES}"
    f" OR (error IN {AMBIGUOUS_CODES} AND (asked.occurrence > 1 OR copies > 0)), false)",
    # The audit cannot check a refusal if the bridge may have read other headers.
    "wrongly_refused": "coalesce(NOT malformed AND NOT ((bad_rule OR dubious) AND error = 'bad-header')"
    " AND asked.want.headers IS NOT NULL"
    " AND ((error IN ('no-occurrence', 'missed') AND NOT is_over)"
    f" OR error IN {PARSE_CODES} OR error NOT IN {(*UNPROVED_CODES, *_OWN_RULE_CODES)}"
    " OR (error = 'too-far' AND coalesce(asked.due_ms - requested_ms <= max_delay_ms, true))), false)",
    "wrongly_expired": "coalesce(error = 'expired' AND asked.want.headers IS NOT NULL AND (expire_ms IS NULL"
    " OR rejected_ms + skew_ms < expire_ms), false)",
}

_MARKS = (
    *("is_undecided", "is_waived", "in_hole", "before_hole", "unread_margin_ms", "paused_ms", "resumed_ms"),
    *("bad_rule", "off_rule", "is_over", "has_later", "next_due_ms"),
)
"""Columns that only the rules need."""

_FREED_MS = (
    "IF(pause.ended_ms <= coalesce(delivered_ms + skew_ms, pause.ended_ms), least(pause.ended_ms, delivered_ms), NULL)"
)
"""When its pause ended, unless it was delivered before that."""
_RESUMED = {
    "expected_ms": f"greatest(expected_ms, {_FREED_MS})",
    "lateness_ms": f"delivered_ms - greatest(due_ms, {_FREED_MS})",
}
"""Values of a resumed timer: the time of its pause does not count."""
_AHEAD = {
    "due_ms": "IF(is_ahead, told_low_ms, due_ms)",
    "lateness_ms": "IF(is_ahead, delivered_ms - told_low_ms, lateness_ms)",
    "altered": f"IF(is_ahead, array_except(altered, array('{DELIVER_MS}', '{ROLLS}')), altered)",
}
"""Values that the unread copy would have: taken from the delivery until the copy is read."""


def classify(outcomes: DataFrame, limits: AuditLimits) -> DataFrame:
    """Return `outcomes` (spark_jobs.audit_rules.judgement) with `class`, `faults`, `proof` and `open`."""
    limits_ms = vars(limits) | {"settled_ms": limits.as_of_ms - limits.settle_ms}
    given = {name: F.lit(limit_ms).cast("bigint") for name, limit_ms in limits_ms.items()}
    known = outcomes.withColumns(given)
    for step in (_RESUMED, _FACTS, _AHEAD):
        known = known.withColumns({name: F.expr(said) for name, said in step.items()})
    faults = distinct_non_null(F.when(F.expr(r.holds), F.lit(r.name.value)) for r in _FAULT_RULES)
    first = F.coalesce(*(F.when(F.expr(rule.holds), F.lit(rule.name.value)) for rule in RULES))
    found = known.withColumn("faults", faults).withColumn("class", first)
    return found.withColumns({"proof": _proof(), "open": _is_open()}).drop(*given, *_FACTS, *_MARKS)


def is_fault(column: str = "class") -> Column:
    return F.col(column).isin(*(name.value for name in FAULTS))


UNREAD_OUTCOME = "unread-outcome"
"""`proof` of a missing or unjudged request of which only the delivery or the rejected record may be unread."""
GRACE_MS = 1_000
"""A timer due so shortly before the first record of its target is `missing`.

To delete a topic, create it again and deliver to it takes longer as a rule, so the topic already existed. A backfill
does not rely on it.
"""


def _proof() -> Column:
    may_be_gone = F.expr(f"requested AND NOT may_be_ended AND unread_margin_ms > -skew_ms - {GRACE_MS}")
    is_gone = F.col("class").isin(_A.UNJUDGED.value, _A.MISSING.value) & may_be_gone
    by_order = F.when(F.expr("told_truly OR (is_cancel AND answered_ms IS NOT NULL)"), "receipt").otherwise("order")
    decided = (_A.CANCELLED, _A.REPLACED, _A.CANCEL_DONE, _A.CANCEL_TOO_LATE, _A.CANCEL_NOT_FOUND)
    return F.when(F.col("class").isin(*(name.value for name in decided)), by_order).when(is_gone, UNREAD_OUTCOME)


def _is_open() -> Column:
    """Return a column: True if the class may still change.

    It may if no outcome is there yet; if an unread request with the id may precede the delivery; or if a receipt may
    still come. A later record names the timer or the request that ended it, and opens it again.
    """
    waits = F.col("class").isin(_A.PENDING.value, _A.HELD.value) | F.array_contains("faults", _A.MISSING.value)
    just_now = F.expr("(id IS NOT NULL OR pause.ms IS NOT NULL) AND delivered_ms + skew_ms >= as_of_ms")
    untold = F.expr(
        "(next.kind IS NOT NULL AND told_ended = 0 AND next.answered_ms IS NULL"
        " AND next.ms > settled_ms - tolerance_ms)"
        " OR (is_cancel AND answered_ms IS NULL AND requested_ms > settled_ms - tolerance_ms)"
        " OR (pause.answered_ms IS NULL AND pause.ms > settled_ms - tolerance_ms)"
    )
    return F.greatest(*(F.coalesce(why, F.lit(False)) for why in (waits, just_now, untold)))
