"""Headers in, meaning or refusal out: every malformed number of the design, one row each."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_timer.headers import (
    MAX_INT64,
    TIMES,
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

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LIMITS = FixedLimits(max_delay_ms=2 * DAY_MS, own_topics=frozenset({"timer.requests"}))


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


NO_NUMBERS = [
    b"",
    b" ",
    b" 5",
    b"5 ",
    b"+5",
    b"-5",
    b"-0",
    b"5.0",
    b"5e3",
    b"0x10",
    b"1_000",
    b"five",
    b"\xd9\xa3",  # an Arabic-Indic digit is no ASCII digit
    b"\xff\xfe",
    b"5\x00",
    b"5\n",
    b"NaN",
    b"9223372036854775808",  # 2^63
    b"18446744073709551616",
    b"9" * 400,
    None,
]


@pytest.mark.parametrize("name", ["timer-deliver-ms", "timer-delay-ms", "timer-partition"])
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_number_that_is_not_plain_or_out_of_range_is_a_bad_header(name: str, value: bytes | None) -> None:
    assert code(ask((name, value))) == "bad-header"


def test_a_partition_has_32_bits() -> None:
    assert ask(("timer-partition", b"2147483647")) == Schedule("orders", NOW_MS + 1000, 2147483647)
    assert code(ask(("timer-partition", b"2147483648"))) == "bad-header"


def test_due_is_absolute_or_relative_to_the_record() -> None:
    assert ask(("timer-deliver-ms", b"12000")) == Schedule("orders", 12000, -1)
    assert ask(("timer-delay-ms", b"0")) == Schedule("orders", NOW_MS, -1)
    assert ask(("timer-delay-ms", b"0005")) == Schedule("orders", NOW_MS + 5, -1)


@pytest.mark.parametrize(("name", "base"), [("timer-deliver-ms", NOW_MS), ("timer-delay-ms", 0)])
def test_case_3_max_delay_is_accepted_and_one_more_is_too_far(name: str, base: int) -> None:
    assert isinstance(ask((name, b"%d" % (base + 2 * DAY_MS))), Schedule)
    assert code(ask((name, b"%d" % (base + 2 * DAY_MS + 1)))) == "too-far"
    assert code(ask((name, b"%d" % MAX_INT64))) == "too-far"


def test_case_4_two_times_are_ambiguous_and_none_is_missing() -> None:
    assert code(ask(("timer-deliver-ms", b"1"), ("timer-delay-ms", b"1"))) == "ambiguous-time"
    assert code(ask(without="timer-deliver-ms")) == "missing-time"


@pytest.mark.parametrize("name", ["timer-topic", "timer-deliver-ms", "timer-key", "timer-partition", "timer-origin"])
def test_a_duplicate_header_of_ours_is_refused(name: str) -> None:
    assert code(ask((name, b"1"), (name, b"1"))) == "bad-header"


def test_foreign_headers_may_repeat_be_null_or_look_like_ours() -> None:
    headers = [("trace", b"a"), ("trace", b"a"), ("none", None), ("Timer-Topic", b"x"), ("timer-unheard-of", b"")]
    assert isinstance(ask(*headers), Schedule)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (b"", "bad-target"),
        (b".", "bad-target"),
        (b"..", "bad-target"),
        (b"a b", "bad-target"),
        (b"a/b", "bad-target"),
        (b"caf\xc3\xa9", "bad-target"),
        (b"orders\n", "bad-target"),
        (b"x" * 250, "bad-target"),
        (b"__consumer_offsets", "bad-target"),
        (b"timer.requests", "bad-target"),
        (None, "bad-target"),
    ],
)
def test_case_32_what_may_not_be_a_target(topic: bytes | None, expected: str) -> None:
    assert code(ask(("timer-topic", topic))) == expected


def test_the_longest_name_is_a_target_and_none_is_missing() -> None:
    assert isinstance(ask(("timer-topic", b"x" * 249)), Schedule)
    assert code(ask(without="timer-topic")) == "missing-topic"


def test_a_key_of_its_own_may_be_empty_but_not_null() -> None:
    assert ask(("timer-key", b"")) == Schedule("orders", NOW_MS + 1000, -1)
    assert code(ask(("timer-key", None))) == "bad-header"


@pytest.mark.parametrize("headers", [[("timer-origin", b"t/0/1")], [("timer-rolls", b"1")]])
def test_an_incomplete_copy_is_refused(headers: list[tuple[str, bytes | None]]) -> None:
    assert code(ask(*headers)) == "not-ours"


def test_a_record_may_claim_to_be_a_copy() -> None:
    claim = ask(("timer-origin", b"t/0/1"), ("timer-rolls", b"2"), ("timer-id", b"x"), ("timer-deliver-ms", b"5"))
    assert claim == Claim(b"t/0/1", 2, Schedule("orders", 5, -1, b"x"))


def test_a_cancel_needs_its_id_alone() -> None:
    assert parse([("timer-action", b"cancel"), ("timer-id", b"x")], NOW_MS, LIMITS) == Cancel(b"x")
    assert ask(("timer-action", b"cancel"), ("timer-id", b"x")) == Cancel(b"x")


PLACE = ("timer-of", b"timer.requests/3/7")


def test_a_cancel_or_move_may_name_its_timer_by_origin() -> None:
    cancel, move, later = ("timer-action", b"cancel"), ("timer-action", b"move"), ("timer-deliver-ms", b"%d" % NOW_MS)
    assert parse([cancel, PLACE], NOW_MS, LIMITS) == ByOrigin(PLACE[1], None)
    assert parse([move, PLACE, later], NOW_MS, LIMITS) == ByOrigin(PLACE[1], NOW_MS)
    assert parse([cancel, PLACE, ("timer-id", b"x")], NOW_MS, LIMITS) == Cancel(b"x"), "as before there was timer-of"
    assert ask(PLACE) == Schedule("orders", NOW_MS + 1000, -1), "a foreign header"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("timer-action", b"move"), PLACE], "missing-time"),
        ([("timer-action", b"move"), PLACE, ("timer-deliver-ms", b"%d" % 10**18)], "too-far"),
        ([("timer-action", b"cancel"), PLACE, PLACE], "bad-header"),
        ([("timer-action", b"cancel"), ("timer-of", None)], "bad-header"),
        ([("timer-action", b"replace"), PLACE], "missing-id"),
    ],
)
def test_a_wrong_request_by_origin_is_refused(headers: list[tuple[str, bytes | None]], expected: str) -> None:
    assert code(parse(headers, NOW_MS, LIMITS)) == expected


def test_replace_and_schedule_ask_for_the_same_timer() -> None:
    assert ask(("timer-id", b"x")) == Schedule("orders", NOW_MS + 1000, -1, b"x")
    assert ask(("timer-id", b"x"), ("timer-action", b"replace")) == Schedule("orders", NOW_MS + 1000, -1, b"x", True)


@pytest.mark.parametrize("action", [b"cancel", b"replace"])
def test_cancel_replace_and_move_need_an_id(action: bytes) -> None:
    assert code(ask(("timer-action", action))) == "missing-id"


@pytest.mark.parametrize("action", [b"", b"Cancel", b"drop", None])
def test_an_action_is_one_of_three(action: bytes | None) -> None:
    assert code(ask(("timer-action", action), ("timer-id", b"x"))) == "unknown-action"


@pytest.mark.parametrize("id_", [b"", None, b"x" * 1025])
def test_an_id_has_1_to_1024_bytes(id_: bytes | None) -> None:
    assert code(ask(("timer-id", id_))) == "bad-header"


LEVELS = [(0, 0), (1, 1), (2, 5), (3, 10), (18, 7200), (19, 7200), (10**18, 7200)]


@pytest.mark.parametrize(("level", "seconds"), LEVELS)
def test_case_7_levels_clamp_to_the_last_and_0_is_at_once(level: int, seconds: int) -> None:
    assert ask(("timer-delay-level", b"%d" % level)) == Schedule("orders", NOW_MS + 1000 * seconds, -1)


def test_case_7_levels_are_a_setting() -> None:
    limits = LIMITS._replace(levels_ms=parse_levels("5s 8s"))
    headers = [("timer-topic", b"orders"), ("timer-delay-level", b"3")]
    assert parse(headers, NOW_MS, limits) == Schedule("orders", NOW_MS + 8000, -1)
    assert parse_levels("1s 2m 3h 4d") == (1000, 120_000, 10_800_000, 345_600_000)


@pytest.mark.parametrize("text", ["", "5", "5x", "s", "-5s", "1.5s", "5 s", "1s,2s"])
def test_case_7_a_level_that_does_not_parse_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="level"):
        parse_levels(text)


def test_an_expiry_must_be_after_the_due_time() -> None:
    due_ms = NOW_MS + 1000
    assert ask(("timer-expire-ms", b"%d" % (due_ms + 1))) == Schedule("orders", due_ms, -1)
    for never in (b"%d" % due_ms, b"1", b"", b"-1", b"1e9", None):
        assert code(ask(("timer-expire-ms", never))) == "bad-header"


ANY_VALUE = (
    st.sampled_from([None, b"", b"0", b"5", b"0" * 19, b"0" * 20, b"1" * 18, b"9" * 18, b"9" * 19, b" 5", b"schedule"])
    | st.binary(max_size=20)
    | st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n)
)
SOON = st.integers(0, 3 * DAY_MS)
LIKELY_VALUES = {
    "timer-topic": st.sampled_from([b"orders", b"bills", b"timer.requests", b"__consumer_offsets", b"a b", b"."]),
    "timer-deliver-ms": SOON.map(lambda n: b"%d" % (NOW_MS - DAY_MS + n)),
    "timer-delay-ms": SOON.map(lambda n: b"%d" % n),
    "timer-delay-level": st.sampled_from([b"0", b"1", b"18", b"19"]),
    "timer-id": st.sampled_from([b"a", b"\xff", b"x" * 1024, b"x" * 1025]),
    "timer-action": st.sampled_from([b"schedule", b"cancel", b"replace", b"Cancel", b"move", b"pause", b"resume"]),
    "timer-key": st.sampled_from([b"k", b""]),
    "timer-partition": st.sampled_from([b"0", b"2147483647", b"2147483648"]),
    "timer-origin": st.sampled_from([b"t/0/1"]),
    "timer-rolls": st.sampled_from([b"1", b"2147483648"]),
    "timer-released-ms": st.sampled_from([b"1"]),
    "timer-expire-ms": SOON.map(lambda n: b"%d" % (NOW_MS - DAY_MS + n)),
    "trace": st.sampled_from([b"1", b""]),
    "Timer-Topic": st.sampled_from([b"bills"]),
}


def header(name: str) -> st.SearchStrategy[tuple[str, bytes | None]]:
    likely = LIKELY_VALUES[name]
    return st.tuples(st.just(name), st.one_of(*[likely] * 8, st.none(), ANY_VALUE))


MOST = (
    ("timer-topic", "timer-deliver-ms", "timer-id"),
    ("timer-topic", "timer-deliver-ms", "timer-key"),
    ("timer-topic", "timer-delay-ms", "trace"),
)
HEADERS = st.lists(st.sampled_from(sorted(LIKELY_VALUES)).flatmap(header), max_size=6) | st.sampled_from(MOST).flatmap(
    lambda names: st.tuples(
        st.tuples(*map(header, names)), st.lists(st.sampled_from(sorted(LIKELY_VALUES)).flatmap(header), max_size=1)
    ).map(lambda parts: [*parts[1], *parts[0]])
)


@given(HEADERS)
def test_case_33_whatever_the_headers_the_answer_is_a_schedule_in_range_or_a_refusal(
    headers: list[tuple[str, bytes | None]],
) -> None:
    match parse(headers, NOW_MS, LIMITS):
        case Schedule(target=target, due_ms=due_ms, partition=partition):
            assert 0 <= due_ms <= NOW_MS + LIMITS.max_delay_ms
            assert -1 <= partition < 2**31
            assert target.isascii()
        case Cancel(id=id_):
            assert 0 < len(id_) <= 1024
        case ByOrigin(origin=origin, due_ms=due_ms):
            assert len(origin) > 0
            assert due_ms is None or 0 <= due_ms <= NOW_MS + LIMITS.max_delay_ms
        case Move(id=id_, due_ms=due_ms):
            assert 0 < len(id_) <= 1024
            assert 0 <= due_ms <= NOW_MS + LIMITS.max_delay_ms
        case Pause():
            pass
        case Claim(rolls=rolls, schedule=schedule):
            assert rolls >= 0
            assert schedule.due_ms >= 0
        case Refusal(code=refused, detail=detail):
            assert refused
            assert detail


Read = Schedule | Cancel | Move | Pause | Claim | str


def read_slowly(headers: list[tuple[str, bytes | None]]) -> Read:
    """The design's rules one by one, without a thought of speed; of a refusal its code."""
    ours = [(name, value) for name, value in headers if name in LIKELY_VALUES and name.startswith("timer-")]
    names = [name for name, _ in ours]
    values = dict(ours)
    if len(names) != len(set(names)):
        return "bad-header"
    if "timer-origin" in names or "timer-rolls" in names:
        return claimed(values)
    action = values.get("timer-action", b"schedule")
    if action in (b"pause", b"resume"):
        return Pause()
    if action not in (b"schedule", b"cancel", b"replace", b"move"):
        return "unknown-action"
    id_ = values.get("timer-id")
    if "timer-id" in names and (id_ is None or len(id_) == 0 or len(id_) > 1024):
        return "bad-header"
    if action == b"cancel":
        return "missing-id" if id_ is None else Cancel(id_)
    if action != b"schedule" and id_ is None:
        return "missing-id"
    if action == b"move":
        assert id_ is not None
        due_ms = due(values)
        return due_ms if isinstance(due_ms, str) else "too-far" if is_too_far(due_ms) else Move(id_, due_ms)
    asked = timer(values)
    return asked if isinstance(asked, str) else asked._replace(id=id_, replaces=action == b"replace")


