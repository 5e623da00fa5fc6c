"""The rule of a recurring timer: when each occurrence is due, and what is delivered after downtime."""

from datetime import UTC, datetime, timedelta
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_timer.headers import PAUSED_MS, Recurrence, Refusal, Schedule, parse
from schemas.recurrence import Occurrence, due_times, problem_of, time_after
from schemas.rules import Rules

RULES = Rules(max_delay_ms=10**10, roll_window_ms=1000)
NOW_MS = 1_000_000
BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


def ask(**sent: str) -> object:
    headers = [(f"timer-{name.replace('_', '-')}", value.encode()) for name, value in sent.items()]
    return parse([("timer-topic", b"orders"), *headers], NOW_MS, RULES)


def ms(*at: int, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    return int(datetime(*at, tzinfo=zone, fold=fold).timestamp() * 1000)  # type: ignore[misc, arg-type]


def matches(cron: str, after_ms: int, count: int, zone: str = "Europe/Berlin") -> list[str]:
    found = []
    for _ in range(count):
        after_ms = time_after(Recurrence(cron, zone=zone), 0, after_ms) or 0
        found.append(datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone)).strftime("%m-%d %H:%M %Z"))
    return found


def test_a_request_says_when_its_occurrences_are_due() -> None:
    assert ask(cron="0 9  * * MON-FRI", zone="Europe/Berlin", count="3") == Schedule(
        "orders", NOW_MS, -1, recurrence=Recurrence("0 9 * * MON-FRI", 0, "Europe/Berlin", most=3, needs_first=True)
    ), "without a time it is due when it is sent, and the first occurrence is found then"
    assert ask(cron="* * * * *", delay_ms="5", missed="all") == Schedule(
        "orders", NOW_MS + 5, -1, recurrence=Recurrence("* * * * *", missed="all")
    )
    every = Recurrence(every_ms=1000, until_ms=5_000_000, missed="none")
    for time, due_ms in (({}, NOW_MS + 1000), ({"deliver_ms": "7"}, 7)):
        asked = ask(every_ms="1000", until_ms="5000000", missed="none", **time)
        assert asked == Schedule("orders", due_ms, -1, recurrence=every)
    assert ask(every_ms="1000", delay_ms="7", expire_ms="2000000") == Schedule(
        "orders", NOW_MS + 7, -1, recurrence=Recurrence(every_ms=1000, until_ms=1_999_999)
    ), "what is due later could not be delivered"


@pytest.mark.parametrize(
    "sent",
    [
        *(
            {"cron": cron}
            for cron in ("* * * *", "0 0 * * * *", "", "* * * * \n", "* * * * ä", f"{'0,' * 59}0 * * * *")
        ),
        {"cron": "* * * * *", "every_ms": "1000"},
        *({"every_ms": every_ms} for every_ms in ("999", "1e3")),
        *({"every_ms": "1000", "count": count} for count in ("0", "-1")),
        *({"every_ms": "1000", name: "1"} for name in ("zone", "missed", "occurrence", "scheduled_ms")),
        {"every_ms": "1000", "until_ms": ""},
        *({"delay_ms": "1", name: "5"} for name in ("until_ms", "zone", "occurrence")),
    ],
)
def test_a_rule_that_does_not_parse_is_refused(sent: dict[str, str]) -> None:
    refused = ask(**sent)
    assert isinstance(refused, Refusal)
    assert refused.code == "bad-header"


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (Recurrence("0 0 30 2 *", needs_first=True), "bad-header"),
        (Recurrence("61 * * * *"), "bad-header"),
        (Recurrence("0 0 LW * */6", needs_first=True), "bad-header"),
        (Recurrence("0 0 */31 * MON#2", needs_first=True), "bad-header"),
        (Recurrence("* * * * *", zone="Europe/Nowhere"), "bad-header"),
        (Recurrence("* * * * *", zone="../../etc/passwd"), "bad-header"),
        (Recurrence("* * * * *", zone="Europe"), "bad-header"),
        (Recurrence("* * * * *", until_ms=NOW_MS, needs_first=True), "no-occurrence"),
        (Recurrence(every_ms=1000, until_ms=NOW_MS - 1), "no-occurrence"),
        (Recurrence(every_ms=1000, until_ms=NOW_MS), None),
        (Recurrence("0 0 29 2 *", needs_first=True), None),
        (Recurrence("0 0 L * 1", zone="America/New_York", needs_first=True), None),
    ],
)
def test_intake_asks_whether_the_rule_has_a_time(rule: Recurrence, code: str | None) -> None:
    problem = problem_of(rule, NOW_MS, NOW_MS, 1000)
    assert (problem and problem.code) == code


