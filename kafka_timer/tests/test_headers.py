"""Headers in, meaning or refusal out: every malformed number of the design, one row each."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_timer.headers import (
    ERROR,
    ERROR_DETAIL,
    MAX_INT64,
    TRACE_ID,
    Asked,
    ByOrigin,
    Cancel,
    Claim,
    FixedLimits,
    Move,
    Pause,
    Refusal,
    Schedule,
    legal_topic,
    parse,
)
from kafka_timer.levels import parse_levels
from kafka_timer.retry import _RETRY_HEADERS

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LIMITS = FixedLimits(2 * DAY_MS, own_topics=frozenset({"timer.requests"}), passed_on=frozenset({"timer-tenant"}))


def ask(*headers: tuple[str, bytes | None], without: str | None = None) -> Asked:
    """Parse a record with these headers, and a good target and time unless `headers` or `without` replace them."""
    given = {name for name, _ in headers} | {without}
    if given & {"timer-delay-ms", "timer-delay-level"} and "timer-deliver-ms" not in given:
        given.add("timer-deliver-ms")
    defaults = [("timer-topic", b"orders"), ("timer-deliver-ms", b"%d" % (NOW_MS + 1000))]
    return parse([d for d in defaults if d[0] not in given] + list(headers), NOW_MS, LIMITS)


def code(asked: Asked) -> str:
    assert isinstance(asked, Refusal), asked
    return asked.code


LEVELS = [(0, 0), (1, 1), (2, 5), (3, 10), (18, 7200), (19, 7200), (10**18, 7200)]
"""A level, and its delay in seconds."""
LATEST = (("timer-deliver-ms", NOW_MS), ("timer-delay-ms", 0))
"""Headers of a time, and the value that stands for now."""
NO_NUMBERS = [
    *(b"", b" ", b" 5", b"5 ", b"+5", b"-5", b"-0", b"5.0", b"5e3", b"0x10", b"1_000", b"five", b"5\x00", b"5\n"),
    *("\u0663".encode(), b"\xff\xfe", b"NaN", b"%d" % 2**63, b"%d" % 2**64, b"9" * 400),  # the first: no ASCII digit
    None,
]


OWN = Schedule("orders", NOW_MS + 1000, -1)
"""The timer of `ask` without other headers."""
CANCEL, MOVE, REPLACE, PAUSE, RESUME = (
    ("timer-action", action) for action in (b"cancel", b"move", b"replace", b"pause", b"resume")
)
COPY = ("timer-origin", b"t/0/1"), ("timer-rolls", b"2")
ID, PLACE, NOW = ("timer-id", b"x"), ("timer-of", b"timer.requests/3/7"), ("timer-deliver-ms", b"%d" % NOW_MS)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        *(
            ([(name, value)], "bad-header")
            for name in ("timer-deliver-ms", "timer-delay-ms", "timer-partition")
            for value in NO_NUMBERS
        ),
        *(([("timer-delay-level", b"%d" % n)], OWN._replace(due_ms=NOW_MS + 1000 * s)) for n, s in LEVELS),
        *(([(name, b"%d" % (base + 2 * DAY_MS))], OWN._replace(due_ms=NOW_MS + 2 * DAY_MS)) for name, base in LATEST),
        *(([(name, b"%d" % (base + 2 * DAY_MS + 1))], "too-far") for name, base in LATEST),
        ([("timer-delay-ms", b"%d" % MAX_INT64)], "too-far"),
        ([("timer-expire-ms", b"%d" % (OWN.due_ms + 1))], OWN),
        *(([("timer-expire-ms", v)], "bad-header") for v in (b"%d" % OWN.due_ms, b"1", b"", b"-1", b"1e9", None)),
        *(([(name, b"1"), (name, b"1")], "bad-header") for name in ("timer-topic", "timer-deliver-ms", "timer-key")),
        *(([(name, b"1"), (name, b"1")], "bad-header") for name in ("timer-partition", "timer-origin")),
        ([("timer-partition", b"2147483647")], OWN._replace(partition=2147483647)),
        ([("timer-partition", b"2147483648")], "bad-header"),
        ([("timer-deliver-ms", b"%d" % 10**11)], Schedule("orders", 10**11, -1)),
        ([("timer-deliver-ms", b"%d" % (10**11 - 1))], "bad-header"),
        ([("timer-deliver-ms", b"%d" % (10**15 - 1))], "too-far"),
        ([("timer-deliver-ms", b"%d" % 10**15)], "bad-header"),
        ([("timer-delay-ms", b"0")], Schedule("orders", NOW_MS, -1)),
        ([("timer-delay-ms", b"0005")], Schedule("orders", NOW_MS + 5, -1)),
        ([("timer-deliver-ms", b"1"), ("timer-delay-ms", b"1")], "ambiguous-time"),
        ([("timer-topic", b"x" * 249)], OWN._replace(target="x" * 249)),
        ([("timer-key", b"")], OWN),
        ([("timer-key", None)], "bad-header"),
        ([("timer-origin", b"t/0/1")], "not-ours"),
        ([("timer-rolls", b"1")], "not-ours"),
        ([*COPY, ID, ("timer-deliver-ms", b"5")], Claim(b"t/0/1", 2, Schedule("orders", 5, -1, b"x"))),
        ([*COPY, ("timer-partition", b"3")], Claim(b"t/0/1", 2, OWN._replace(partition=3))),
        ([*COPY, ("timer-partition", b"2147483648")], "not-ours"),
        ([COPY[0], ("timer-rolls", b"2147483648")], "not-ours"),
        ([CANCEL, ID], Cancel(b"x")),
        ([CANCEL, ("timer-id", b"x" * 1025)], "bad-header"),
        ([MOVE, ID, ("timer-delay-ms", b"%d" % (2 * DAY_MS + 1))], "too-far"),
        ([ID], OWN._replace(id=b"x")),
        ([ID, REPLACE], OWN._replace(id=b"x", replaces=True)),
        ([CANCEL], "missing-id"),
        ([REPLACE], "missing-id"),
        *(([("timer-action", action), ID], "unknown-action") for action in (b"", b"Cancel", b"drop", None)),
        *(([("timer-id", id_)], "bad-header") for id_ in (b"", None, b"x" * 1025)),
        ([PLACE], OWN),  # a foreign header
        ([CANCEL, PLACE], ByOrigin(PLACE[1], None)),
        ([CANCEL, PLACE, ID], Cancel(b"x")),  # as before there was timer-of
        ([MOVE, PLACE, NOW], ByOrigin(PLACE[1], NOW_MS)),
        ([MOVE, PLACE, ("timer-deliver-ms", b"%d" % (NOW_MS // 1000))], "bad-header"),
        ([PAUSE, ID], Move(b"x", "paused")),
        ([RESUME, ID, PLACE], Move(b"x", "resumed")),
        ([PAUSE, PLACE, ("timer-deliver-ms", b"5")], ByOrigin(PLACE[1], "paused")),  # it needs no time
        ([PAUSE], Pause()),
        ([RESUME, PLACE, PLACE], "bad-header"),
        ([PAUSE, ("timer-id", b"")], "bad-header"),
        ([CANCEL, ID, ("timer-deliver-ms", b"5")], Cancel(b"x")),  # a cancel needs no time
        ([CANCEL, PLACE, PLACE], "bad-header"),
        ([CANCEL, ("timer-of", None)], "bad-header"),
        ([REPLACE, PLACE], "missing-id"),
        (
            [("trace", b"a"), ("trace", b"a"), ("none", None), ("timer", b"x"), ("timer_id", b""), ("a-timer-x", b"")],
            OWN,
        ),
        *(([(name, b"")], OWN) for name in (*_RETRY_HEADERS, TRACE_ID, ERROR, ERROR_DETAIL, "timer-tenant")),
        *(([(name, b"x")], "bad-header") for name in ("Timer-Tenant", "timer-", "timer-ID", "timer-unheard-of")),
        ([CANCEL, ID, ("Timer-Topic", b"x")], "bad-header"),
        ([*COPY, ("timer-x", b"")], Claim(b"t/0/1", 2, OWN)),
        *(
            ([("timer-topic", target)], "bad-target")
            for target in (b"", b".", b"..", b"a b", b"a/b", b"caf\xc3\xa9", b"orders\n", b"x" * 250, None)
        ),
        ([("timer-topic", b"__consumer_offsets")], "bad-target"),
        ([("timer-topic", b"timer.requests")], "bad-target"),
    ],
)
def test_cases_3_7_and_32_headers_are_a_request_or_a_refusal(
    headers: list[tuple[str, bytes | None]], expected: Asked | str
) -> None:
    asked = ask(*headers)
    assert (asked.code if isinstance(asked, Refusal) else asked) == expected


def test_a_missing_time_or_topic_is_named() -> None:
    assert code(ask(without="timer-deliver-ms")) == "missing-time"
    assert code(ask(without="timer-topic")) == "missing-topic"
    assert code(parse([MOVE, PLACE], NOW_MS, LIMITS)) == "missing-time"
    assert parse([CANCEL, PLACE], NOW_MS, LIMITS) == ByOrigin(PLACE[1], None)
    assert parse([CANCEL, ID], NOW_MS, LIMITS) == Cancel(b"x")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("timer-ID", 'the header "timer-ID" is none of the bridge\'s: did you mean timer-id?'),
        ("timer-delay", "did you mean timer-delay-ms?"),
        ("Timer-Topic", "did you mean timer-topic?"),
        ("TIMER-DELIVER-MS", "did you mean timer-deliver-ms?"),
        ("timer-expires-ms", "did you mean timer-expire-ms?"),
        ("timer-tenant-of-ours", '"timer-tenant-of-ours" is none of the bridge\'s: rename it, or have passed_headers'),
        ("timer-\n", "0x74696d65722d0a"),
    ],
)
def test_an_unknown_timer_header_is_refused_with_the_nearest_name(name: str, told: str) -> None:
    asked = ask((name, b"x"))
    assert isinstance(asked, Refusal)
    assert asked.code == "bad-header"
    assert told in asked.detail


@pytest.mark.parametrize(
    ("number", "unit"), [(0, "sec"), (NOW_MS // 1000, "sec"), (NOW_MS * 1000, "micro"), (NOW_MS * 10**6, "nano")]
)
def test_a_due_time_in_another_unit_is_refused_with_the_unit(number: int, unit: str) -> None:
    asked = ask(("timer-deliver-ms", b"%d" % number))
    assert isinstance(asked, Refusal)
    assert asked.code == "bad-header"
    assert f"timer-deliver-ms is {number}, which looks like {unit}" in asked.detail
    for name in ("timer-expire-ms", "timer-until-ms"):
        headers = [("timer-topic", b"orders"), ("timer-every-ms", b"1000"), (name, b"%d" % number)]
        asked = parse(headers, NOW_MS, LIMITS)
        assert isinstance(asked, Refusal)
        assert f"{name} is {number}, which looks like {unit}" in asked.detail
        if number > NOW_MS:
            assert isinstance(parse(headers, NOW_MS, LIMITS._replace(passed_on=None)), Schedule), "as before"
    assert isinstance(ask(("timer-deliver-ms", b"%d" % NOW_MS), ("timer-expire-ms", b"253402300799999")), Schedule)


def test_a_request_that_an_older_version_took_in_keeps_its_meaning() -> None:
    old = LIMITS._replace(passed_on=None)
    headers = [("timer-topic", b"orders"), ("timer-deliver-ms", b"5"), ("timer-ID", b"x")]
    assert parse(headers, NOW_MS, old) == Schedule("orders", 5, -1)
    assert parse([*headers, ("timer-key", b"k")], NOW_MS, old) == Schedule("orders", 5, -1)
    assert code(parse(headers, NOW_MS, LIMITS)) == "bad-header"


def test_case_7_levels_are_a_setting() -> None:
    limits = LIMITS._replace(levels_ms=parse_levels("5s 8s"))
    headers = [("timer-topic", b"orders"), ("timer-delay-level", b"3")]
    assert parse(headers, NOW_MS, limits) == Schedule("orders", NOW_MS + 8000, -1)
    assert parse_levels("1s 2m 3h 4d") == (1000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", "5", "5x", "s", "-5s", "1.5s", "5 s", "1s,2s"])
def test_case_7_a_level_that_does_not_parse_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="level"):
        parse_levels(text)


SOON = st.integers(0, 3 * DAY_MS)
NUMBERS = st.sampled_from([None, b"", b"0", b"5", b"0" * 19, b"9" * 18, b"9" * 19, b" 5", b"-5"])
LIKELY_VALUES = {
    "timer-topic": st.sampled_from([b"orders", b"bills", b"timer.requests", b"__consumer_offsets", b"a b", b".", None]),
    "timer-deliver-ms": SOON.map(lambda n: b"%d" % (NOW_MS - DAY_MS + n)) | NUMBERS,
    "timer-delay-ms": SOON.map(lambda n: b"%d" % n) | NUMBERS,
    "timer-id": st.sampled_from([b"a", b"\xff", b"x" * 1024, b"x" * 1025, b"", None]),
    "timer-key": st.sampled_from([b"k", None]),
    "trace": st.sampled_from([b"1", None]),
    "Timer-Topic": st.sampled_from([b"bills"]),
}
HEADER = st.sampled_from(sorted(LIKELY_VALUES)).flatmap(lambda name: st.tuples(st.just(name), LIKELY_VALUES[name]))
HEADERS = st.lists(HEADER, max_size=5)


@settings(max_examples=300)
@given(HEADERS | HEADERS.map(lambda headers: [*dict(headers).items()]))
def test_case_33_the_fast_path_reads_as_the_rules_do(headers: list[tuple[str, bytes | None]]) -> None:
    """`timer-action: schedule` says what is so without it, but such a request does not take the fast path."""
    asked = parse(headers, NOW_MS, LIMITS)
    assert not isinstance(asked, Refusal) or asked.detail
    assert parse([*headers, ("timer-action", b"schedule")], NOW_MS, LIMITS) == asked
    assert parse(tuple(headers), NOW_MS, LIMITS) == asked


def test_a_text_too_long_for_a_topic_is_not_cached() -> None:
    """Senders choose it, a message long if they like."""
    tracemalloc.start()
    for number in range(1000):
        assert legal_topic(b"%0250d" % number) is None
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 100_000
    assert legal_topic(b"%0249d" % 1) is not None
