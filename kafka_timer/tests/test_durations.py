"""Durations as text."""

import pytest

from kafka_timer.durations import duration_text, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
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
    assert parse_duration_ms(duration_text(ms)) == ms


def test_a_duration_is_shown_exactly_in_its_units() -> None:
    assert [*map(duration_text, (0, 50, 60_000, 5_430_000, 366 * 86_400_000))] == [
        "0",
        "50ms",
        "1m",
        "1h30m30s",
        "366d",
    ]


@pytest.mark.parametrize(
    "text", ["", "s", "5 s", "-5s", "+5s", "1.5h", "5S", "5sec", "2h30", "٥s", "1w", "5s\n", "5", "00", "1500"]
)
def test_an_invalid_duration_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match='write a number with its unit, such as "500ms", "5s", "2h30m" or "2d"'):
        parse_duration_ms(text)
