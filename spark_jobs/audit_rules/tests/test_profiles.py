"""Requests in any spelling: the audit's parser beside the bridge's, for many random records."""

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from struct import pack
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from xxhash import xxh64_intdigest

from kafka_timer import headers as names
from schemas.profiles import DEFAULT_PROFILES, PROFILES, as_stored, read, without_profile
from schemas.rules import Rules
from spark_jobs.audit_rules.requests import requests
from spark_jobs.platform.tables import RECORDS_DDL
from spark_jobs.tests.one_run import Judging, one_run
from spark_jobs.tests.records import OWN, Headers, History, Record, delivery, rejection

pytestmark = pytest.mark.spark

SETTINGS = (DEFAULT_PROFILES, (*reversed([*PROFILES]), "native"))
RECORDS = 1_500
"""Of each setting."""
ASKED_MS = 1_700_000_000_000
INSTANTS = (
    *(b"2026-12-24T18:00:00Z", b"2026-12-24T18:00:00.0001Z", b"2026-12-24 19:30+01:30", b"2024-02-29T23:59:59+23:59"),
    *(b"2026-12-24T18:00:00,999999999-0330", b"2026-12-24T18:00:00.001+01:00", b"9999-12-31T23:59:59-23:59"),
    *(b"1970-01-01T00:00:00Z", b"1970-01-01T00:00:00+00:01", b"0000-01-01T00:00:00Z", b"2025-02-29T18:00:00Z"),
    *(b"2026-13-01T18:00:00Z", b"2026-12-24T24:00:00Z", b"2026-12-24T18:60:00Z", b"2026-12-24T18:00:60Z"),
    *(b"2026-12-24T18:00:00+24:00", b"2026-12-24T18:00:00+00:60", b"2026-12-24T18:00:00", b"2026-12-24T18:00:00.Z"),
    *(b"2026-12-24T18:00:00.1234567890Z", b"2026-12-24t18:00:00Z", b"2026-12-24T18:00:00Z\n"),
    "\u0662\u0660\u0662\u0666-12-24T18:00:00Z".encode(),  # digits, but no ASCII
)
NUMBERS = (b"0", b"5", b"18", b"999", b"1798135200", b"1798135200000", b"9223372036854775", b"9223372036854776")
ODD = (
    *(None, b"", b"+5", b"-5", b" 5", b"5 ", b"5\n", b"5\0", b"5.0", b"5e3", b"0x5", b"1_000", b"NaN", b"\xff"),
    *(b"%d" % (2**63 - 1), b"%d" % 2**63, b"%d" % 2**64, b"%d" % 2**31, b"0" * 18 + b"7", b"0" * 19 + b"7"),
    "\u0665".encode(),  # a digit, but no ASCII
)
LONG = (b"i" * 1025,)
TOPICS = (
    *(b"orders", b"orders", b"bills", b"a.B_c-9", b"timer.receipts", b"__own", b"_own", b"a b", b"", b".", b"..", None),
    *(b"x" * 249, b"x" * 250, b"orders\n", b"\xff", "ö".encode()),
)
IDS = (
    *(b"x", b"7F00", b"\xff\x00", b"orders+x", b"a+b+c", b"+x", b"orders+", b"..+x", b"a b+x"),
    *(b"i" * 1024, b"i" * 1025),
)
ACTIONS = (
    *(b"schedule", b"cancel", b"tombstone", b"ADD", b"CANCEL", b"REPLACE", b"replace", b"move"),
    *(b"CRON_ADD", b"CRON_PAUSE"),
)
VERSIONS = (b"1", b"1.0.0", b"1.0.0.0", b"2.0.0", b"1.0.0\n")
NATIVE = (names.ID, names.ACTION, names.PARTITION, names.EXPIRE_MS, names.KEY)
RULES: dict[str, tuple[bytes | None, ...]] = {
    names.CRON: (
        *(b"* * * * *", b"0  9 * * MON-FRI", b" 0 0 1 1 * ", b"* * * *", b"", None, b"x" * 101, "ä * * * *".encode()),
    ),
    names.EVERY_MS: (b"1000", b"60000", b"999", b"", None, b"1e3", b"99999999999999999999"),
    names.ZONE: (b"UTC", b"Europe/Berlin", b"", None, b"\xff", b"a\nb"),
    names.UNTIL_MS: (b"5000", b"0", b"-1", None),
    names.COUNT: (b"1", b"0", b"7", b"", None),
    names.MISSED_POLICY: (b"one", b"all", b"none", b"some", b"", None),
    names.OCCURRENCE: (b"1",),
    names.SCHEDULED_MS: (b"5",),
}
"""Values of the headers of recurring timers, a good one first, if there is any."""
POOLS = (INSTANTS, NUMBERS, ODD, TOPICS, IDS, ACTIONS, VERSIONS, LONG)
TENANT = ("tenant", b"a")