def test_times_are_those_of_the_zone_and_follow_daylight_saving_as_in_debian() -> None:
    spring, autumn = ms(2026, 3, 28, 12), ms(2026, 10, 24, 12)
    assert matches("30 2 * * *", spring, 2) == ["03-29 03:00 CEST", "03-30 02:30 CEST"], "the time is left out"
    assert matches("30 2 * * *", autumn, 2) == ["10-25 02:30 CEST", "10-26 02:30 CET"], "the time comes twice"
    half_hours = ["10-25 02:30 CEST", "10-25 02:00 CET", "10-25 02:30 CET", "10-25 03:00 CET"]
    assert matches("*/30 * * * *", ms(2026, 10, 25, 2), 4) == half_hours
    assert matches("0 9 * * MON-FRI", ms(2026, 3, 27, 9), 1) == ["03-30 09:00 CEST"]


def test_nothing_is_due_again_in_the_hour_that_comes_twice() -> None:
    """cronsim gives the first 02:30 again."""
    again_ms = ms(2026, 10, 25, 2, 10, fold=1)
    assert matches("30 2 * * *", again_ms, 1) == ["10-26 02:30 CET"]


@given(
    st.sampled_from(["* * * * *", "30 2 * * *", "0 */3 * * *", "*/7 1-3 * * *", "15 2,3 1-7 * MON"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]),
    st.integers(0, 4_000_000_000_000),
)
def test_a_match_lies_after_the_time_asked_for_at_a_full_minute(cron: str, zone: str, after_ms: int) -> None:
    found = time_after(Recurrence(cron, zone=zone), 0, after_ms)
    assert found is not None
    assert found > after_ms
    assert found % MINUTE_MS == 0


