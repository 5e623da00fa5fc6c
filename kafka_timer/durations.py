"""Parse durations: 500ms, 5s, 2h30m, 2d, or plain ms."""

import re

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms. Raises ValueError with the right form."""
    if text.isascii() and text.isdigit():
        return int(text)
    if not re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
        raise ValueError(f"{text!r} is no duration: write 500ms, 5s, 2h30m, 2d, or plain milliseconds")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