def random_value(random: Random) -> bytes | None:
    return random.choice(random.choice(POOLS))


def fitting_value(header: str, random: Random) -> bytes | None:
    """A value of the kind that the header has, mostly."""
    if random.random() < 0.08:
        return random_value(random)
    if header == names.ACTION and random.random() < 0.5:
        return b"replace"
    if header in RULES:
        return random.choice(RULES[header]) if random.random() < 0.4 else RULES[header][0]
    low = header.lower()
    if "topic" in low or "deliver-to" in low or "where" in low:
        return random.choice(TOPICS[:4] if random.random() < 0.8 else TOPICS)
    if "deliver-at" in low or "when" in low:
        return random.choice(INSTANTS)
    if "uniq" in low or "id" in low.replace("deliver", ""):
        return random.choice(IDS)
    if "action" in low or "source_type" in low:
        return random.choice(ACTIONS)
    return random.choice(VERSIONS if "version" in low else NUMBERS)


def native(random: Random) -> list[str]:
    if random.random() < 0.1:
        return [names.ACTION, names.ID, random.choice(names.TIMES)]
    time = random.choice(names.TIMES)
    return [names.TOPIC, time, *(name for name in NATIVE if random.random() < 0.2)]


def random_headers(random: Random) -> Headers:
    if random.random() < 0.05:
        return []
    style = random.choice(["native", "native", "recurring", "recurring", *PROFILES, *PROFILES])
    if style == "native":
        wanted = native(random)
    elif style == "recurring":
        others = sorted({*RULES, names.DELIVER_MS, names.DELAY_MS, names.EXPIRE_MS})
        wanted = [names.TOPIC, random.choice((names.CRON, names.EVERY_MS)), *random.sample(others, random.randrange(4))]
        wanted += [names.ID, names.ACTION] * (random.random() < 0.2)
    else:
        profile = PROFILES[style]
        rest = sorted(profile.control - {profile.topic, *(time.header for time in profile.times)})
        wanted = [profile.topic, random.choice(profile.times).header]
        wanted += [name for name in rest if random.random() < (0.05 if name in profile.unserved else 0.3)]
    theirs = {name for profile in PROFILES.values() for name in profile.control}
    everything = sorted({*names.TIMES, names.KEY, names.PROFILE, *theirs})
    wanted += [random.choice(everything) for _ in range(3) if random.random() < 0.1]
    wanted += [random.choice(wanted) for _ in range(2) if random.random() < 0.03]
    wanted = [name for name in wanted if random.random() > 0.05]
    found: list[tuple[str, bytes | None]] = [(name, fitting_value(name, random)) for name in wanted]
    found += [("tenant", random.choice([None, b"", b"a"])) for _ in range(random.choice((0, 1, 2, 9)))]
    random.shuffle(found)
    return found


def random_record(offset: int, random: Random) -> Record:
    key = random.choice((None, b"", b"k", *LONG, *IDS)) if random.random() < 0.5 else b"k"
    value = random.choice((None, b"", b"v"))
    return Record("timer.requests", 0, offset, ASKED_MS, "LogAppendTime", key, value, random_headers(random))


