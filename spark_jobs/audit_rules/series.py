"""Recurring timers: each occurrence is judged as a timer of its own, and the series by the rule of its request.

    t/0/7      the request, and its first occurrence         copies with timer-occurrence 1 are copies of it
    t/0/7#2    the second: asked for by the first copy with that number; later copies with it are copies of t/0/7#2
    t/0/7#3    ...                                            a delivery with timer-occurrence 3 names it

Deliveries, rejected records and copies name an occurrence by origin and number, so all rules for timers hold for each:
one outcome, not early, not twice, not after a cancel. A number without a copy is unexplained. Three facts are about the
series:

    off_rule        the number or the time does not follow from the rule and the occurrence before
    has_later       a later number exists, so this one must have left
    next_due_ms     when the next one was due at the latest, after this one left: null if the rule ends

The times by the rule are found a second time on purpose, by other code than schemas.recurrence; cronsim parses the
expression for both. Python runs for the rows only if there is a recurring timer among the requests of a run.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from spark_jobs.audit_rules import headers as c

_TEXT = rf"\A[ -~]{{1,{names.LONGEST_RULE}}}\z"
_FIVE_FIELDS = r"\A *[!-~]+( +[!-~]+){4} *\z"
_FACTS = "bad_rule BOOLEAN, off_rule BOOLEAN, is_over BOOLEAN, next_due_ms BIGINT"
MatchMs: TypeAlias = Callable[[str, str, int], int | None]
_HORIZON_YEARS = 9
"""The bridge gives up a search after so many years, too."""


def of(origin: Column) -> Column:
    """Return the origin of the request, of an origin that may have a number."""
    return F.substring_index(origin, "#", 1)


def occurrence_origin(origin: Column, number: Column) -> Column:
    return F.when(number >= 2, F.concat(origin, F.lit("#"), number)).otherwise(origin)


def predecessor(origin: Column) -> Column:
    """Return the origin of the occurrence before this one; of the first one, its own."""
    number = F.get(F.split(origin, "#"), F.lit(1)).try_cast("int")
    return F.when(number >= 2, occurrence_origin(of(origin), number - 1)).otherwise(origin)


def number_of(headers: Column) -> Column:
    """Return the last `timer-occurrence`; null if there is none or it is no number."""
    return c.partition_number(c.last_value_of(headers, names.OCCURRENCE))


# -- the request


def rule_of(headers: Column) -> Column:
    """Return the rule as text, for `judged`; null if the request has none. It begins with 1 if there is no time."""
    expire_ms = c.decimal(c.value_of(headers, names.EXPIRE_MS))
    until_ms = F.least(c.decimal(c.value_of(headers, names.UNTIL_MS)), expire_ms - 1)
    parts = [
        F.when(c.has_any(headers, names.TIMES), 0).otherwise(1),
        _number(headers, names.EVERY_MS, 0),
        F.coalesce(until_ms, F.lit(names.MAX_INT64)),
        _number(headers, names.COUNT, names.MAX_INT64),
        *(_text(headers, name) for name in (names.MISSED_POLICY, names.ZONE, names.CRON)),
    ]
    return F.when(c.has_any(headers, names.RECURRENCE), F.concat_ws("|", *parts))


def of_copies(rule: Column) -> Column:
    """Return what is the same in the copies of a request: they always have a time."""
    return F.substring(rule, 3, 1 << 16)


def first_due_ms(headers: Column) -> Column:
    """Return the due time of a recurring request without a time: the first interval; by cron its own time."""
    return F.try_add(F.col("timestamp_ms"), _number(headers, names.EVERY_MS, 0))


def is_malformed(headers: Column) -> Column:
    """Return True if the headers of the rule do not parse, or are the bridge's own."""
    has_cron, has_every = c.has(headers, names.CRON), c.has(headers, names.EVERY_MS)
    numbers = [(names.EVERY_MS, names.LEAST_EVERY_MS), (names.UNTIL_MS, 0), (names.COUNT, 1)]
    wrong = has_cron == has_every
    wrong |= has_every & c.has(headers, names.ZONE)
    for name, least in numbers:
        wrong |= c.has(headers, name) & ~F.coalesce(c.decimal(c.value_of(headers, name)) >= least, F.lit(False))
    for name, form in ((names.ZONE, _TEXT), (names.CRON, _TEXT), (names.CRON, _FIVE_FIELDS)):
        wrong |= c.has(headers, name) & ~F.coalesce(_text(headers, name).rlike(form), F.lit(False))
    is_policy = F.coalesce(_text(headers, names.MISSED_POLICY).isin(*names.MISSED), F.lit(False))
    wrong |= c.has(headers, names.MISSED_POLICY) & ~is_policy
    is_ours = c.has(headers, names.OCCURRENCE) | c.has(headers, names.SCHEDULED_MS)
    return (c.has_any(headers, names.RECURRENCE) & wrong) | is_ours