def number(value: bytes | None, largest: int) -> int | None:
    digits = value is not None and 0 < len(value) <= 19 and all(byte in b"0123456789" for byte in value)
    return int(value) if value is not None and digits and int(value) <= largest else None


def is_target(topic: bytes | None) -> bool:
    legal = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
    is_name = topic is not None and 0 < len(topic) <= 249 and all(byte in legal for byte in topic)
    return is_name and topic is not None and topic not in (b".", b"..") and not topic.startswith(b"__")


def claimed(values: dict[str, bytes | None]) -> Claim | str:
    origin, target = values.get("timer-origin"), values.get("timer-topic")
    due_ms, rolls = number(values.get("timer-deliver-ms"), MAX_INT64), number(values.get("timer-rolls"), 2**31 - 1)
    partition = number(values.get("timer-partition", b"0"), 2**31 - 1)
    if not origin or due_ms is None or rolls is None or partition is None or target is None or not is_target(target):
        return "not-ours"
    partition = partition if "timer-partition" in values else -1
    return Claim(origin, rolls, Schedule(target.decode(), due_ms, partition, values.get("timer-id")))


def due(values: dict[str, bytes | None]) -> int | str:
    times = {name: number(values[name], MAX_INT64) for name in TIMES if name in values}
    if None in times.values():
        return "bad-header"
    if len(times) != 1:
        return "ambiguous-time" if times else "missing-time"
    ((name, told),) = times.items()
    assert told is not None
    levels_ms = (0, *LIMITS.levels_ms)
    return {
        "timer-deliver-ms": told,
        "timer-delay-ms": NOW_MS + told,
        "timer-delay-level": NOW_MS + levels_ms[min(told, len(levels_ms) - 1)],
    }[name]