def odd_records(first: int) -> list[Record]:
    """Return native requests with each odd value as a delay, as a partition and as a topic, and many other headers."""
    good: dict[str, bytes | None] = {names.TOPIC: b"orders", names.DELAY_MS: b"5"}
    odd = [good | {name: value} for name in (names.DELAY_MS, names.PARTITION) for value in ODD]
    odd += [good | {names.TOPIC: value} for value in TOPICS]
    lists = [[*each.items(), *[TENANT] * count] for each in odd for count in (0, 9)]
    lists += [[*good.items(), (names.ID, b"x"), (names.ID, b"x"), *[TENANT] * count] for count in (0, 4, 9)]
    key = (ASKED_MS, "LogAppendTime", b"k", b"v")
    return [Record("timer.requests", 0, first + at, *key, headers) for at, headers in enumerate(lists)]


def digest(value: bytes | None) -> bytes:
    return b"" if value is None else sha256(value).digest()[:16]


def hash_of(*parts: bytes | None) -> int:
    """Spark's `xxhash64`: the hash of each part is the seed of the next; nulls are passed over."""
    seed = 42
    for part in parts:
        seed = seed if part is None else xxh64_intdigest(part, seed)
    return seed - 2**64 if seed >= 2**63 else seed


def hash_of_headers(headers: Headers) -> int:
    return hash_of(*(part for n, v in headers for part in (n.encode(), v or b"", pack("<i", v is None))))


def expected(record: Record, profiles: Sequence[str]) -> tuple[Any, ...]:
    """What the bridge's parser says."""
    rules = Rules(max_delay_ms=names.MAX_INT64, roll_window_ms=1, profiles=tuple(profiles), own_topics=OWN)
    asked = read(record.headers, record.timestamp_ms, rules, record.key, record.value)
    if isinstance(asked, names.Move) and str(asked.due_ms) in ("paused", "resumed"):
        return str(asked.due_ms).removesuffix("d"), digest(asked.id)
    if isinstance(asked, names.Cancel):
        topic, id_ = asked.fallback or (None, asked.id)
        return "cancel", digest(id_), *((topic, digest(asked.id)) if topic is not None else ())
    if isinstance(asked, names.Move) and isinstance(asked.due_ms, int) and asked.due_ms <= names.MAX_INT64:
        return "move", digest(asked.id), asked.due_ms
    if isinstance(asked, names.Schedule) and asked.due_ms <= names.MAX_INT64:
        kept = without_profile(list(as_stored(record.headers, asked.profile)))
        return (
            "replace" if asked.replaces else "schedule",
            None if asked.id is None else digest(asked.id),
            asked.target,
            asked.due_ms,
            None if asked.partition < 0 else asked.partition,
            hash_of(dict(kept).get(names.KEY, record.key)),
            hash_of(record.value),
            hash_of_headers([header for header in kept if header[0] not in names.CONTROL]),
            asked.recurrence is not None,
        )
    return ("malformed",)


def found_in(asked: Any) -> tuple[Any, ...]:
    """What the audit's parser says."""
    if asked.malformed:
        return ("malformed",)
    id_ = None if asked.id is None else bytes(asked.id)
    if asked.kind == "cancel":
        return "cancel", id_, *(() if asked.whole_id is None else (asked.target, bytes(asked.whole_id)))
    if asked.kind == "move":
        return "move", id_, asked.due_ms
    if asked.kind in ("pause", "resume"):
        return asked.kind, id_
    want = (asked.want[part] for part in ("key", "value", "headers"))
    return asked.kind, id_, asked.target, asked.due_ms, asked.want_partition, *want, asked.rule is not None


def sent_by(name: str, offset: int) -> Record:
    """A schedule of this profile: due in `orders` with key `key` at 50 s. Its offset is its id."""
    id_, at, written = b"%d" % offset, b"50", b"1970-01-01T00:00:50Z"
    key, spelled = {
        "rocketmq": (b"key", [("REAL_TOPIC", b"orders"), ("TIMER_DELIVER_MS", b"50000"), ("UNIQ_KEY", id_)]),
        "etf1": (
            id_,
            [("scheduler-target-topic", b"orders"), ("scheduler-target-key", b"key"), ("scheduler-epoch", at)],
        ),
        "kaspr": (
            b"key",
            [
                ("x-scheduler-deliver-to", b"orders"),
                ("x-scheduler-deliver-at", written),
                ("x-scheduler-request-id", id_),
                ("x-scheduler-action", b"REPLACE"),
            ],
        ),
        "karafka": (
            id_,
            [("schedule_target_topic", b"orders"), ("schedule_target_key", b"key"), ("schedule_target_epoch", at)],
        ),
        "timebridge": (b"key", [("X-Timebridge-Where", b"orders"), ("X-Timebridge-When", written)]),
    }[name]
    return Record("timer.requests", 0, offset, 1_000, "LogAppendTime", key, b"value", [TENANT, *spelled])


