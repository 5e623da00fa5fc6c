"""Durations and instants (2026-12-24T18:00:00Z, or plain epoch ms) of settings and commands."""

from datetime import UTC, datetime

from kafka_timer.instants import parse_instant_ms as parse_instant_ms
from schemas.durations import parse_duration_ms


def has_passed(since_ms: int, now_ms: int, least_ms: int) -> bool:
    """True if `least_ms` have passed since `since_ms`, or if the clock was set back, so that this cannot be known."""
    return not 0 <= now_ms - since_ms < least_ms


def milliseconds(value: object) -> object:
    """Parse a setting's text as a duration; return any other value as it is."""
    return parse_duration_ms(value) if isinstance(value, str) else value


def instant_text(at_ms: int) -> str:
    """Return epoch ms as ISO 8601 text in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
