"""Instants as text -> epoch ms, rounded up: a millisecond earlier would be early.

    2026-12-24T18:00:00Z        -> 1798135200000
    2026-12-24T18:00:00.0001Z   -> 1798135200001
    2026-12-24T19:00:00+01:00   -> 1798135200000

The grammar is our own, not a library's: a request that is read again after years must mean the same.
"""

import re
from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (computed without a zone, whose offset is subtracted)
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)


SECONDS_BELOW = 10**11  # as epoch ms this is in 1973. Epoch seconds are below it until the year 5138.
MICROSECONDS_FROM = 10**15  # as epoch ms this is in 33658. Epoch microseconds are above it since 2001.


def other_unit(number: int) -> str | None:
    """Return the unit that an instant seems to be in; None: milliseconds."""
    if SECONDS_BELOW <= number < MICROSECONDS_FROM:
        return None
    smaller = "microseconds" if number < 1000 * MICROSECONDS_FROM else "nanoseconds"
    return "seconds" if number < SECONDS_BELOW else smaller


def parse_instant_ms(text: str) -> int:
    """Return epoch ms, rounded up, of ISO 8601 with a zone or of epoch ms. Raises ValueError with the right form."""
    if text.isascii() and text.isdigit():
        if unit := other_unit(int(text)):
            raise ValueError(f"{text} looks like {unit}: give epoch milliseconds, or 2026-12-24T18:00:00Z")
        return int(text)
    try:
        return parse_iso8601_ms(text)
    except ValueError as wrong:
        raise ValueError(
            f"{text!r} is no instant: {wrong}: write 2026-12-24T18:00:00Z (with a zone), or epoch milliseconds"
        ) from None


def parse_iso8601_ms(text: str) -> int:
    """Parse date, time and zone in ISO 8601's extended form. Raises ValueError, also without a zone."""
    match = _INSTANT.fullmatch(text)
    if match is None or not (match[8] or match[9]):
        raise ValueError("not a date and time with a zone")
    year, month, day, hour, minute = map(int, match.group(1, 2, 3, 4, 5))
    at = datetime(year, month, day, hour, minute, int(match[6] or 0))  # noqa: DTZ001
    seconds = (at - _EPOCH) // timedelta(seconds=1)
    if match[9]:
        hours, minutes = int(match[10]), int(match[11])
        if hours > 23 or minutes > 59:
            raise ValueError("not the offset of a zone")
        seconds -= (3600 * hours + 60 * minutes) * (1 if match[9] == "+" else -1)
    nanoseconds = int((match[7] or "0").ljust(9, "0"))
    at_ms = seconds * 1000 + -(-nanoseconds // 1_000_000)
    if at_ms < 0:
        raise ValueError("before 1970")
    return at_ms