def is_too_far(due_ms: int) -> bool:
    return due_ms > NOW_MS + LIMITS.max_delay_ms


def timer(values: dict[str, bytes | None]) -> Schedule | str:
    partition = number(values.get("timer-partition", b"0"), 2**31 - 1)
    if partition is None or values.get("timer-key", b"") is None:
        return "bad-header"
    due_ms = due(values)
    if isinstance(due_ms, str):
        return due_ms
    if "timer-expire-ms" in values:
        expire_ms = number(values["timer-expire-ms"], MAX_INT64)
        if expire_ms is None or expire_ms <= due_ms:
            return "bad-header"
    if is_too_far(due_ms):
        return "too-far"
    if "timer-topic" not in values:
        return "missing-topic"
    target = values["timer-topic"]
    if target is None or not is_target(target) or target.decode() in LIMITS.own_topics:
        return "bad-target"
    return Schedule(target.decode(), due_ms, partition if "timer-partition" in values else -1)


@pytest.mark.thorough
@settings(max_examples=300)
@given(HEADERS)
def test_case_33_the_short_way_reads_as_the_rules_do(headers: list[tuple[str, bytes | None]]) -> None:
    asked = parse(headers, NOW_MS, LIMITS)
    assert (asked.code if isinstance(asked, Refusal) else asked) == read_slowly(headers)
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
