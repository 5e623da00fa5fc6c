"""Find the times of a cron rule by looking at a clock each minute: slow, and by no other code of ours."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE_MS = 60_000
HALF_HOURS = "Australia/Lord_Howe"
SPANS = [
    (HALF_HOURS, (2027, 4, 3, 12)),
    (HALF_HOURS, (2027, 10, 2, 12)),
    ("Pacific/Chatham", (2027, 9, 25, 0)),  # 02:45 becomes 03:45
    ("Pacific/Chatham", (2027, 4, 3, 0)),
    ("Africa/Cairo", (2027, 4, 29, 20)),  # the day begins at 01:00
    ("America/Havana", (2027, 3, 13, 20)),
    ("America/Havana", (2027, 11, 6, 20)),
    ("America/Santiago", (2027, 4, 3, 20)),  # 24:00 becomes 23:00
    ("America/Santiago", (2027, 9, 4, 20)),
    ("America/St_Johns", (2006, 10, 28, 20)),  # 00:01 becomes 23:01 of the day before
    ("America/St_Johns", (2006, 4, 1, 20)),
    ("Pacific/Apia", (2011, 12, 29, 0)),  # 30 December is left out
    ("Europe/Berlin", (2027, 3, 27, 20)),
    ("Europe/Berlin", (2027, 10, 30, 20)),
    ("Africa/Casablanca", (2027, 2, 6, 20)),
    ("UTC", (2027, 2, 6, 20)),
]
CRONS = [
    *("* 2 * * *", "0 */2 * * *", "*/7 * * * *", "* 0 * * *", "*/20 23 * * *", "* 3 * * *", "1-59/3 */1 * * SUN"),
    *("*/5 0 * * FRI", "*/5 0-1 1-7 * *", "*/30 */23 */2 * *", "*/15 1 4 4 *", "*/9 * 30 12 *"),
    *("30 2 * * *", "0 0 * * *", "15,45 0-3 * * *", "59 23 * * *", "30 0 * * FRI", "45 1 3,4,31 * SUN", "0 9 30 12 *"),
    *("0-59 0-23 * * *", "5 0,12 L * *"),
]


def by_the_clock(cron: str, zone: str, first_ms: int, count: int) -> list[int]:
    """Walk `count` minutes and return those that a clock on the wall shows as a match.

    Without a star, a local time counts the first time that it is shown, or when the clock has jumped over it.
    """
    minutes, hours, days, months, weekdays = map(values, cron.split(), ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7)))
    fields = cron.split()
    is_by_star = fields[0][0] == "*" or fields[1][0] == "*"
    needs_both = fields[2][0] == "*" or fields[4][0] == "*"

    def is_match(at: datetime) -> bool:
        in_month = at.day in days or ("L" in fields[2] and (at + timedelta(days=1)).month != at.month)
        on_weekday = bool({at.isoweekday(), at.isoweekday() % 7} & weekdays)
        is_day = in_month and on_weekday if needs_both else in_month or on_weekday
        return is_day and at.month in months and at.hour in hours and at.minute in minutes

    found = []
    shown = datetime.fromtimestamp(first_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
    for at_ms in range(first_ms + MINUTE_MS, first_ms + count * MINUTE_MS, MINUTE_MS):
        local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)
        if is_by_star:
            shows = [local]
        else:
            shows = [
                shown + timedelta(minutes=ahead) for ahead in range(1, (local - shown) // timedelta(minutes=1) + 1)
            ]
            shown = max(shown, local)
        found += [at_ms] * any(map(is_match, shows))
    return found


def values(field: str, bounds: tuple[int, int]) -> set[int]:
    found: set[int] = set()
    for part in field.replace("FRI", "5").replace("SUN", "0").replace("L", "99").split(","):
        base, _, step = part.partition("/")
        first, _, last = base.partition("-")
        low, high = bounds if base == "*" else (int(first), int(last or first))
        found |= set(range(low, high + 1, int(step or 1)))
    return found
