"""What became of each request: one table of rules, one pure function.

    origin  requested  due_ms  deliveries  rejections  delivered_ms  altered   ->  class      faults
    t/0/7   true       5000    1           0           5003          []            delivered  []
    t/0/8   true       5000    2           0           4998          []            duplicate  [duplicate, early]
    t/0/9   true       5000    0           0           null          []            missing    [missing]

The first rule that holds names the class; every fault that holds stands in `faults`, so that none hides behind another.
A later outcome (cancelled, replaced, expired, late beyond a limit) is one more column to join and one more rule.
"""

from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas.tables import AuditClass


class Rule(NamedTuple):
    """`holds` is SQL over the columns of `outcomes`; where it is null it does not hold."""

    name: AuditClass
    fault: bool
    holds: str
    meaning: str


RULES = (
    Rule(AuditClass.UNEXPLAINED, True, "NOT requested", "a record names a request that does not exist"),
    Rule(
        AuditClass.REJECTED_BUT_DELIVERED,
        True,
        "deliveries > 0 AND rejections > 0",
        "delivered, and on the rejected topic too",
    ),
    Rule(
        AuditClass.MALFORMED_BUT_DELIVERED,
        True,
        "deliveries > 0 AND malformed",
        "its headers do not say when or where; it was to be rejected",
    ),
    Rule(AuditClass.DUPLICATE, True, "deliveries > 1 OR rejections > 1", "delivered (or rejected) more than once"),
    Rule(AuditClass.EARLY, True, "delivered_ms < due_ms", "delivered before it was due"),
    Rule(AuditClass.ALTERED, True, "size(altered) > 0", "its topic, partition, key, value or headers differ"),
    Rule(
        AuditClass.MISSING,
        True,
        "deliveries = 0 AND rejections = 0 AND expected_ms <= settled_ms",
        "due, but neither delivered nor rejected",
    ),
    Rule(AuditClass.REJECTED, False, "rejections > 0", "on the rejected topic, with a code that says why"),
    Rule(AuditClass.DELIVERED, False, "deliveries > 0", "once, as it was sent, not before it was due"),
    Rule(AuditClass.PENDING, False, "true", "not due yet, or so lately that it may still be on its way"),
)

FAULTS = tuple(rule.name for rule in RULES if rule.fault)


def classify(outcomes: DataFrame, *, as_of_ms: int, settle_ms: int) -> DataFrame:
    """`outcomes` with `class` and `faults`.

    What was expected up to `settle_ms` before `as_of_ms` must be there. Columns read: requested (bool), malformed
    (bool), due_ms, expected_ms, deliveries, rejections, delivered_ms, altered (array).
    """
    timed = outcomes.withColumn("settled_ms", F.lit(as_of_ms - settle_ms))
    faults = F.array_compact(F.array(*(F.when(F.expr(r.holds), F.lit(r.name.value)) for r in RULES if r.fault)))
    return timed.withColumns({"class": _first_that_holds(), "faults": faults}).drop("settled_ms")


def is_fault(column: str = "class") -> Column:
    return F.col(column).isin(*(name.value for name in FAULTS))


def _first_that_holds() -> Column:
    def otherwise(rest: Column, rule: Rule) -> Column:
        return F.when(F.expr(rule.holds), F.lit(rule.name.value)).otherwise(rest)

    return reduce(otherwise, reversed(RULES), F.lit(None).cast("string"))
