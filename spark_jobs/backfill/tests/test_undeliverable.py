"""What a backfill may touch: nothing that a bridge will still deliver, or that a cancel has ended."""

import json
from typing import Any

import pytest

from schemas.headers import Rules
from schemas.journal import CopyInFlight, JournalRecord
from schemas.progress import Key, Progress
from spark_jobs.backfill.undeliverable import SKEW_MS, JournalEntry, SettledTimers

RULES = Rules(max_delay_ms=10**9, roll_window_ms=10_000)
PROGRESS = Progress(100, Key(5_000, 50), 60)


def record(from_offset: int = 0, **told: Any) -> JournalEntry:
    return JournalEntry(4_000, JournalRecord(from_offset=from_offset, next_offset=100, rules=RULES, **told))


def flight(origin: int, due_ms: int = 4_000) -> CopyInFlight:
    return CopyInFlight(origin, 1, due_ms, "orders", "", "")


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
    assert SettledTimers(PROGRESS, []).reason_to_wait(offset, expected_ms, "orders", requested_ms=0) == why


def test_without_progress_nothing_is_settled() -> None:
    assert SettledTimers(None, []).reason_to_wait(0, 0, "orders", requested_ms=0) == "no-progress"


def test_the_journal_overrides_the_rule() -> None:
    told = record(ended=(1,), refused=(2,), dropped=(3,), held=(4, 5), released=(), rolled=(flight(6), flight(7)))
    shard = SettledTimers(PROGRESS, [told, record(100, released=(5,), landed=((7, 1),))])
    assert [shard.reason_to_wait(offset, 0, "orders", requested_ms=0) for offset in range(1, 9)] == [
        *("ended", "refused", "ended", "held", None, "rolling"),
        "live",  # its copy may have come as late as the record that tells of it
        None,
    ]


def test_a_copy_that_landed_waits_no_longer_than_its_own_time() -> None:
    later = Progress(100, Key(4_000 + SKEW_MS, 7), 60)
    shard = SettledTimers(later, [record(rolled=(flight(7),)), record(100, landed=((7, 1),))])
    assert shard.reason_to_wait(7, 4_000, "orders", requested_ms=0) is None


def test_a_copy_that_was_given_another_due_time_waits_until_then() -> None:
    later = Progress(100, Key(4_000 + SKEW_MS, 99), 60)
    journal = [record(rolled=(flight(7, 9_000_000),)), record(100, landed=((7, 1),))]
    assert SettledTimers(later, journal).reason_to_wait(7, 4_000, "orders", requested_ms=0) == "live"


def test_a_key_in_a_target_backlog_is_held() -> None:
    told = json.loads(record().record.to_bytes())
    told["waits"] = [["Aa", True, [[[1_000, 5], [2_000, 5]], [[3_000, 1], [2**63 - 1, 2**63 - 1]]]]]
    shard = SettledTimers(PROGRESS, [JournalEntry.read(4_000, json.dumps(told).encode())])
    keys = [(5, 1_000), (6, 1_000), (5, 2_000), (6, 2_000), (2, 3_000)]
    assert [shard.reason_to_wait(*key, "Aa", requested_ms=0) for key in keys] == [None, "held", "held", None, "held"]
    assert [shard.reason_to_wait(*key, "BB", requested_ms=0) for key in keys[:2]] == [None, "held"], (
        "names of one hash wait together"
    )
    assert shard.reason_to_wait(6, 1_000, "orders", requested_ms=0) is None
    over = [JournalEntry.read(4_000, json.dumps(told).encode()), record(100)]
    assert SettledTimers(PROGRESS, over).reason_to_wait(6, 1_000, "Aa", requested_ms=0) is None


@pytest.mark.parametrize(
    ("landed_ms", "why"),
    [
        (9_990_000, "held"),  # its own place; the latest that is possible, a minute later, lies in a gap
        (950_000, "held"),  # its place is at the end of the gap before, the latest possible one in the stretch
        (800_000, None),  # whatever its place, that has left
    ],
)
def test_a_copy_that_may_be_in_a_target_backlog_is_held(landed_ms: int, why: str | None) -> None:
    """A target beyond its rate, with a share for fresh ones: those before and behind the first stretch have left."""
    told = json.loads(record(100, landed=((7, 1),)).record.to_bytes())
    far = [2**63 - 1, 2**63 - 1]
    told["waits"] = [["orders", False, [[[1_000_000, 0], [10_000_000, 0]], [[20_000_000, 0], far]]]]
    journal = [record(rolled=(flight(7, 900_000),)), JournalEntry.read(landed_ms, json.dumps(told).encode())]
    shard = SettledTimers(Progress(100, Key(30_000_000, 50), 60), journal)
    assert shard.reason_to_wait(7, 900_000, "orders", requested_ms=0) == why


def test_a_timer_that_had_to_roll_and_waited_until_due_is_held() -> None:
    """It still has the place of its roll, in the first stretch; its due time lies in the gap behind that."""
    told = json.loads(record().record.to_bytes())
    far = [2**63 - 1, 2**63 - 1]
    told["waits"] = [["orders", False, [[[8_000, 0], [9_000, 0]], [[300_000, 0], far]]]]
    shard = SettledTimers(Progress(100, Key(400_000, 50), 60), [JournalEntry.read(4_000, json.dumps(told).encode())])
    visit_ms, due_ms = RULES.roll_window_ms // 2, RULES.roll_window_ms + 1
    told_of = [
        shard.reason_to_wait(7, at_ms + due_ms, "orders", requested_ms=at_ms) for at_ms in (8_500 - visit_ms, 100_000)
    ]
    assert told_of == ["held", None]
    assert shard.reason_to_wait(7, 10_000, "orders", requested_ms=1) is None, "never to be rolled"