@pytest.mark.parametrize("cron", ["0 0 29 2 */7", "0 0 29 2 */6", "0 0 * 2 SUN#5", "0 0 */31 6 */7", "0 0 29 2 MON#5"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia"])
def test_a_search_takes_milliseconds_whatever_the_expression(cron: str, zone: str) -> None:
    """It gives up after 9 years. Measured as the fastest of five, as other processes may use the cores."""
    spans = []
    for _ in range(5):
        began = perf_counter()
        problem_of(Recurrence(cron, zone=zone, needs_first=True), ms(2026, 3, 1), ms(2026, 3, 1), 1000)
        spans.append(perf_counter() - began)
    assert min(spans) < 0.02


def test_no_occurrence_is_due_when_timers_are_paused() -> None:
    assert time_after(Recurrence(every_ms=PAUSED_MS - NOW_MS - 1), NOW_MS, NOW_MS) == PAUSED_MS - 1
    assert time_after(Recurrence(every_ms=PAUSED_MS - NOW_MS), NOW_MS, NOW_MS) is None


def test_far_times_have_no_next_one() -> None:
    far_ms = int(datetime(9999, 12, 31, 23, 59, tzinfo=UTC).timestamp() * 1000)
    for at_ms in (far_ms, 2**62):
        for zone in ("UTC", "Europe/Berlin"):
            assert time_after(Recurrence("0 0 1 1 *", zone=zone), 0, at_ms) is None
    assert time_after(Recurrence(every_ms=2**63 - 1), 5, 5) is None


def occurrence(rule: Recurrence, due_ms: int = 10_000, scheduled_ms: int = 10_000, number: int = 3) -> Occurrence:
    return Occurrence(rule, number, due_ms, scheduled_ms)


def followed(found: tuple[bool, Occurrence | None]) -> tuple[bool, int | None, int | None]:
    """Return whether it is delivered, and the number and due time of the next one."""
    is_delivered, later = found
    return (is_delivered, None, None) if later is None else (is_delivered, later.number, later.due_ms)


@pytest.mark.parametrize(
    ("missed", "now_ms", "expected"),
    [
        ("one", 10_000, (True, 4, 11_000)),
        ("one", 10_999, (True, 4, 11_000)),
        ("one", 11_000, (True, 4, 12_000)),
        ("one", 14_500, (True, 4, 15_000)),
        ("all", 10_000, (True, 4, 11_000)),
        ("all", 14_500, (True, 4, 11_000)),
        ("none", 10_999, (True, 4, 11_000)),
        ("none", 11_000, (False, 3, 12_000)),
        ("none", 14_500, (False, 3, 15_000)),
    ],
)
def test_after_downtime(missed: str, now_ms: int, expected: tuple[bool, int, int]) -> None:
    assert followed(occurrence(Recurrence(every_ms=1000, missed=missed)).follow(now_ms)) == expected


@pytest.mark.parametrize("missed", ["one", "all", "none"])
def test_a_move_changes_neither_the_times_nor_their_number(missed: str) -> None:
    rule = Recurrence(every_ms=1000, missed=missed)
    assert followed(occurrence(rule, due_ms=9_000).follow(9_000)) == (True, 4, 11_000), "10,000 was delivered early"
    assert followed(occurrence(rule, due_ms=12_300).follow(12_300)) == (True, 4, 13_000), "11,000 and 12,000 passed"


def test_a_series_ends_with_its_count_or_its_time() -> None:
    assert followed(occurrence(Recurrence(every_ms=1000, most=4)).follow(10_000)) == (True, 4, 11_000)
    assert followed(occurrence(Recurrence(every_ms=1000, most=3)).follow(10_000)) == (True, None, None)
    assert followed(occurrence(Recurrence(every_ms=1000, until_ms=11_000)).follow(10_000)) == (True, 4, 11_000)
    assert followed(occurrence(Recurrence(every_ms=1000, until_ms=10_999)).follow(10_000)) == (True, None, None)
    none = Recurrence(every_ms=1000, until_ms=12_500, missed="none")
    assert followed(occurrence(none).follow(12_600)) == (False, None, None), "missed, and no later one is to come"
    last = occurrence(none, 12_000, 12_000).follow(99_999)
    assert followed(last) == (True, None, None), "the last one has no successor"
    assert followed(occurrence(none._replace(most=3)).follow(11_500)) == (False, 3, 12_000), "3 is still to come"


def test_the_first_occurrence_by_cron_is_after_the_request() -> None:
    rule = Recurrence("0 9 * * *", zone="Europe/Berlin", needs_first=True)
    sent_ms = ms(2026, 5, 4, 9)
    first_ms = sent_ms + int(timedelta(days=1).total_seconds() * 1000)
    start = Occurrence(rule, 0, sent_ms, sent_ms)
    for now_ms in (sent_ms, first_ms + 10**9):
        assert followed(start.follow(now_ms)) == (False, 1, first_ms), "also if it is found late"


def test_the_next_due_times_are_those_that_follow_one_another() -> None:
    rule = Recurrence("0 9 * * MON-FRI", zone="Europe/Berlin", most=4, needs_first=True)
    asked = Occurrence(rule, 0, ms(2026, 10, 22, 10), 0)
    found = [datetime.fromtimestamp(each / 1000, BERLIN).strftime("%m-%d %H:%M %Z") for each in due_times(asked, 5)]
    assert found == ["10-23 09:00 CEST", "10-26 09:00 CET", "10-27 09:00 CET", "10-28 09:00 CET"], "count is 4"
    every = Recurrence(every_ms=1000, until_ms=12_000)
    assert due_times(Occurrence(every, 3, 9_500, 10_000), 5) == [9_500, 11_000, 12_000], "the first was moved"
    assert due_times(Occurrence(every._replace(until_ms=10**6), 1, 1000, 1000), 2) == [1000, 2000]
    assert due_times(Occurrence(rule._replace(until_ms=1), 0, NOW_MS, NOW_MS), 5) == []
