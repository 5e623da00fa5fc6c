"""What a backfill may touch: nothing that a bridge will still deliver, or that a cancel has ended."""

from typing import Any

import pytest

from schemas.headers import Rules
from schemas.journal import Flight, JournalRecord
from schemas.progress import Key, Progress
from spark_jobs.settled import SKEW_MS, Settled

RULES = Rules(max_delay_ms=10**9, roll_window_ms=10_000)
PROGRESS = Progress(100, Key(5_000, 50), 60)


def record(from_offset: int = 0, **told: Any) -> tuple[int, JournalRecord]:
    return 4_000, JournalRecord(from_offset=from_offset, next_offset=100, rules=RULES, **told)


def flight(origin: int) -> Flight:
    return Flight(origin, 1, 4_000, "orders", "", "")


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
    assert Settled(PROGRESS, []).why_not(offset, expected_ms) == why


def test_without_progress_nothing_is_settled() -> None:
    assert Settled(None, []).why_not(0, 0) == "no-progress"


def test_what_the_journal_says_stands_above_the_rule() -> None:
    told = record(ended=(1,), refused=(2,), dropped=(3,), held=(4, 5), released=(), rolled=(flight(6), flight(7)))
    shard = Settled(PROGRESS, [told, record(100, released=(5,), landed=((7, 1),))])
    assert [shard.why_not(offset, 0) for offset in range(1, 9)] == [
        *("ended", "refused", "ended", "held", None, "rolling"),
        "live",  # its copy may have come as late as the record that tells of it
        None,
    ]


def test_a_copy_that_landed_waits_no_longer_than_its_own_time() -> None:
    later = Progress(100, Key(4_000 + SKEW_MS, 7), 60)
    shard = Settled(later, [record(rolled=(flight(7),)), record(100, landed=((7, 1),))])
    assert shard.why_not(7, 4_000) is None
