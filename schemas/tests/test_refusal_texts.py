"""What senders read when their request is refused: texts for users of any language, without Python in them."""

import re
from itertools import product

import pytest

from kafka_timer.headers import CONTROL, Refusal, Schedule, shown
from schemas.profiles import PROFILES, read
from schemas.recurrence import problem_of
from schemas.rules import Rules
from schemas.tests.test_profiles import LEAST as BY_PROFILE

NOW_MS = 1_700_000_000_000
RULES = Rules(
    max_delay_ms=86_400_000,
    roll_window_ms=1000,
    profiles=("native", *PROFILES),
    own_topics=frozenset({"timer.requests"}),
    passed_on=frozenset(),
)
VALUES = (
    *(None, b"", b" ", b"5s", b"it's", b'"', b"\\", b"\n", b"\0", b"\xff\xfe", "zwölf".encode(), b"\xe2\x80\xae"),
    *(b"x" * 2000, b"\xff" * 2000, b"-5", b"5", b"1700000000", b"1700000000000000", b"1000000000000"),
    *(b"9" * 19, b"9" * 400),
    *(b"* * * *", b"61 * * * *", b"L * * * */2", b"*/5 * L * 1#2", b"0 0 30 2 *", b"Europe/Atlantis", b"../x", b"/etc"),
    *(b"cancel", b"replace", b"move", b"pause", b"tombstone", b"REPLACE", b"timer.requests", b"__consumer_offsets"),
    *(b"2.0.0", b"2026-12-24T18:00:00", b"9999-12-31T23:59:59Z", b"0001-01-01T00:00:00Z", b"2026-13-01T00:00:00Z"),
)
SINCE_2001 = [("timer-topic", b"orders"), ("timer-deliver-ms", b"1000000000000")]
LEAST: list[list[tuple[str, bytes | None]]] = [
    [("timer-topic", b"orders"), ("timer-delay-ms", b"5")],
    [("timer-topic", b"orders"), ("timer-every-ms", b"5000")],
    [("timer-topic", b"orders"), ("timer-cron", b"* * * * *")],
    [*SINCE_2001, ("timer-every-ms", b"1000"), ("timer-missed", b"all")],
    [("timer-action", b"move"), ("timer-id", b"x")],
    [("timer-action", b"cancel")],
    *BY_PROFILE.values(),
    [],
]
NAMES = (*sorted(CONTROL), "timer-of", "timer-ID", "timer-\n", "Timer-" + "x" * 99, *PROFILES)
PYTHON = re.compile(r"\bb['\"]|\\x|\\n|\\u|['\"]\)|\[|\{|\bNone\b|\bTrue\b|Error\b|real topic|shard|parked")
CODES = {
    *("bad-header", "unknown-action", "missing-id", "missing-time", "ambiguous-time", "too-far", "missing-topic"),
    *("bad-target", "not-ours", "no-occurrence", "quota-exceeded"),
}


def refusals() -> set[Refusal]:
    """Return every refusal of a request with one header changed, added, doubled or missing."""
    found = set()
    theirs = [name for profile in PROFILES.values() for name in profile.control]
    for least, name, value in product(LEAST, (*NAMES, *theirs), VALUES):
        others = [pair for pair in least if pair[0] != name]
        for sent in ([*others, (name, value)], [*least, (name, value)], *([others] if not value else [])):
            for key in (b"k", b"k" * 1025) if value is None else (None,):
                asked = read(sent, NOW_MS, RULES, key, b"v")
                if isinstance(asked, Schedule) and asked.recurrence is not None:
                    asked = problem_of(asked.recurrence, asked.due_ms, NOW_MS, 10) or asked
                if isinstance(asked, Refusal):
                    found.add(asked)
    return found


def test_a_refusal_shows_no_python_and_no_older_word() -> None:
    found = refusals()
    assert {each.code for each in found} == CODES
    assert [each for each in found if PYTHON.search(each.detail.replace('"\\"', ""))] == []
    assert [each for each in found if not each.detail.isprintable() or len(each.detail) > 250] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (b"", '""'),
        (b"5s", '"5s"'),
        ("zwölf", '"zwölf"'),
        (b"\xff\x00", "0xff00"),
        (b"a\n", "0x610a"),
        (b"\xe2\x80\xae", "0xe280ae"),
        (b"x" * 61, f'"{"x" * 60}..."'),
        ("ä" * 61, f'"{"ä" * 60}..."'),
        ("😀".encode() * 60, f'"{"😀" * 60}"'),
        (b"\xff" * 30, f"0x{'ff' * 29}..."),
    ],
)
def test_a_value_is_text_or_hex_of_at_most_60_characters(value: bytes | str | None, text: str) -> None:
    assert shown(value) == text
