"""Times as people write them: 500ms, 5s, 2h30m, 2d; or plain ms."""

import re
from datetime import datetime

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_duration_ms(text: str) -> int:
    """Raises ValueError with what would be right."""
    if text.isascii() and text.isdigit():
        return int(text)
    if not re.fullmatch(f"(?:{_PART.pattern})+", text, re.ASCII):
        raise ValueError(f"{text!r} is no duration: write 500ms, 5s, 2h30m, 2d, or plain milliseconds")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))


def parse_instant_ms(text: str) -> int:
    """Epoch ms of ISO 8601 with a zone, or of plain epoch ms. Raises ValueError with what would be right."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError(f"{text!r} is no instant: write 2026-12-24T18:00:00Z (with a zone), or epoch milliseconds")
    return round(at.timestamp() * 1000)
