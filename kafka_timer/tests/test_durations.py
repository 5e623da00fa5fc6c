"""Durations as text."""

import pytest

from kafka_timer.durations import duration_text, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "ms", "shown"),
    [
        *((text, ms, text) for text, ms in (("0", 0), ("500ms", 500), ("5s", 5000), ("2h30m", 9_000_000))),
        *((text, ms, text) for text, ms in (("1d12h", 129_600_000), ("1m1ms", 60_001), ("366d", 366 * 86_400_000))),
        ("90m", 5_400_000, "1h30m"),
        ("60s", 60_000, "1m"),
    ],
)
def test_a_duration_is_shown_exactly_in_its_units(text: str, ms: int, shown: str) -> None:
    assert (parse_duration_ms(text), duration_text(ms)) == (ms, shown)


@pytest.mark.parametrize(
    "text", ["", "s", "5 s", "-5s", "+5s", "1.5h", "5S", "5sec", "2h30", "٥s", "1w", "5s\n", "5", "00", "1500"]
)
def test_an_invalid_duration_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match='write a number with its unit, such as "500ms", "5s", "2h30m" or "2d"'):
        parse_duration_ms(text)
