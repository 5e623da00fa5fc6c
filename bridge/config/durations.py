"""Durations and instants (2026-12-24T18:00:00Z, or plain epoch ms) of settings and commands."""

from datetime import UTC, datetime

from schemas.durations import parse_duration_ms
from schemas.instants import parse_iso8601_ms


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