def _number(headers: Column, name: str, default: int) -> Column:
    return F.coalesce(c.decimal(c.value_of(headers, name)), F.lit(default))


def _text(headers: Column, name: str) -> Column:
    return F.coalesce(c.value_of(headers, name).cast("string"), F.lit(""))


# -- the series


def with_endings(folded: DataFrame) -> DataFrame:
    """Return the evidence with receipts about the end of a series at its last occurrence: they name the request."""
    told = [name for name in folded.columns if name.startswith(("told_ended", "told_by"))]
    by = Window.partitionBy(F.xxhash64("series"), "series")
    numbered = folded.withColumns({"series": of(F.col("origin")), "number": F.col("asked.occurrence")})
    is_last, is_other = F.col("number") == F.max("number").over(by), F.col("number").isNull()
    moved = {name: F.when(is_other, F.col(name)).when(is_last, F.max(name).over(by)) for name in told}
    return numbered.withColumns(moved).drop("series", "number")


def without_facts(found: DataFrame) -> DataFrame:
    """Return `found` with the columns of `judged` for a run without recurring timers."""
    flags = dict.fromkeys(("bad_rule", "off_rule", "is_over", "has_later"), F.lit(False))
    return found.withColumns({**flags, "next_due_ms": F.lit(None).cast("bigint")})


def judged(found: DataFrame, skew_ms: int) -> DataFrame:
    """Return `found` (spark_jobs.audit_rules.judgement) with `bad_rule`, `off_rule`, `is_over`, `has_later`, ..."""
    series = Window.partitionBy(F.xxhash64("series"), "series")
    rows = found.withColumns({"series": of(F.col("origin")), "number": F.col("asked.occurrence")})
    by_rule_ms, left_ms = F.coalesce("scheduled_ms", "asked.due_ms"), F.coalesce("delivered_ms", "rejected_ms")
    times = {"by_rule_ms": by_rule_ms, "passed_ms": F.greatest(by_rule_ms, "due_ms"), "left_ms": left_ms}
    me = F.struct("number", *(time_ms.alias(name) for name, time_ms in times.items()), "delivered_ms")
    before = F.lag(me).over(series.orderBy("number"))
    has_later = F.coalesce(F.max("number").over(series) > F.col("number"), F.lit(False))
    rows = rows.withColumns({"me": me, "before": before, "has_later": has_later})
    rule = F.when(F.col("number").isNotNull() & ~F.col("malformed"), F.col("asked.rule"))
    asked = F.struct("asked.requested_ms", "asked.due_ms")
    # With useArrow given, PySpark 4.2 does not try to tell the kind of UDF from the annotations, which it cannot.
    judge = F.udf(partial(_facts, match_ms, skew_ms), f"STRUCT<{_FACTS}>", useArrow=False)
    known = rows.withColumn("facts", judge(rule, asked, F.col("scheduled_ms"), F.col("me"), F.col("before")))
    flags = {name: F.coalesce(f"facts.{name}", F.lit(False)) for name in ("bad_rule", "off_rule", "is_over")}
    known = known.withColumns({**flags, "next_due_ms": F.col("facts.next_due_ms")})
    return known.drop("series", "number", "me", "before", "facts")


