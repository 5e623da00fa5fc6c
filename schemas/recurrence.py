"""When a recurring timer is due: the rule of its headers, and the time of each occurrence.

    timer-cron: 0 9 * * MON-FRI    timer-zone: Europe/Berlin      at 9:00 there on working days
    timer-every-ms: 60000          timer-until-ms, timer-count    each minute, until then, so often at most

    rule, occurrence 3, now  --follow-->  deliver it, and occurrence 4 at the next time | only that | nothing more

cronsim parses the five fields. Daylight saving follows Debian's cron (docs/headers.md), found by code of our own:
cronsim loses times when clocks change by half an hour, within an hour or at midnight (docs/design/ids-and-rolls.md).

Two versions of cronsim or of the time zones may differ, and a rebuild must read old requests as they were read first.
Therefore `kafka_timer.headers` checks only their form. Intake asks `problem_of` once, and a release `follow`:
the journal, and the copy for the next occurrence, keep their answers.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kafka_timer.durations import duration_text
from kafka_timer.headers import MAX_INT64, PAUSED_MS, Recurrence, Refusal, shown

_SEARCHED_DAYS = 9 * 366
"""29 February comes every 8 years at most. The bound keeps a search within milliseconds."""
_DAY_S = 86_400


def described(rule: Recurrence) -> str:
    times = f"{rule.cron} ({rule.zone})" if rule.cron else f"every {duration_text(rule.every_ms)}"
    parts = [times, f"missed: {rule.missed}"]
    parts += [f"at most {rule.most}"] if rule.most < MAX_INT64 else []
    parts += [f"until {rule.until_ms} ms"] if rule.until_ms < MAX_INT64 else []
    return ", ".join(parts)


def problem_of(rule: Recurrence, first_ms: int, sent_ms: int, max_missed: int) -> Refusal | None:
    """Return why intake refuses a rule, or None.

    first_ms: the request's due time; its own time if it gives none. sent_ms: its timestamp. max_missed: the most
    occurrences before that time, if all of them would be delivered.
    """
    if rule.cron:
        try:
            _parsed(rule.cron, rule.zone)
        except ValueError as wrong:
            return Refusal("bad-header", str(wrong))
    first = time_after(rule, first_ms, first_ms) if rule.needs_first else first_ms
    if first is None or first > rule.until_ms:
        return Refusal("no-occurrence", "its rule has no time before its end: correct it, timer-until-ms or the expiry")
    if rule.missed == "all" and min(rule.most, _missed(rule, first, sent_ms, max_missed)) > max_missed:
        detail = f"more than {max_missed} occurrences (max_missed) since {first} ms were due before it was sent"
        return Refusal("quota-exceeded", f"timer-missed is all, and {detail}: begin later, or send timer-missed: one")
    return None


def _missed(rule: Recurrence, first_ms: int, sent_ms: int, most: int) -> int:
    """Return how many occurrences, from the one at `first_ms` on, are before `sent_ms`: at most about `most`."""
    end_ms = min(sent_ms, rule.until_ms + 1)
    if first_ms >= end_ms:
        return 0
    if rule.every_ms:
        return -((first_ms - end_ms) // rule.every_ms)
    if end_ms - first_ms > _SEARCHED_DAYS * _DAY_S * 1000:
        return most + 1
    later = takewhile(lambda at_ms: at_ms < end_ms, _matches_ms(rule.cron, rule.zone, first_ms))
    return 1 + sum(1 for _ in islice(later, most))


def time_after(rule: Recurrence, scheduled_ms: int, after_ms: int) -> int | None:
    """Return the rule's first time after `after_ms`, for an occurrence at `scheduled_ms`. None: there is none.

    PAUSED_MS is beyond every end: a timer that is due then would count as paused, and a resume would release it early.
    """
    if rule.every_ms:
        found = scheduled_ms + (max(0, after_ms - scheduled_ms) // rule.every_ms + 1) * rule.every_ms
    else:
        found = _next_match_ms(rule.cron, rule.zone, max(scheduled_ms, after_ms))
    return found if found <= rule.until_ms and found < PAUSED_MS else None


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


def due_times(occurrence: Occurrence, most: int = 5) -> list[int]:
    """Return the due times of the occurrence and those after it (epoch ms), at most `most`, if none is missed."""
    found: list[int] = []
    later: Occurrence | None = occurrence.started()
    while later is not None and later.number and len(found) < most:
        found.append(later.due_ms)
        _, later = later.follow(later.due_ms)
    return found


_zone = lru_cache(maxsize=1024)(ZoneInfo)


def _parsed(expression: str, zone: str) -> tuple[CronSim, tzinfo]:
    """Raises ValueError, with a remedy."""
    try:
        place = UTC if zone == "UTC" else _zone(zone)
    except (OSError, ValueError, KeyError) as wrong:  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(f"timer-zone is {shown(zone)}, unknown here: send a name of the IANA time zones") from wrong
    _, _, day, _, weekday = expression.split()
    if {"L", "#"} & set(f"{day}{weekday}".upper()) and any(field[0] == "*" != field for field in (day, weekday)):
        raise ValueError(f"timer-cron is {shown(expression)}: L and # do not go with a step of the other day field")
    try:
        return CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), place
    except CronSimError as wrong:
        raise ValueError(f"timer-cron is {shown(expression)}: {wrong}") from wrong


def _next_match_ms(expression: str, zone: str, after_ms: int) -> int:
    """Return the first match after `after_ms`; beyond every end if there is none."""
    return next(_matches_ms(expression, zone, after_ms), MAX_INT64 + 1)


def _matches_ms(expression: str, zone: str, after_ms: int) -> Iterator[int]:
    """Yield the matches after `after_ms`, until none follows within `_SEARCHED_DAYS` or the calendar."""
    with suppress(ValueError, OverflowError, OSError):
        rule, place = _parsed(expression, zone)
        minutes, hours, *_ = expression.split()
        matches = _in_real_time if "*" in (minutes[0], hours[0]) else _by_local_time
        for at_s in matches(rule, place, after_ms // 1000 + 1):
            yield at_s * 1000


def _in_real_time(rule: CronSim, place: tzinfo, at_s: int) -> Iterator[int]:
    """Yield each time from `at_s` on that matches as clocks show it: a local time that occurs twice matches twice.

    Each step ends at a change of the clocks, at a match or at midnight.
    """
    end_s = at_s + _SEARCHED_DAYS * _DAY_S
    while at_s < end_s:
        local = datetime.fromtimestamp(at_s, place)
        second = local.hour * 3600 + local.minute * 60 + local.second
        is_day = local.month in rule.months and rule.match_day(local.date())
        wanted = next(_seconds(rule, second), _DAY_S) if is_day else _DAY_S
        then_s = at_s + wanted - second
        if _offset(then_s, place) != local.utcoffset():
            at_s = _change_s(place, at_s, then_s)
        elif wanted < _DAY_S:
            yield then_s
            at_s, end_s = then_s + 1, then_s + _SEARCHED_DAYS * _DAY_S
        elif is_day:
            at_s = then_s
        elif day := next(_days(rule, local.date()), None):
            at_s = max(then_s, int(datetime.combine(day, time(), place).timestamp()))
        else:
            return


def _by_local_time(rule: CronSim, place: tzinfo, at_s: int) -> Iterator[int]:
    """Yield each local time once: the first time that it occurs, or the end of the gap that it falls into."""
    local = datetime.fromtimestamp(at_s, place)
    since = local.hour * 3600 + local.minute * 60 + local.second
    for day in _days(rule, local.date()):
        for second in _seconds(rule, since if day == local.date() else 0):
            wanted = datetime.combine(day, time(second // 3600, second % 3600 // 60), place)
            then_s = int(wanted.timestamp())
            shown = datetime.fromtimestamp(then_s, place)
            if gap := shown.replace(tzinfo=None) - wanted.replace(tzinfo=None):
                then_s = _change_s(place, then_s - int(gap.total_seconds()), then_s)
            if then_s >= at_s:
                yield then_s
                at_s = then_s + 1


def _seconds(rule: CronSim, since: int) -> Iterator[int]:
    """Yield the rule's times of a day from `since` on, in seconds after midnight."""
    for hour in sorted(rule.hours):
        for minute in sorted(rule.minutes) if hour >= since // 3600 else ():
            if (second := hour * 3600 + minute * 60) >= since:
                yield second


def _days(rule: CronSim, day: date) -> Iterator[date]:
    """Yield the rule's dates from `day` on, until none follows within `_SEARCHED_DAYS`."""
    last = day + timedelta(_SEARCHED_DAYS)
    while day <= last:
        if day.month not in rule.months:
            day = (day.replace(day=1) + timedelta(31)).replace(day=1)
            continue
        if rule.match_day(day):
            yield day
            last = day + timedelta(_SEARCHED_DAYS)
        day += timedelta(1)


def _change_s(place: tzinfo, before_s: int, after_s: int) -> int:
    """Return the first second after `before_s` from which on clocks differ from UTC as they do at `after_s`."""
    seconds, new = range(before_s, after_s), _offset(after_s, place)
    return before_s + bisect_left(seconds, True, key=lambda at_s: _offset(at_s, place) == new)


def _offset(at_s: int, place: tzinfo) -> timedelta | None:
    return datetime.fromtimestamp(at_s, place).utcoffset()
