"""An audit in parts, by day or by batch: each reads new records and the open timers that these or the time concern.

    part 1   new records                                    -> judged -> requests/1   open/1   evidence/1 (closed)
    part 2   new records + open timers due or named         -> judged -> requests/2   ...

Closed timers are read again only if a new record names them: a delivery of a timer that was delivered, cancelled or
rejected in an earlier part, or a refusal of the request that had ended one. A part may be repeated.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from schemas.audit_state import CLOSED, EVIDENCE, OPEN, OPEN_VERDICTS
from schemas.tables import REQUESTS, AuditClass, Kind
from spark_jobs.audit_rules import coverage, judgement, roll_copies, series
from spark_jobs.audit_rules.evidence import Observations
from spark_jobs.audit_rules.requests import Feature
from spark_jobs.audit_rules.verdicts import AuditLimits, classify
from spark_jobs.audit_run.open_timers import OpenTimers, closed_evidence
from spark_jobs.kafka.admin import Span
from spark_jobs.platform.files import Location
from spark_jobs.platform.tables import Keep, as_table, read_table, write_table

DAY_MS = 86_400_000
_LINKS = ("origin", "asked", "follows", "next", "rejections")
_MOST_ROUNDS = 10
"""Most refused requests of one chain that are followed in one part."""
_CLAIM = tuple(field.name for field in Kind.CLAIMS.value.value_type)


class PartPlan(NamedTuple):
    """A part to make: `name` of its folders, such as day=2026-01-31, `number`, the part before, and its time."""

    name: str
    number: int
    previous: str | None
    as_of_ms: int


class Part(NamedTuple):
    """A part to judge. `state`: what was open before.

    earlier: requests of the parts before; so_far: those and this part's. Both may have holes. changes_only: `requests`
    gets the rows that differ from those written before.
    """

    plan: PartPlan
    state: OpenTimers
    timer_topic: str
    earlier: Sequence[Span]
    so_far: Sequence[Span]
    changes_only: bool = False


def judge(
    new: Observations, part: Part, limits: AuditLimits, due: DataFrame | None, keep: Keep
) -> tuple[list[str], OpenTimers]:
    """Judge a part and write its `requests`, `open` and `evidence`. Return notes, and the state to commit.

    new: new records, persisted. due: the open timers that are due (OPEN); None in the first part. keep: persists rows
    until the part is done.
    """
    earlier = None if due is None else _concerned(new, part, due, keep)
    seen = new if earlier is None else _with_earlier(new, part, earlier)
    outcomes = judgement.build_outcomes(seen)
    before = coverage.is_before(part.timer_topic, part.so_far) & ~F.col("requested")
    # A claim that was taken for a copy when it was new, refused now, and whose timer has ended since: ignore it.
    refused_late = F.expr("NOT requested AND deliveries = 0 AND error <=> 'not-ours'") & ~coverage.is_outside(
        part.timer_topic, part.earlier
    )
    ahead = coverage.is_after(part.timer_topic, part.so_far) | coverage.is_ahead(limits.as_of_ms, limits.skew_ms)
    is_hidden = ~ahead & judgement.hidden_by_transaction(limits)
    marked = outcomes.withColumns({"elsewhere": before, "ahead": ahead, "hidden": is_hidden})
    # Keep a receipt that was read before its request: the next run does not read it again.
    judged, counter = judgement.counted(classify(marked.where(~judgement.is_receipt_only() | F.col("ahead")), limits))
    kept = keep(judged.where(~F.col("elsewhere") & ~refused_late).drop("elsewhere", "hidden"))
    rows = kept.where(~F.col("ahead"))
    if part.changes_only:
        write_changed(part.state.out, rows, None if earlier is None else earlier.open, part.plan)
    else:
        write_table(rows, part.state.out, REQUESTS, part.plan.name)
    state = _write_state(kept, seen, part, earlier, keep)
    return judgement.unjudged_notes(counter, "before the first day"), state


class _Earlier(NamedTuple):
    """Timers of earlier parts to judge again: open ones (OPEN), those of them that sleep, and closed ones."""

    open: DataFrame
    asleep: DataFrame | None
    closed: DataFrame | None


def _concerned(new: Observations, part: Part, due: DataFrame, keep: Keep) -> _Earlier:
    """Return the timers of earlier parts that are due, or that a new record concerns.

    A refused request is in no chain of its id. Therefore the request before it and the one after it are judged too.
    """
    is_earlier = ~coverage.is_outside(part.timer_topic, part.earlier) & ~F.col("origin").startswith("?")
    names = _named(new, part, due).where(is_earlier)
    refused = new.rejections.select("origin").where(is_earlier)
    chains = _union([new.parsed.select(chain_of(F.col("asked"), by).alias("chain")) for by in ("id", "whole_id")])
    asleep: list[DataFrame] = []
    closed: list[DataFrame] = []
    fresh = [due.select(*_LINKS)]
    for _ in range(_MOST_ROUNDS):
        known = _union([rows.select("origin") for rows in (due, *asleep, *closed)])
        names = keep(names.join(known, "origin", "left_anti").distinct())
        of_ids = chains.where(F.col("chain").isNotNull())
        more = part.state.concerned(part.plan.as_of_ms, names, of_ids, due.select("family"), keep)
        strays = names
        if more is not None:
            asleep.append(keep(more.join(known, "origin", "left_anti") if asleep or closed else more))
            fresh.append(asleep[-1].select(*_LINKS))
            if Feature.SERIES in part.state.has:
                names = names.unionByName(_of_series(asleep[-1]).join(known, "origin", "left_anti")).distinct()
            strays = names.join(asleep[-1].select("origin"), "origin", "left_anti")
        strays = keep(strays)
        if not strays.isEmpty():
            closed.append(keep(closed_evidence(part.state.out, part.plan.number, strays)))
            fresh.append(closed[-1].select(*_LINKS))
        if Feature.IDS not in part.state.has:
            break
        found = _union(fresh)
        again = keep(found.where("rejections > 0").unionByName(found.join(refused, "origin", "left_semi")).distinct())
        links = [again.select(F.col(link).alias("origin")) for link in ("follows", "next.origin")]
        names = keep(_union(links).where(F.col("origin").isNotNull()))
        if names.isEmpty():
            break
        chains, fresh = again.select(chain_of(F.col("asked")).alias("chain")), []
    return _Earlier(_union([due, *asleep]), _union(asleep) if asleep else None, _union(closed) if closed else None)


def _named(new: Observations, part: Part, due: DataFrame) -> DataFrame:
    names = [rows.select("origin") for rows in (new.rejections, *new.ends)]
    if Feature.CLAIMS in new.has:
        names.append(_of_series(roll_copies.claims(new.parsed)))
    if Feature.SERIES in part.state.has:  # a copy for an occurrence is verified again, by the request
        names.append(_of_series(due))
    if Feature.BY_ORIGIN in new.has:
        of_origin = F.col("asked.of_origin")
        names.append(new.parsed.select(of_origin.alias("origin")).where(of_origin.isNotNull()))
    return _union(names)


def _of_series(rows: DataFrame) -> DataFrame:
    """Return the origins of the rows, and for an occurrence also those of its request and of the one before it."""
    origin = F.col("origin")
    names = F.array(origin, series.of(origin), series.predecessor(origin))
    return rows.select(F.explode(names).alias("origin")).where(F.col("origin").isNotNull())


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def chain_of(asked: Column, by: str = "id") -> Column:
    """Return a hash of partition and id; null without an id. Two of one hash are only both read."""
    return F.when(asked[by].isNotNull(), F.xxhash64(asked["partition"], asked[by]))


def _with_earlier(new: Observations, part: Part, earlier: _Earlier) -> Observations:
    taken, closed = earlier.open, earlier.closed
    known = _union([rows.select("origin") for rows in (taken, closed) if rows is not None])
    has = new.has | part.state.has

    def reset(rows: DataFrame) -> DataFrame:
        """Forget `next` if that request is judged again."""
        ended = rows.where(F.col("next").isNotNull())
        again = known.select(F.col("origin").alias("again"))
        joined = ended.join(again, F.col("next.origin") == F.col("again"), "left")
        still = joined.withColumn("next", F.when(F.col("again").isNull(), F.col("next"))).drop("again")
        return rows.where(F.col("next").isNull()).unionByName(still)

    rows = taken.where(F.col("family") == series.of(F.col("origin"))).select(*EVIDENCE.arrow().names)
    if Feature.CLAIMS in has:  # count copies again, from the claims
        rows = rows.withColumns({"copies": F.lit(None).cast("bigint"), "rolls": F.lit(None).cast("int")})
    if Feature.IDS in part.state.has:
        rows, closed = reset(rows), None if closed is None else reset(closed)
    claims = taken.select(F.explode("claims").alias("claim")).select("claim.*").dropDuplicates(["place"])
    return replace(new, carried=rows, carried_claims=claims if Feature.CLAIMS in has else None, closed=closed, has=has)


def write_changed(out: Location, rows: DataFrame, taken: DataFrame | None, plan: PartPlan) -> None:
    """Write `requests`: rows that differ from those written before; and `standing`: open verdicts and pending
    deliveries, also those that were not judged now. taken: the open timers that were judged again (OPEN)."""
    is_told = F.col("class") != AuditClass.PENDING.value
    changed, still = rows.where(is_told), rows.where((is_told | (F.col("deliveries") > 0)) & F.col("open"))
    if plan.previous is not None:
        stood = read_table(out, OPEN_VERDICTS, plan.previous)
        before = stood.select("origin", F.col("class").alias("was"), F.col("faults").alias("were"))
        was = F.coalesce("was", F.lit(AuditClass.PENDING.value))
        differs = (was != F.col("class")) | (F.coalesce("were", F.array()) != F.col("faults"))
        changed = rows.join(before, "origin", "left").where(differs)
        asleep = stood if taken is None else stood.join(taken.select("origin"), "origin", "left_anti")
        still = still.select(asleep.columns).unionByName(asleep)
    write_table(changed, out, REQUESTS, plan.name)
    write_table(still, out, OPEN_VERDICTS, plan.name)


def _write_state(kept: DataFrame, seen: Observations, part: Part, earlier: _Earlier | None, keep: Keep) -> OpenTimers:
    """Write what the next parts need of the open timers, and the evidence of closed ones."""
    stays = F.col("open") | F.col("ahead")
    _, partition, offset = coverage.parse_origin()
    number = F.lit(part.plan.number).cast("bigint")
    closed = kept.where(~stays).withColumns({"at_partition": partition, "at_offset": offset, "part": number})
    write_table(closed.sortWithinPartitions("at_partition", "at_offset"), part.state.out, CLOSED, part.plan.name)
    rows = keep(_open_rows(kept.where(stays), seen, part))
    counted = {
        "rows": F.count("*"),
        Feature.IDS: F.count_if(F.col("chain").isNotNull() | F.col("asked.of_origin").isNotNull()),
        Feature.CLAIMS: F.count("claims"),
        Feature.MOVES: F.count("pause.ms"),
        Feature.PAUSES: F.count("pause.ms"),
        Feature.BY_ORIGIN: F.count("asked.of_origin"),
        Feature.SERIES: F.count("asked.rule"),
    }
    told = rows.agg(*(count.alias(name) for name, count in counted.items())).collect()[0].asDict()
    was_open = 0 if earlier is None else earlier.open.count()
    plan, count = part.plan, part.state.open - was_open + told["rows"]
    has = part.state.has.union(feature for feature in Feature if told.get(feature))
    after = replace(part.state, part=plan.name, number=plan.number, as_of_ms=plan.as_of_ms, open=count, has=has)
    gone = None
    if earlier is not None and earlier.asleep is not None:
        gone = earlier.asleep.select("origin", "wake_ms", number.alias("part"))
    return part.state.written(rows, gone, after, told["rows"])


def _open_rows(kept: DataFrame, seen: Observations, part: Part) -> DataFrame:
    is_claim = F.coalesce(F.col("kind") == "copy", F.lit(False))
    columns = {
        "wake_ms": _wake_ms(part.plan.as_of_ms),
        "chain": F.when(~is_claim, chain_of(F.col("asked"))),
        "part": F.lit(part.plan.number).cast("bigint"),
    }
    rows = kept.withColumns(columns)
    if Feature.CLAIMS not in seen.has:
        return as_table(rows.withColumn("family", series.of(F.col("origin"))), OPEN)
    # Keep copies of open timers, and claims that are open themselves. A refusal is final.
    told = roll_copies.verified_claims(seen)
    claim = F.struct(*_CLAIM)
    of_timer = told.where("is_copy").groupBy("origin").agg(F.collect_list(claim).alias("copies"))
    own = told.where(~F.col("is_copy")).select(F.col("place").alias("origin"), claim.alias("own"))
    joined = rows.drop("copies").join(of_timer, "origin", "left").join(own.dropDuplicates(["origin"]), "origin", "left")
    # An open claim is kept as a claim: the next run verifies it again, with more evidence.
    cleared = {
        name: F.when(~is_claim, F.col(name)) for name in EVIDENCE.arrow().names if name not in ("origin", "copies")
    }
    cleared["claims"] = F.when(is_claim, F.array("own")).otherwise(F.col("copies"))
    cleared["copies"] = F.lit(None).cast("bigint")
    claimed = F.coalesce("own.origin", "origin")
    cleared["family"] = series.of(F.when(is_claim, claimed).otherwise(F.col("origin")))
    return as_table(joined.withColumns(cleared), OPEN)


def _wake_ms(as_of_ms: int) -> Column:
    """Return when the row has to be looked at again: a missing timer each day, a pending one when it is due.

    Everything else may change soon: it is looked at by the next part.
    """
    sleeps = F.expr("deliveries = 0 AND rejections = 0 AND told_ended = 0 AND next.kind IS NULL") & ~F.col("ahead")
    is_pending = (F.col("class") == AuditClass.PENDING.value) & F.coalesce(sleeps, F.lit(False))
    next_day_ms = (as_of_ms // DAY_MS + 1) * DAY_MS
    due_ms = F.when(is_pending, F.greatest("expected_ms", F.lit(as_of_ms + 1)))
    missing_ms = F.when(F.array_contains("faults", AuditClass.MISSING.value), F.lit(next_day_ms))
    return F.coalesce(missing_ms, due_ms, F.lit(as_of_ms + 1))
