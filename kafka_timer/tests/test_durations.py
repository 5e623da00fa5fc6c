"""Durations as text."""

import pytest

from kafka_timer.durations import parse_duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1500", 1500),
        ("500ms", 500),
        ("5s", 5000),
        ("90m", 5_400_000),
        ("2h30m", 9_000_000),
        ("1d12h", 129_600_000),
        ("1m1ms", 60_001),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5 s", "-5s", "+5s", "1.5h", "5S", "5sec", "2h30", "٥s", "1w", "5s\n"])
def test_an_invalid_duration_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="write 500ms, 5s, 2h30m, 2d, or plain milliseconds"):
        parse_duration_ms(text)
