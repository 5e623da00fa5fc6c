"""Durations as text: 500ms, 5s, 2h30m, 2d, 0. Any other number needs its unit."""

import re
from itertools import accumulate

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms. Raises ValueError with the right form."""
    if text == "0":
        return 0
    if not re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
        raise ValueError(
            f'{text!r} is no duration: write a number with its unit, such as "500ms", "5s", "2h30m" or "2d"'
        )
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def duration_text(duration_ms: int) -> str:
    """Return the text of a duration of 0 ms or more, exactly: 366d, 2h30m, 50ms, 0."""
    rests = accumulate(_UNITS_MS.values(), int.__mod__, initial=duration_ms)
    counts = ((rest // unit_ms, unit) for rest, (unit, unit_ms) in zip(rests, _UNITS_MS.items(), strict=False))
    return "".join(f"{count}{unit}" for count, unit in counts if count) or "0"
