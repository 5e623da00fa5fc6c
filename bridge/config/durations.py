"""Parse durations (500ms, 5s, 2h30m, 2d, or plain ms) and instants (2026-12-24T18:00:00Z, or plain epoch ms)."""

import re
from datetime import UTC, datetime

from schemas.instants import parse_iso8601_ms

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms. Raises ValueError with the right form."""
    if text.isascii() and text.isdigit():
        return int(text)
    if not re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
        raise ValueError(f"{text!r} is no duration: write 500ms, 5s, 2h30m, 2d, or plain milliseconds")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def has_passed(since_ms: int, now_ms: int, least_ms: int) -> bool:
    """True if `least_ms` have passed since `since_ms`, or if the clock was set back, so that this cannot be known."""
    return not 0 <= now_ms - since_ms < least_ms


def milliseconds(value: object) -> object:
    """Parse a setting's text as a duration; return any other value as it is."""
    return parse_duration_ms(value) if isinstance(value, str) else value


def parse_instant_ms(text: str) -> int:
    """Return epoch ms, rounded up, of ISO 8601 with a zone or of epoch ms. Raises ValueError with the right form."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return parse_iso8601_ms(text)
    except ValueError as wrong:
        raise ValueError(
            f"{text!r} is no instant: {wrong}: write 2026-12-24T18:00:00Z (with a zone), or epoch milliseconds"
        ) from None


def instant_text(at_ms: int) -> str:
    """Return epoch ms as ISO 8601 text in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
