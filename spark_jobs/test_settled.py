"""What a backfill may touch: nothing that a bridge will still deliver, or that a cancel has ended."""

import json
from typing import Any

import pytest

from schemas.headers import Rules
from schemas.journal import Flight, JournalRecord
from schemas.progress import Key, Progress
from spark_jobs.settled import SKEW_MS, Settled, Told

RULES = Rules(max_delay_ms=10**9, roll_window_ms=10_000)
PROGRESS = Progress(100, Key(5_000, 50), 60)


def record(from_offset: int = 0, **told: Any) -> Told:
    return Told(4_000, JournalRecord(from_offset=from_offset, next_offset=100, rules=RULES, **told))


def flight(origin: int, due_ms: int = 4_000) -> Flight:
    return Flight(origin, 1, due_ms, "orders", "", "")


@pytest.mark.parametrize(
    ("offset", "expected_ms", "why"),
    [
        (7, 4_999, None),
        (50, 5_000, None),
        (51, 5_000, "live"),
        (7, 5_001, "live"),
        (99, 0, None),
        (100, 0, "unread"),
    ],
)
def test_the_rule(offset: int, expected_ms: int, why: str | None) -> None:
    assert Settled(PROGRESS, []).why_not(offset, expected_ms, "orders") == why


def test_without_progress_nothing_is_settled() -> None:
    assert Settled(None, []).why_not(0, 0, "orders") == "no-progress"


def test_what_the_journal_says_stands_above_the_rule() -> None:
    told = record(ended=(1,), refused=(2,), dropped=(3,), held=(4, 5), released=(), rolled=(flight(6), flight(7)))
    shard = Settled(PROGRESS, [told, record(100, released=(5,), landed=((7, 1),))])
    assert [shard.why_not(offset, 0, "orders") for offset in range(1, 9)] == [
        *("ended", "refused", "ended", "held", None, "rolling"),
        "live",  # its copy may have come as late as the record that tells of it
        None,
    ]


def test_a_copy_that_landed_waits_no_longer_than_its_own_time() -> None:
    later = Progress(100, Key(4_000 + SKEW_MS, 7), 60)
    shard = Settled(later, [record(rolled=(flight(7),)), record(100, landed=((7, 1),))])
    assert shard.why_not(7, 4_000, "orders") is None


def test_a_copy_that_was_given_another_due_time_waits_until_then() -> None:
    later = Progress(100, Key(4_000 + SKEW_MS, 99), 60)
    journal = [record(rolled=(flight(7, 9_000_000),)), record(100, landed=((7, 1),))]
    assert Settled(later, journal).why_not(7, 4_000, "orders") == "live"


def test_what_lies_in_a_stretch_of_a_target_that_waits_is_held() -> None:
    told = json.loads(record().record.to_bytes())
    told["waits"] = [["Aa", True, [[[1_000, 5], [2_000, 5]], [[3_000, 1], [2**63 - 1, 2**63 - 1]]]]]
    shard = Settled(PROGRESS, [Told.read(4_000, json.dumps(told).encode())])
    keys = [(5, 1_000), (6, 1_000), (5, 2_000), (6, 2_000), (2, 3_000)]
    assert [shard.why_not(*key, "Aa") for key in keys] == [None, "held", "held", None, "held"]
    assert [shard.why_not(*key, "BB") for key in keys[:2]] == [None, "held"], "names of one hash wait together"
    assert shard.why_not(6, 1_000, "orders") is None
    over = [Told.read(4_000, json.dumps(told).encode()), record(100)]
    assert Settled(PROGRESS, over).why_not(6, 1_000, "Aa") is None