def match_ms(expression: str, zone: str, after_ms: int) -> int | None:
    """Return the first match after `after_ms`; None if there is none within `_HORIZON_YEARS`, or in the calendar.

    Raises CronSimError, ValueError, KeyError or OSError for a wrong expression or zone alone.
    """
    place = UTC if zone == "UTC" else ZoneInfo(zone)
    CronSim(expression, datetime(2000, 1, 1, tzinfo=place))
    minute, hour, day, _, weekday = expression.split()
    days = f" {day} {weekday}"
    if re.search("[Ll#]", days) and re.search(r" \*[^ ]", days):
        raise ValueError(f"L or # beside a step: {expression}")
    try:
        if "*" in (minute[0], hour[0]):
            return _match_by_offsets_ms(expression, place, after_ms // 1000)
        start = datetime.fromtimestamp(after_ms // 1000, place)
        for at in CronSim(expression, start):
            at_ms = int(at.timestamp()) * 1000
            if at.year > start.year + _HORIZON_YEARS:
                return None
            if at_ms > after_ms:
                return at_ms
    except (OverflowError, ValueError, OSError):  # senders give any time
        return None
    return None


def _match_by_offsets_ms(expression: str, place: tzinfo, after_s: int) -> int | None:
    """Return the first match after `after_s` if clocks change: cronsim is right only on a clock that does not.

    Search by the offset from UTC after `after_s`, then, if it changes before that match, by the next offset.
    """

    def offset_s(at_s: int) -> int:
        at = datetime.fromtimestamp(at_s, place)
        return int((at.replace(tzinfo=UTC) - at).total_seconds())

    horizon_s = after_s + _HORIZON_YEARS * 366 * 86_400
    while after_s < horizon_s:
        last_s, offset = after_s + 1, offset_s(after_s + 1)
        shown = next(CronSim(expression, datetime.fromtimestamp(after_s + offset, UTC)), None)
        found_s = horizon_s if shown is None else min(horizon_s, int(shown.timestamp()) - offset)
        for step_s in (86_400, 3_600, 60, 1):
            while last_s + step_s <= found_s and offset_s(last_s + step_s) == offset:
                last_s += step_s
        if last_s == found_s < horizon_s:
            return found_s * 1000
        after_s = last_s
    return None


class _Rule(NamedTuple):
    needs_first: bool
    every_ms: int
    until_ms: int
    most: int
    missed: str
    zone: str
    cron: str
    match_ms: MatchMs

    @classmethod
    def read(cls, text: str, match_ms: MatchMs) -> "_Rule":
        has_no_time, every, until, most, missed, zone, cron = text.split("|", 6)
        needs_first = bool(cron) and has_no_time == "1"
        return cls(needs_first, int(every), int(until), int(most), missed or "one", zone or "UTC", cron, match_ms)

    def following(self, base_ms: int, after_ms: int) -> int | None:
        """Return the first time after `after_ms` on the grid through `base_ms`, or by cron; None beyond the end."""
        after_ms = max(base_ms, after_ms)
        if self.every_ms:
            found: int | None = after_ms + self.every_ms - (after_ms - base_ms) % self.every_ms
        else:
            found = self.match_ms(self.cron, self.zone, after_ms)
        return None if found is None or found > min(self.until_ms, names.PAUSED_MS - 1) else found

    def fits(self, base_ms: int, at_ms: int) -> bool:
        """True if the rule has this time, after `base_ms`."""
        return at_ms > base_ms and self.following(base_ms, at_ms - 1) == at_ms


def _facts(
    find: MatchMs, skew_ms: int, text: str | None, asked: Any, scheduled_ms: int | None, me: Any, before: Any
) -> tuple[bool, bool, bool, int | None] | None:
    """Return `_FACTS` of one occurrence. before: the one before it in the series; None: it is not known."""
    if text is None:
        return None
    rule = _Rule.read(text, find)
    try:
        if rule.cron:
            rule.match_ms(rule.cron, rule.zone, 0)
    except (CronSimError, ValueError, KeyError, OSError):
        return True, False, False, None
    first_ms = rule.following(asked.requested_ms, asked.requested_ms) if rule.needs_first else asked.due_ms
    has_begun = not rule.needs_first or scheduled_ms is not None
    off = has_begun and _is_off(rule, first_ms, me, before, skew_ms)
    is_over = first_ms is None or first_ms > rule.until_ms
    if not has_begun or me.left_ms is None:
        return False, off, is_over, None
    if rule.missed == "none":
        successor_ms = rule.following(me.by_rule_ms, me.passed_ms)
        is_late = successor_ms is not None and successor_ms <= me.left_ms + skew_ms
        is_over |= is_late and rule.following(me.by_rule_ms, max(me.passed_ms, me.left_ms + skew_ms)) is None
    left_ms = me.passed_ms if rule.missed == "all" else max(me.passed_ms, me.left_ms + skew_ms)
    next_ms = rule.following(me.by_rule_ms, left_ms) if me.number < rule.most else None
    return False, off, is_over, next_ms


def _is_off(rule: _Rule, first_ms: int | None, me: Any, before: Any, skew_ms: int) -> bool:
    """True if the number or the time of an occurrence does not follow from the one before it, or from the request."""
    if me.number > rule.most or me.by_rule_ms > rule.until_ms or first_ms is None:
        return True
    if rule.missed == "none" and me.delivered_ms is not None:
        successor_ms = rule.following(me.by_rule_ms, me.passed_ms)
        if successor_ms is not None and successor_ms <= me.delivered_ms - skew_ms:
            return True  # it was to be skipped
    if me.number == 1:
        is_later = rule.missed == "none" and rule.fits(first_ms, me.by_rule_ms)
        return bool(me.by_rule_ms != first_ms and not is_later)
    if before is None:
        return False
    if before.number != me.number - 1 or not rule.fits(before.by_rule_ms, me.by_rule_ms):
        return True
    left_ms = before.passed_ms if rule.missed == "all" or before.left_ms is None else before.left_ms
    earliest_ms = rule.following(before.by_rule_ms, max(before.passed_ms, left_ms - skew_ms))
    if earliest_ms is None or me.by_rule_ms < earliest_ms:
        return True
    if rule.missed == "none" or before.left_ms is None:
        return False
    latest_ms = rule.following(before.by_rule_ms, before.passed_ms if rule.missed == "all" else left_ms + skew_ms)
    return latest_ms is not None and me.by_rule_ms > latest_ms
