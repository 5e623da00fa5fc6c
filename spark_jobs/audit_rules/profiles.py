"""Records in the headers of other schedulers -> the same requests in our headers, as Spark expressions.

    REAL_TOPIC: orders   TIMER_DELAY_SEC: 5     UNIQ_KEY: 7F   tenant: a
    timer-topic: orders  timer-delay-ms: 5000   timer-id: 7F   tenant: a

The tables are those of schemas.profiles. The parsing is the audit's own, as in headers.py: with the bridge's parser the
audit would repeat its mistakes. A request that its profile refuses becomes one with a `timer-action` that is null.

Nearly every record is native and passes unchanged, after two look-ups. The translation is a lambda, which Spark
interprets: it adds no compiled code, and runs only for the other records.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kafka_timer import headers as names
from schemas.profiles import DEFAULT_PROFILES, NATIVE, PROFILES, Profile, Unit
from spark_jobs.audit_rules import headers as c

_TRANSLATED_DDL = f"STRUCT<key: BINARY, headers: {c.HEADERS_DDL}, whole_id: BINARY>"
_TOPIC_AND_PLUS = r"\A([A-Za-z0-9._-]{1,249})\+"
_ZONE = r"(?:Z|([+-])(\d\d):?(\d\d))\z"
_INSTANTS = {
    Unit.ISO8601: r"\A(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?" + _ZONE,
    Unit.RFC3339: r"\A(\d{4}-\d\d-\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?" + _ZONE.replace(":?", ":"),
}


def translated(records: DataFrame, profiles: Sequence[str] = DEFAULT_PROFILES) -> DataFrame:
    """Return `records` with `key` and `headers` in our spelling: the delivered record's key, our headers, the foreign.

    Adds `own_key`, the record's key as it was sent, and `whole_id`: the value of RocketMQ's `topic+id`, for which the
    translation has the topic and the id. `profiles`: names, by rank.
    """
    theirs = [name for name in profiles if name != NATIVE]
    told = F.lit(None).cast(_TRANSLATED_DDL)
    if theirs:
        record = F.array(F.struct("key", "value", "headers"))
        is_native = c.has(F.col("headers"), names.TOPIC) | c.has(F.col("headers"), names.ACTION)
        told = F.when(~is_native, F.get(F.transform(record, lambda each: _translation(each, theirs)), F.lit(0)))
    spelled = records.withColumn("told", told)
    is_translated = F.col("told").isNotNull()
    columns = {
        "own_key": F.col("key"),
        "key": F.when(is_translated, F.col("told.key")).otherwise(F.col("key")),
        "headers": F.coalesce("told.headers", "headers"),
        "whole_id": F.col("told.whole_id"),
    }
    return spelled.withColumns(columns).drop("told")


def _translation(record: Column, profiles: Sequence[str]) -> Column:
    """Return the record by the first profile that has a header on it; null if it is native, or none has."""
    sent, theirs = record["headers"]["key"], [PROFILES[name] for name in profiles]
    is_native = F.arrays_overlap(sent, F.array(*map(F.lit, sorted(names.CONTROL))))
    found = F.when(is_native, F.lit(None).cast(_TRANSLATED_DDL))
    for profile in theirs:
        has_one = F.arrays_overlap(sent, F.array(*map(F.lit, sorted(profile.control - profile.silent))))
        found = found.when(has_one, _by(profile, record))
    is_bare_null = (F.size(sent) == 0) & record["key"].isNotNull() & record["value"].isNull()
    for profile in [each for each in theirs if each.bare_null_cancels][:1]:
        found = found.when(is_bare_null, _by(profile, record))
    return found


def _by(profile: Profile, record: Column) -> Column:
    sent, key = record["headers"], record["key"]
    owned = F.filter(sent["key"], lambda name: name.isin(*profile.control))
    is_doubled = F.size(owned) != F.size(F.array_distinct(owned))
    action = F.when(~is_doubled, _action(profile, record))
    is_bare = F.coalesce(action.cast("string").isin("cancel", "pause", "resume"), F.lit(False))
    schedule = _schedule(profile, sent)
    wrong = ~is_bare & _is_refused(profile, sent)
    ours = [
        (names.ACTION, F.lit(True), F.when(~wrong, action)),
        *((name, ~is_bare & is_there, value) for name, is_there, value in schedule),
    ]
    whole, is_named = F.lit(None).cast("binary"), F.lit(False)
    if profile.cancels is not None:
        # Its value may be an id, or a topic, `+` and an id.
        raw, is_named = c.value_of(sent, profile.cancels), c.has(sent, profile.cancels)
        topic = F.regexp_extract(raw.cast("string"), _TOPIC_AND_PLUS, 1).cast("binary")
        rest = F.substring(raw, F.length(topic) + 2, F.length(raw))
        is_both = c.topic_name(topic).isNotNull() & (F.length(rest) > 0) & (F.length(raw) <= names.MAX_ID_BYTES)
        ours += [(names.TOPIC, is_named & is_both, topic), (names.ID, is_named, F.when(is_both, rest).otherwise(raw))]
        whole = F.when(is_named & is_both, raw)
    ours += [(name, ~is_named & is_there, value) for name, is_there, value in _id(profile, record)]
    parts = (
        (is_there, F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, is_there, value in ours
    )
    listed = F.array(*(F.when(is_there, F.struct(name, value)) for is_there, name, value in parts))
    foreign = F.filter(sent, lambda header: ~header["key"].isin(*profile.control))
    return F.struct(
        (c.value_of(sent, profile.key or "") if profile.id_is_key else key).alias("key"),
        F.concat(F.array_compact(listed), foreign).cast(c.HEADERS_DDL).alias("headers"),
        whole.alias("whole_id"),
    )


Told = tuple[str, Column, Column]
"""A header of ours: its name, whether it is there, its value."""


def _action(profile: Profile, record: Column) -> Column:
    """Return the value of `timer-action`; null for an action that does not exist."""
    sent = record["headers"]
    unsaid = F.lit(b"schedule")
    if profile.null_cancels:
        unsaid = F.when(record["value"].isNull(), F.lit(b"cancel")).otherwise(unsaid)
    action = unsaid
    if profile.action is not None:
        known = c.lookup(profile.actions, c.value_of(sent, profile.action))
        action = F.when(c.has(sent, profile.action), known).otherwise(unsaid)
    if profile.cancels is not None:
        action = F.when(c.has(sent, profile.cancels), F.lit(b"cancel")).otherwise(action)
    return action


def _id(profile: Profile, record: Column) -> list[Told]:
    if profile.id_is_key:
        return [(names.ID, F.lit(True), record["key"])]
    if profile.id is None:
        return []
    return [(names.ID, c.has(record["headers"], profile.id), c.value_of(record["headers"], profile.id))]


def _schedule(profile: Profile, sent: Column) -> list[Told]:
    """Return topic, partition and time. If there are several times, the first that does not yield counts."""
    told = [(names.TOPIC, c.has(sent, profile.topic), c.value_of(sent, profile.topic))]
    if profile.partition is not None:
        told.append((names.PARTITION, c.has(sent, profile.partition), c.value_of(sent, profile.partition)))
    is_there = [c.has(sent, time.header) for time in profile.times]
    numbers = [_number(time.unit, c.value_of(sent, time.header)) for time in profile.times]
    counts = [
        there & (number != 0) if time.zero_yields else there
        for time, there, number in zip(profile.times, is_there, numbers, strict=True)
    ]
    places = [*enumerate(counts), *enumerate(is_there)]
    rank = F.coalesce(*(F.when(applies, F.lit(place)) for place, applies in places))
    if profile.cron is not None and profile.missed is not None:
        policy, has_cron = profile.missed, c.has(sent, profile.cron)
        told += [(names.CRON, has_cron, c.value_of(sent, profile.cron))]
        told += [(names.MISSED_POLICY, has_cron, _missed(policy, sent))]
    for place, time in enumerate(profile.times):
        value = numbers[place].cast("string").cast("binary")
        told.append((time.ours, F.coalesce(rank == place, F.lit(False)), value))
    return told


def _missed(policy: tuple[str, Mapping[bytes | None, bytes]], sent: Column) -> Column:
    """Return the value of `timer-missed`; null for a policy that does not exist."""
    header, values = policy
    told = {theirs: ours for theirs, ours in values.items() if theirs is not None}
    return F.when(c.has(sent, header), c.lookup(told, c.value_of(sent, header))).otherwise(F.lit(values[None]))


def _is_refused(profile: Profile, sent: Column) -> Column:
    """Return True for what our headers cannot say: a feature that we lack, a version, a second time that is wrong."""
    wrong = [c.has(sent, header) for header in sorted(profile.unserved)]
    if profile.versions is not None:
        header, versions = profile.versions
        fits = c.value_of(sent, header).cast("string").rlike(rf"\A(?:{versions.pattern.decode()})\z")
        wrong.append(c.has(sent, header) & ~F.coalesce(fits, F.lit(False)))
    if profile.cron is not None and profile.missed is not None:
        has_policy, has_cron = c.has(sent, profile.missed[0]), c.has(sent, profile.cron)
        wrong.append((has_policy & ~has_cron) | (has_cron & _missed(profile.missed, sent).isNull()))
    wrong += [
        c.has(sent, time.header) & _number(time.unit, c.value_of(sent, time.header)).isNull() for time in profile.times
    ]
    return reduce(or_, wrong)


def _number(unit: Unit, value: Column) -> Column:
    """Return the number for our header; null if the value does not parse."""
    if unit in _INSTANTS:
        return _instant_ms(value.cast("string"), _INSTANTS[unit])
    number = c.decimal(value)
    return F.when(number <= names.MAX_INT64 // 1000, number * 1000) if unit is Unit.SECONDS else number


def _instant_ms(text: Column, form: str) -> Column:
    """Return epoch ms from 1970 on, rounded up to the millisecond; null for anything else."""

    def part(group: int) -> Column:
        return F.regexp_extract(text, form, group)

    hour, minute, zone_hour, zone_minute = (part(group).try_cast("int") for group in (2, 3, 7, 8))
    second = F.coalesce(part(4).try_cast("int"), F.lit(0))
    day = F.unix_date(part(1).try_cast("date"))
    zone_s = F.coalesce(zone_hour * 3600 + zone_minute * 60, F.lit(0))
    legal = (hour <= 23) & (minute <= 59) & (second <= 59)
    legal &= F.coalesce((zone_hour <= 23) & (zone_minute <= 59), F.lit(True))
    seconds = day.cast("bigint") * 86_400 + hour * 3600 + minute * 60 + second
    seconds = F.when(part(6) == "-", seconds + zone_s).otherwise(seconds - zone_s)
    ms = seconds * 1000 + F.ceil(F.rpad(part(5), 9, "0").cast("bigint") / 1_000_000)
    return F.when(text.rlike(form) & legal & (ms >= 0), ms)
