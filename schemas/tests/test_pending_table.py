"""The stores that a file of pending timers was made from."""

import pytest

from kafka_timer.origin import TimerPartition
from schemas.pending_table import STORES, format_stores, parse_stores
from schemas.progress import Key, Progress, age_of

PARTITION = TimerPartition("timer.requests", 3)


def test_stores_are_parsed_with_their_progress() -> None:
    age = age_of(Progress(40, Key(1_700_000_000_000, 7), 5, 9))
    told = format_stores({PARTITION: age})
    assert parse_stores({STORES.encode(): told.encode(), b"other": b""}) == {PARTITION: age}
    assert parse_stores({b"other": b""}) is None
    assert parse_stores(None) is None


@pytest.mark.parametrize("text", ['{"v": 2, "stores": []}', '{"v": 1}', "[]", "x", '{"v": 1, "stores": [["a", 1]]}'])
def test_another_format_of_stores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=STORES):
        parse_stores({STORES.encode(): text.encode()})


def test_the_later_of_two_stores_is_newer_even_without_new_requests() -> None:
    """C may stay while timers leave, and K while none is due, but each transaction has a new number."""
    ages = [
        age_of(Progress(40, Key(-1, -1), 0, 0)),
        age_of(Progress(40, Key(5, 1), 0, 1)),
        age_of(Progress(40, Key(5, 1), 0, 2)),
        age_of(Progress(41, Key(5, 1), 0, 3)),
        age_of(Progress(1, Key(-1, -1), 0, 0, era=7)),
    ]
    assert ages == sorted(ages)
