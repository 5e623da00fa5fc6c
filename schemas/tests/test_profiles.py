"""Every profile by its table: headers in, the request or the refusal out; one row for each rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_timer.headers import CONTROL, Asked, Cancel, Claim, Headers, Move, Recurrence, Refusal, Schedule, parse
from schemas.profiles import PROFILES, as_sent, as_stored, read, without_profile
from schemas.rules import Rules

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
ALL = ("native", *PROFILES)
SOON_S, SOON_MS = b"1700000005", NOW_MS + 5000
SOON = b"2023-11-14T22:13:25Z"
Pairs = list[tuple[str, bytes | None]]


def rules(*profiles: str) -> Rules:
    return Rules(
        max_delay_ms=2 * DAY_MS,
        roll_window_ms=DAY_MS,
        profiles=profiles or ALL,
        own_topics=frozenset({"timer.requests"}),
    )


def ask(
    headers: Pairs, *, profiles: tuple[str, ...] = ALL, key: bytes | None = b"k", value: bytes | None = b"v"
) -> Asked:
    return read(headers, NOW_MS, rules(*profiles), key, value)


def code(asked: Asked) -> str:
    assert isinstance(asked, Refusal), asked
    return asked.code


def schedule(profile: str, due_ms: int = SOON_MS, id_: bytes | None = None, *, partition: int = -1) -> Schedule:
    return Schedule("orders", due_ms, partition, id_, False, profile)


# The headers of a schedule five seconds ahead.
LEAST: dict[str, Pairs] = {
    "rocketmq": [("REAL_TOPIC", b"orders"), ("TIMER_DELAY_SEC", b"5")],
    "etf1": [("scheduler-target-topic", b"orders"), ("scheduler-epoch", SOON_S)],
    "kaspr": [("x-scheduler-deliver-to", b"orders"), ("x-scheduler-deliver-at", SOON)],
    "karafka": [("schedule_target_topic", b"orders"), ("schedule_target_epoch", SOON_S)],
    "timebridge": [("X-Timebridge-Where", b"orders"), ("X-Timebridge-When", SOON)],
}
EACH = pytest.mark.parametrize("name", PROFILES)
"""A profile that is missing in LEAST fails."""


def changed(name: str, header: str, value: bytes | None) -> Pairs:
    """The least request of a profile with one header set."""
    return [pair for pair in LEAST[name] if pair[0] != header] + [(header, value)]


# -- All of them


@EACH
def test_the_least_request_is_a_schedule(name: str) -> None:
    id_ = b"k" if PROFILES[name].id_is_key else None
    assert ask(LEAST[name]) == schedule(name, id_=id_)


@EACH
def test_a_profile_that_is_not_on_has_no_say(name: str) -> None:
    assert code(ask(LEAST[name], profiles=("native",))) == "missing-time"
    native: Pairs = [("timer-topic", b"orders"), ("timer-delay-ms", b"7")]
    assert ask(native + LEAST[name]) == Schedule("orders", NOW_MS + 7, -1)


@EACH
def test_any_header_of_ours_makes_it_native(name: str) -> None:
    for header in sorted(CONTROL - {"timer-origin", "timer-rolls", "timer-profile"}):
        headers = [*LEAST[name], (header, b"1")]
        assert ask(headers) == parse(headers, NOW_MS, rules()), header


@EACH
def test_without_its_topic_or_time_it_is_refused(name: str) -> None:
    (topic, time) = LEAST[name]
    assert code(ask([time])) == "missing-topic"
    assert code(ask([topic])) == "missing-time"


@EACH
def test_illegal_targets_are_the_same_for_all_profiles(name: str) -> None:
    for target in (b"", None, b"a b", b"..", b"__consumer_offsets", b"timer.requests", b"x" * 250, b"caf\xc3\xa9"):
        assert code(ask(changed(name, PROFILES[name].topic, target))) == "bad-target", target


@EACH
def test_a_duplicate_header_of_the_profile_is_refused(name: str) -> None:
    for header in sorted(PROFILES[name].control):
        assert code(ask([*LEAST[name], (header, b"1"), (header, b"1")])) == "bad-header"


NO_NUMBERS = [b"", b" 5", b"+5", b"-5", b"5.0", b"5e3", b"0x10", b"five", b"\xd9\xa3", b"9" * 20, b"9" * 400, None]
NUMBERS = [
    *(("rocketmq", header) for header in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")),
    ("rocketmq", "REAL_QID"),
    ("etf1", "scheduler-epoch"),
    ("karafka", "schedule_target_epoch"),
    ("karafka", "schedule_target_partition"),
    ("kaspr", "x-scheduler-deliver-at"),
    ("timebridge", "X-Timebridge-When"),
]


@pytest.mark.parametrize(("name", "header"), NUMBERS)
def test_a_number_that_does_not_parse_is_a_bad_header_and_never_at_once(name: str, header: str) -> None:
    for value in NO_NUMBERS:
        assert code(ask(changed(name, header, value))) == "bad-header", value


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("rocketmq", "TIMER_DELAY_SEC", b"172801"),
        ("rocketmq", "TIMER_DELAY_SEC", b"%d" % ((2**63 - 1) // 1000)),
        ("rocketmq", "TIMER_DELAY_MS", b"%d" % (2 * DAY_MS + 1)),
        ("rocketmq", "TIMER_DELIVER_MS", b"%d" % (2**63 - 1)),
        ("etf1", "scheduler-epoch", b"1700172801"),
        ("karafka", "schedule_target_epoch", b"1700172801"),
        ("kaspr", "x-scheduler-deliver-at", b"9999-12-31T23:59:59.999999+00:00"),
        ("timebridge", "X-Timebridge-When", b"2023-11-16T22:13:20.001Z"),
    ],
)
def test_case_3_one_more_than_max_delay_is_too_far_in_every_spelling(name: str, header: str, value: bytes) -> None:
    headers = [pair for pair in LEAST[name] if pair[0] == PROFILES[name].topic]
    assert code(ask([*headers, (header, value)])) == "too-far"


def test_the_order_of_the_setting_decides_between_two() -> None:
    both = LEAST["rocketmq"] + LEAST["timebridge"]
    assert ask(both, profiles=("native", "rocketmq", "timebridge")) == schedule("rocketmq")
    assert ask(both, profiles=("native", "timebridge", "rocketmq")) == schedule("timebridge")


def test_a_profile_of_a_later_version_is_no_guess() -> None:
    with pytest.raises(ValueError, match="later-one"):
        ask(LEAST["etf1"], profiles=("native", "later-one"))


# -- single ones


@pytest.mark.parametrize(
    ("times", "due_ms"),
    [
        ([("DELAY", b"3")], NOW_MS + 10_000),
        ([("DELAY", b"19")], NOW_MS + 7_200_000),
        ([("DELAY", b"0")], NOW_MS),
        ([("TIMER_DELAY_SEC", b"7")], NOW_MS + 7000),
        ([("TIMER_DELAY_MS", b"7")], NOW_MS + 7),
        ([("TIMER_DELIVER_MS", b"12000")], 12_000),
        ([("TIMER_DELIVER_MS", b"1"), ("TIMER_DELAY_MS", b"7")], NOW_MS + 7),
        ([("TIMER_DELAY_MS", b"7"), ("TIMER_DELAY_SEC", b"2")], NOW_MS + 2000),
        ([("TIMER_DELAY_SEC", b"2"), ("DELAY", b"1")], NOW_MS + 1000),
        ([("TIMER_DELIVER_MS", b"1"), ("TIMER_DELAY_SEC", b"2"), ("DELAY", b"2")], NOW_MS + 5000),
        ([("DELAY", b"0"), ("TIMER_DELAY_SEC", b"2")], NOW_MS + 2000),
        ([("TIMER_DELAY_SEC", b"0"), ("TIMER_DELIVER_MS", b"12000")], NOW_MS),
    ],
)
def test_case_4_rocketmq_keeps_its_precedence(times: Pairs, due_ms: int) -> None:
    assert ask([("REAL_TOPIC", b"orders"), *times]) == schedule("rocketmq", due_ms)


def with_(name: str, *headers: tuple[str, bytes | None]) -> Pairs:
    return [*LEAST[name], *headers]


BY_KEY, CANCELS = ("etf1", "karafka"), (b"cancel", b"tombstone")
KASPR_ID, KASPR_CANCEL = ("x-scheduler-request-id", b"7"), ("x-scheduler-action", b"CANCEL")
ROCKETMQ = (
    (with_("rocketmq", ("TIMER_DELIVER_MS", b"soon")), "bad-header"),  # a bad time of lower rank is no secret
    (with_("rocketmq", ("REAL_QID", b"3"), ("UNIQ_KEY", b"7F00")), schedule("rocketmq", id_=b"7F00", partition=3)),
    *(([(header, b"1")], "missing-time") for header in ("UNIQ_KEY", "REAL_QID")),  # they do not select the profile
    *((with_("timebridge", (header, b"1")), schedule("timebridge")) for header in ("UNIQ_KEY", "REAL_QID")),
    *(
        (with_("rocketmq", (header, id_)), "bad-header")
        for header in ("UNIQ_KEY", "TIMER_DEL_UNIQKEY")
        for id_ in (b"", None, b"x" * 1025)
    ),
)
KASPR = (
    (with_("kaspr", KASPR_ID, ("x-scheduler-action", b"ADD")), schedule("kaspr", id_=b"7")),
    (
        with_("kaspr", KASPR_ID, ("x-scheduler-action", b"REPLACE")),
        Schedule("orders", SOON_MS, -1, b"7", True, "kaspr"),
    ),
    (with_("kaspr", KASPR_ID, KASPR_CANCEL), Cancel(b"7")),
    ([KASPR_ID, KASPR_CANCEL], Cancel(b"7")),  # without time and topic
    *(
        (with_("kaspr", KASPR_ID, ("x-scheduler-action", action)), "unknown-action")
        for action in (b"", None, b"add", b"DROP", b"PAUSE")
    ),
    *((with_("kaspr", ("x-scheduler-action", action)), "missing-id") for action in (b"CANCEL", b"REPLACE")),
)
KARAFKA = (
    (with_("karafka", ("schedule_source_type", b"schedule")), schedule("karafka", id_=b"k")),
    (with_("karafka", ("schedule_source_type", b"cancel")), Cancel(b"k")),
    *(
        (with_("karafka", ("schedule_source_type", kind)), "unknown-action")
        for kind in (b"", None, b"message", b"Schedule")
    ),
    *(
        (with_("karafka", ("schedule_schema_version", version)), schedule("karafka", id_=b"k"))
        for version in (b"1", b"1.0.0", b"1.2")
    ),
    *(
        (with_("karafka", ("schedule_schema_version", version)), "bad-header")
        for version in (b"2.0.0", b"", None, b"1.x", b"10.0.0")
    ),
    (with_("karafka", ("schedule_target_partition", b"3")), schedule("karafka", id_=b"k", partition=3)),
    (with_("karafka", ("schedule_target_partition_key", b"a")), "bad-header"),
)


@pytest.mark.parametrize(("headers", "expected"), [*ROCKETMQ, *KASPR, *KARAFKA])
def test_headers_of_a_profile_are_a_request_or_a_refusal(headers: Pairs, expected: Asked | str) -> None:
    asked = ask(headers)
    assert (asked.code if isinstance(asked, Refusal) else asked) == expected


KARAFKA_SCHEDULE, KARAFKA_VERSION = ("schedule_source_type", b"schedule"), ("schedule_schema_version", b"1.0.0")


@pytest.mark.parametrize(
    ("headers", "key", "value", "expected"),
    [
        (LEAST["etf1"], b"id", None, Cancel(b"id")),
        ([], b"id", None, Cancel(b"id")),  # a bare null
        ([("scheduler-epoch", b"never")], b"id", None, Cancel(b"id")),
        (LEAST["etf1"], b"id", b"", schedule("etf1", id_=b"id")),
        *((LEAST[name], key, value, "missing-id") for name in BY_KEY for key in (None, b"") for value in (b"v", None)),
        *((LEAST[name], b"k" * 1025, b"v", "bad-header") for name in BY_KEY),
        ([("trace", b"1")], b"k", None, "missing-time"),
        ([], b"k", b"", "missing-time"),
        ([], None, None, "missing-time"),
        (LEAST["karafka"], b"k", None, Cancel(b"k")),
        ([KARAFKA_VERSION], b"k", None, Cancel(b"k")),
        (with_("karafka", KARAFKA_SCHEDULE), b"k", None, schedule("karafka", id_=b"k")),  # a null to be delivered
        *((with_("karafka", ("schedule_source_type", kind)), b"k", None, Cancel(b"k")) for kind in CANCELS),
    ],
)
def test_the_key_may_be_the_id_and_a_null_value_a_cancel(
    headers: Pairs, key: bytes | None, value: bytes | None, expected: Asked | str
) -> None:
    asked = ask(headers, key=key, value=value)
    assert (asked.code if isinstance(asked, Refusal) else asked) == expected


def test_a_bare_null_is_a_cancel_for_etf1_alone() -> None:
    for profiles in [("native",), *(("native", name) for name in PROFILES if name != "etf1")]:
        assert code(ask([], value=None, profiles=profiles)) == "missing-time"


@pytest.mark.parametrize(
    ("asked", "cancel"),
    [
        (b"7F00", Cancel(b"7F00")),
        (b"orders+7F00", Cancel(b"orders+7F00", ("orders", b"7F00"))),
        (b"orders+7F00+x", Cancel(b"orders+7F00+x", ("orders", b"7F00+x"))),
        (b"a b+7F00", Cancel(b"a b+7F00")),
        (b"+7F00", Cancel(b"+7F00")),
        (b"orders+", Cancel(b"orders+")),
    ],
)
def test_rocketmq_cancels_by_id_or_by_topic_and_id(asked: bytes, cancel: Cancel) -> None:
    assert ask([("TIMER_DEL_UNIQKEY", asked)]) == cancel
    assert ask([("TIMER_DEL_UNIQKEY", asked), *LEAST["rocketmq"], ("UNIQ_KEY", b"other")]) == cancel


def test_kaspr_a_cron_is_a_recurring_timer() -> None:
    cron, policy = "x-scheduler-cron-expr", "x-scheduler-cron-missed-fire-policy"
    add: Pairs = [LEAST["kaspr"][0], ("x-scheduler-action", b"CRON_ADD"), ("x-scheduler-request-id", b"7")]
    assert LEAST["kaspr"][0][0] == "x-scheduler-deliver-to"
    for told, missed in ((None, "all"), (b"replay", "all"), (b"skip", "none")):
        asked = ask([*add, (cron, b"*/5 * * * *"), *([(policy, told)] if told else [])])
        rule = Recurrence("*/5 * * * *", missed=missed, needs_first=True)
        assert asked == schedule("kaspr", due_ms=NOW_MS, id_=b"7")._replace(recurrence=rule)
    assert code(ask([*add, (cron, b"*/5 * * * *"), (policy, b"sometimes")])) == "bad-header"
    assert code(ask([*add, (policy, b"skip")])) == "bad-header"
    assert code(ask([*add, (cron, b"@daily")])) == "bad-header"
    assert code(ask(add)) == "missing-time"
    assert ask([("x-scheduler-action", b"CRON_CANCEL"), ("x-scheduler-request-id", b"7")]) == Cancel(b"7")
    assert ask([("x-scheduler-action", b"CRON_PAUSE"), ("x-scheduler-request-id", b"7")]) == Move(b"7", "paused")
    assert ask([("x-scheduler-action", b"CRON_RESUME"), ("x-scheduler-request-id", b"7")]) == Move(b"7", "resumed")


# -- Stored headers


@EACH
def test_headers_of_the_table_are_removed(name: str) -> None:
    foreign: Pairs = [("trace", b"1"), ("trace", b"1"), ("none", None), ("DELAYED", b"x"), ("scheduler-key", b"y")]
    own: dict[str, bytes] = dict.fromkeys(sorted(PROFILES[name].control), b"1")
    rule: Pairs = []
    if PROFILES[name].missed:
        own["x-scheduler-cron-missed-fire-policy"] = b"skip"
        rule = [("timer-cron", b"1"), ("timer-missed", b"none")]
    sent = [foreign[0], *own.items(), *foreign[1:]]
    stored = list(as_stored(sent, name))
    assert as_sent(stored) == sent
    key: Pairs = [("timer-key", b"1")] if PROFILES[name].id_is_key else []
    assert without_profile(stored) == foreign + rule + key


def test_native_headers_are_stored_as_they_came() -> None:
    sent: Pairs = [("timer-topic", b"orders"), ("REAL_TOPIC", b"kept")]
    assert as_stored(sent, "") == as_sent(sent) == without_profile(sent) == sent


def test_a_sender_cannot_say_by_which_profile_it_was_read() -> None:
    native: Pairs = [("timer-topic", b"orders"), ("timer-delay-ms", b"7")]
    assert code(ask([("timer-profile", b"rocketmq"), *native])) == "bad-header"
    assert code(ask([("timer-profile", b"rocketmq"), *LEAST["rocketmq"]])) == "bad-header"


NAMES = st.sampled_from(sorted({*CONTROL, *(n for p in PROFILES.values() for n in p.control), "x", "delay"}))
VALUES = (
    st.sampled_from(
        (b"ADD", b"CANCEL", b"REPLACE", b"cancel", b"schedule", b"tombstone", b"orders", b"a+b", SOON, b"1")
    )
    | st.none()
    | st.binary(max_size=20)
    | st.text(max_size=8).map(str.encode)
    | st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n)
    | st.datetimes().map(lambda at: at.isoformat().encode() + b"Z")
)
KEYS = st.none() | st.binary(max_size=10)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=7), KEYS, KEYS, st.permutations(list(PROFILES)))
def test_case_33_whatever_the_headers_the_answer_is_a_request_or_a_refusal(
    headers: Headers, key: bytes | None, value: bytes | None, profiles: list[str]
) -> None:
    match read(headers, NOW_MS, rules("native", *profiles), key, value):
        case Schedule(target=target, due_ms=due_ms, partition=partition, id=id_, profile=profile):
            assert 0 <= due_ms <= NOW_MS + 2 * DAY_MS
            assert -1 <= partition < 2**31
            assert target.isascii()
            assert id_ is None or 0 < len(id_) <= 1024
            stored = list(as_stored(headers, profile))
            assert as_sent(stored) == list(headers)
            assert not profile or {n for n, _ in without_profile(stored)}.isdisjoint(CONTROL - {"timer-key"})
        case Cancel(id=id_):
            assert 0 < len(id_) <= 1024
        case Claim(rolls=rolls):
            assert rolls >= 0
        case Refusal(code=refused, detail=detail):
            assert refused
            assert detail


@EACH
def test_a_header_that_looks_like_ours_is_refused_beside_a_profile_too(name: str) -> None:
    sent = [*LEAST[name], ("timer-ID", b"x")]
    assert isinstance(ask(sent), Schedule), "rules of an older version"
    strict = rules().model_copy(update={"passed_on": frozenset()})
    assert code(read(sent, NOW_MS, strict, b"k", b"v")) == "bad-header"
    strict = rules().model_copy(update={"passed_on": frozenset({"timer-ID"})})
    assert isinstance(read(sent, NOW_MS, strict, b"k", b"v"), Schedule)
