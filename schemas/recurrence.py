"""When a recurring timer is due: the rule of its headers, and the time of each occurrence.

    timer-cron: 0 9 * * MON-FRI    timer-zone: Europe/Berlin      at 9:00 there on working days
    timer-every-ms: 60000          timer-until-ms, timer-count    each minute, until then, so often at most

    rule, occurrence 3, now  --follow-->  deliver it, and occurrence 4 at the next time | only that | nothing more

cronsim parses the five fields. Daylight saving follows Debian's cron: docs/headers.md.

Two versions of cronsim or of the time zones may differ, and a rebuild must read old requests as they were read first.
Therefore `kafka_timer.headers` checks only their form. Intake asks `problem_of` once, and a release `follow`:
the journal, and the copy for the next occurrence, keep their answers.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kafka_timer.headers import MAX_INT64, Recurrence, Refusal

_LATEST_YEARS = 9
"""29 February comes every 8 years at most. The bound keeps a search within milliseconds (`is_awkward`, too)."""


def described(rule: Recurrence) -> str:
    """Return the rule as a line of text, for people."""
    parts = [f"{rule.cron} ({rule.zone})" if rule.cron else f"every {rule.every_ms} ms", f"missed: {rule.missed}"]
    parts += [f"at most {rule.most}"] if rule.most < MAX_INT64 else []
    parts += [f"until {rule.until_ms} ms"] if rule.until_ms < MAX_INT64 else []
    return ", ".join(parts)


def problem_of(rule: Recurrence, first_ms: int) -> Refusal | None:
    """Return why intake refuses a rule, or None. first_ms: the request's due time; its own time if it gives none."""
    if rule.cron:
        try:
            _simulation(rule.cron, rule.zone, 0)
        except ValueError as wrong:
            return Refusal("bad-header", str(wrong))
    first = time_after(rule, first_ms, first_ms) if rule.needs_first else first_ms
    if first is None or first > rule.until_ms:
        return Refusal("no-occurrence", "its rule has no time before its end: correct it, timer-until-ms or the expiry")
    return None


def time_after(rule: Recurrence, scheduled_ms: int, after_ms: int) -> int | None:
    """Return the rule's first time after `after_ms`, for an occurrence at `scheduled_ms`. None: there is none."""
    if rule.every_ms:
        found = scheduled_ms + (max(0, after_ms - scheduled_ms) // rule.every_ms + 1) * rule.every_ms
    else:
        found = _next_match_ms(rule.cron, rule.zone, max(scheduled_ms, after_ms))
    return found if found <= rule.until_ms else None


class Occurrence(NamedTuple):
    """What a recurring timer delivers next. number: from 1 on; 0: a request of which the first is to be found.

    scheduled_ms: by the rule; `due_ms` differs from it if the occurrence was moved.
    """

    rule: Recurrence
    number: int
    due_ms: int
    scheduled_ms: int

    def started(self) -> "Occurrence":
        """Return the first occurrence of a request that gives no time; the occurrence itself if it has a number."""
        first = None if self.number else time_after(self.rule, self.due_ms, self.due_ms)
        return self if first is None else self._replace(number=1, due_ms=first, scheduled_ms=first)

    def follow(self, now_ms: int) -> "tuple[bool, Occurrence | None]":
        """Decide at its release: True if it is delivered, and the occurrence that the timer waits for then."""
        if not self.number:
            first = self.started()
            return False, first if first.number else None
        passed_ms = max(self.scheduled_ms, self.due_ms)
        last_ms = passed_ms if self.rule.missed == "all" else max(passed_ms, now_ms)
        is_skipped = False
        if self.rule.missed == "none":
            successor_ms = time_after(self.rule, self.scheduled_ms, passed_ms)
            is_skipped = successor_ms is not None and successor_ms <= now_ms
        number = self.number if is_skipped else self.number + 1
        next_ms = time_after(self.rule, self.scheduled_ms, last_ms) if number <= self.rule.most else None
        return not is_skipped, None if next_ms is None else Occurrence(self.rule, number, next_ms, next_ms)


class _Soon(CronSim):
    """Gives up after `_LATEST_YEARS`."""

    def __init__(self, expression: str, start: datetime) -> None:
        self._last_year = start.year + _LATEST_YEARS
        super().__init__(expression, start)

    def advance_month(self) -> None:
        super().advance_month()
        if self.dt.year > self._last_year:
            raise StopIteration


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _simulation(expression: str, zone: str, after_ms: int) -> CronSim:
    """Raises ValueError, with a remedy."""
    try:
        place = UTC if zone == "UTC" else _zone(zone)
    except (OSError, ValueError) as wrong:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"timer-zone is {zone!r}: send a name of the IANA time zones") from wrong
    except KeyError as wrong:
        raise ValueError(f"timer-zone is {zone!r}, which is unknown: send a name of the IANA time zones") from wrong
    _, _, day, _, weekday = expression.split()
    if {"L", "#"} & set(f"{day}{weekday}".upper()) and any(field[0] == "*" != field for field in (day, weekday)):
        raise ValueError(f"timer-cron is {expression!r}: L and # do not go with a step of the other day field")
    try:
        return _Soon(expression, datetime.fromtimestamp(after_ms // 1000, place))
    except CronSimError as wrong:
        raise ValueError(f"timer-cron is {expression!r}: {wrong}") from wrong


def _next_match_ms(expression: str, zone: str, after_ms: int) -> int:
    """Return the first match after `after_ms`; beyond every end if there is none."""
    try:
        # When clocks go back, a local time comes twice: cronsim may return the first one, which is over.
        matches = (int(match.timestamp()) * 1000 for match in _simulation(expression, zone, after_ms))
        return next((match_ms for match_ms in matches if match_ms > after_ms), MAX_INT64 + 1)
    except (ValueError, OverflowError):
        return MAX_INT64 + 1