def copy_of(asked: Record, name: str, offset: int) -> Record:
    """The bridge's copy: in native headers, with the delivered key if the record's key is the id."""
    told: list[tuple[str, bytes | None]] = [(names.TOPIC, b"orders"), (names.DELIVER_MS, b"50000")]
    told += [] if name == "timebridge" else [(names.ID, b"%d" % asked.offset)]
    told += [TENANT, *([(names.KEY, b"key")] if PROFILES[name].id_is_key else [])]
    claim = [(names.ORIGIN, asked.origin.encode()), (names.ROLLS, b"1")]
    return asked._replace(offset=offset, timestamp_ms=2_000, headers=[*told, *claim])


@one_run()
def test_a_request_of_each_profile_is_delivered_rolled_or_rejected() -> Judging:
    """Delivered without its profile's headers, rejected with all of them; a copy has native ones."""
    history = History(profiles=("native", *PROFILES))
    expected_classes: dict[str, str] = {}
    for at, name in enumerate(PROFILES):
        first = 10 * at
        came, rolled, refused, wrong = (sent_by(name, first + n) for n in range(4))
        history.requests += [came, rolled, refused, wrong, copy_of(rolled, name, first + 4)]
        history.deliveries += [
            delivery(came, due_ms=50_000, foreign=[TENANT]),
            delivery(rolled, due_ms=50_000, foreign=[TENANT], rolls=1),
            delivery(wrong, due_ms=50_000, foreign=[TENANT, wrong.headers[1]]),
        ]
        history.rejections.append(rejection(refused, "unknown-topic", at_ms=50_003))
        told = ("delivered", "delivered", "rejected", "altered")
        expected_classes |= {str(first + n): name for n, name in enumerate(told)}
    nobody = Record("timer.requests", 0, 90, 1_000, "LogAppendTime", b"k", b"v", [("scheduler-epoch", b"soon")])
    bare = nobody._replace(offset=91, timestamp_ms=60_000, key=b"11", value=None, headers=[])
    history.requests += [nobody, bare]
    history.rejections.append(rejection(nobody))
    found = yield history
    assert found.classes == expected_classes | {"90": "rejected", "91": "cancel-too-late"}
    assert [row.copies for row in found.rows if row.offset % 10 == 1 and row.offset < 90] == [1] * len(PROFILES)


def test_the_bridges_parser_agrees(spark: SparkSession) -> None:
    """All records in one Spark job."""
    random = Random(1)
    sent = [[*(random_record(n, random) for n in range(RECORDS)), *odd_records(RECORDS)] for _ in SETTINGS]
    parsed: DataFrame | None = None
    for at, (profiles, records) in enumerate(zip(SETTINGS, sent, strict=True)):
        rows = requests(spark.createDataFrame(records, RECORDS_DDL), own_topics=OWN, profiles=profiles)
        rows = rows.select(F.lit(at).alias("setting"), "asked")
        parsed = rows if parsed is None else parsed.unionByName(rows)
    assert parsed is not None
    kinds: set[tuple[Any, ...]] = set()
    for setting, asked in parsed.collect():
        record = sent[setting][asked.offset]
        told = expected(record, SETTINGS[setting])
        kinds.add((told[0], len(told), told[-1] is True))
        assert found_in(asked) == told, (SETTINGS[setting], record)
    recurring = {("schedule", 9, True), ("replace", 9, True)}
    others = {("schedule", 9), ("replace", 9), ("cancel", 2), ("cancel", 4), ("move", 3), ("malformed", 1)}
    assert recurring | {(*each, False) for each in others} <= kinds
