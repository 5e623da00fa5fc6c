"""Recurring timers: each occurrence has its row, and what is wrong with a series is found."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSimError

from kafka_timer import headers as names
from kafka_timer.headers import Recurrence
from schemas.recurrence import problem_of, time_after
from spark_jobs.audit_rules.series import match_ms
from spark_jobs.audit_rules.tests.cron_by_the_clock import CRONS, SPANS, by_the_clock
from spark_jobs.tests.one_run import Judging, one_run
from spark_jobs.tests.records import (
    AS_OF_MS,
    Headers,
    History,
    Record,
    cancel,
    copy,
    delivery,
    move,
    receipt,
    rejection,
    request,
)

pytestmark = pytest.mark.spark

EVERY_MS = 10_000
FIRST_MS = 11_000
"""The first occurrence of a request at 1,000."""


def again(
    offset: int = 0, *, also: Headers = (), count: int | None = 3, every: bytes | None = b"10000", **other: object
) -> Record:
    """Return a request for a recurring timer, as a rule each 10 s and 3 times."""
    rule = [(names.EVERY_MS, every)] if every is not None else []
    rule += [(names.COUNT, b"%d" % count)] if count is not None else []
    return request(offset, **{"due_ms": None, "also": (*rule, *also), **other})  # type: ignore[arg-type]


def due(number: int) -> int:
    return FIRST_MS + (number - 1) * EVERY_MS


def numbered(
    asked: Record,
    offset: int,
    number: int,
    due_ms: int | None = None,
    *,
    rolls: int | None = None,
    at_ms: int | None = None,
    scheduled_ms: int | None = None,
    value: bytes | None = b"value",
) -> Record:
    """Return the copy that asks for an occurrence, made when the one before it leaves."""
    told_ms = b"%d" % (due(number) if due_ms is None else due_ms)
    at_ms = due(number - 1) + 3 if at_ms is None else at_ms
    made = copy(asked, offset, rolls=number - 1 if rolls is None else rolls, at_ms=at_ms, due_ms=told_ms, value=value)
    extra = [(names.OCCURRENCE, b"%d" % number)]
    extra += [(names.SCHEDULED_MS, b"%d" % scheduled_ms)] if scheduled_ms is not None else []
    return made._replace(headers=(*made.headers[:-2], *extra, *made.headers[-2:]))


def came(asked: Record, number: int, due_ms: int | None = None, **other: object) -> Record:
    """Return the delivery of an occurrence."""
    told = {
        "due_ms": due(number) if due_ms is None else due_ms,
        "rolls": number - 1,
        "offset": asked.offset + 100 * number,
    }
    also = ((names.OCCURRENCE, b"%d" % number),)
    return delivery(asked, **{"also": also, **told, **other})  # type: ignore[arg-type]


def refused(asked: Record, number: int, code: str, at_ms: int) -> Record:
    """Return the rejected record of an occurrence: a request for it alone."""
    kept = tuple(header for header in asked.headers if header[0] not in names.RECURRENCE)
    absolute = ((names.DELIVER_MS, b"%d" % at_ms), (names.OCCURRENCE, b"%d" % number))
    return rejection(asked._replace(headers=(*kept, *absolute)), code, at_ms=at_ms, offset=asked.offset + 100 * number)


def whole(asked: Record, numbers: Sequence[int] = (1, 2, 3)) -> History:
    """Return a faultless series."""
    copies = [numbered(asked, asked.offset + 10 * number, number) for number in numbers if number > 1]
    return History([asked, *copies], [came(asked, number) for number in numbers])


@one_run()
def test_each_occurrence_has_its_row_and_its_class() -> Judging:
    found = yield whole(again(id=b"x"))
    assert found.by_class == {"delivered": "0 0#2 0#3"}
    rows = {row.origin.rpartition("/")[2]: row for row in found.rows}
    assert [(row.due_ms, row.lateness_ms, row.offset) for row in rows.values()] == [
        (11_000, 3, 0),
        (21_000, 3, 20),
        (31_000, 3, 30),
    ]


@one_run()
def test_without_an_id_and_with_rolls_in_between() -> Judging:
    asked = again(count=2)
    first = numbered(asked, 5, 1, 11_000, rolls=1, at_ms=4_000)
    second, rolled = numbered(asked, 6, 2, rolls=2), numbered(asked, 7, 2, rolls=3, at_ms=15_000)
    found = yield History([asked, first, second, rolled], [came(asked, 1, rolls=1), came(asked, 2, rolls=3)])
    assert found.classes == {"0": "delivered", "0#2": "delivered"}


@one_run()
def test_the_first_occurrence_by_cron_is_told_by_the_first_copy() -> Judging:
    rule = ((names.CRON, b"* * * * *"), (names.ZONE, b"Europe/Berlin"), (names.COUNT, b"1"))
    asked, lost, wrong, at_once = (again(n, also=rule, every=None, count=None) for n in range(4))
    copies = [numbered(asked, 10, 1, 60_000, rolls=1, at_ms=1_003)]
    copies.append(numbered(wrong, 12, 1, 61_000, rolls=1, at_ms=1_003))
    came_on = [came(asked, 1, 60_000, rolls=1), came(wrong, 1, 61_000, rolls=1), came(at_once, 1, 1_000)]
    found = yield History([asked, lost, wrong, at_once, *copies], came_on)
    assert found.by_class == {"delivered": "0 3", "missing": "1", "off-rule": "2"}


@one_run()
def test_a_number_is_unexplained_without_a_copy_a_duplicate_twice_and_off_the_rule_after_a_gap() -> Judging:
    uncopied, twice, leaps = again(0, count=1), again(1, count=2), again(2)
    third = numbered(leaps, 20, 3, due(2), rolls=1, at_ms=due(1) + 3)
    history = whole(twice, (1, 2))
    history.requests += [uncopied, leaps, third]
    history.deliveries += [came(uncopied, 1), came(uncopied, 2), came(twice, 2, offset=999)]
    history.deliveries += [came(leaps, 1), came(leaps, 3, due(2), rolls=1)]
    found = yield history
    assert found.by_class == {"delivered": "0 1 2", "unexplained": "0#2", "duplicate": "1#2", "off-rule": "2#3"}


@one_run()
def test_a_time_that_its_rule_does_not_have_is_off_the_rule() -> Judging:
    shifted, beyond, over, past = again(0), again(1, count=1), again(2, also=((names.UNTIL_MS, b"20000"),)), again(3)
    copies = [numbered(shifted, 10, 2, 21_003), numbered(beyond, 11, 2), numbered(over, 12, 2)]
    copies.append(numbered(past, 13, 2, due(1)))
    told = [came(each, 1) for each in (shifted, beyond, over, past)]
    told += [came(shifted, 2, 21_003), came(beyond, 2), came(over, 2), came(past, 2, due(1), at_ms=due(1) + 9)]
    found = (yield History([shifted, beyond, over, past, *copies], told)).classes
    assert [found[name] for name in ("0#2", "1#2", "2#2", "3#2")] == ["off-rule"] * 4


@one_run()
def test_a_series_that_stops_before_its_rule_ends_is_broken_off() -> Judging:
    asked, rejected, last, cron = again(0), again(1), again(2), again(3, every=None, also=((names.CRON, b"* * * * *"),))
    history = whole(asked, (1, 2))
    history.add(whole(last))
    first = numbered(cron, 63, 1, 60_000, rolls=1, at_ms=1_003)
    history.requests += [rejected, cron, first]
    history.deliveries.append(came(cron, 1, 60_000, rolls=1))
    history.rejections.append(refused(rejected, 1, "unknown-topic", due(1)))
    assert (yield history).by_class == {"delivered": "0 2 2#2 2#3", "broken-off": "0#2 1 3"}


@one_run()
def test_what_is_not_due_yet_is_pending_and_a_lost_one_is_missing() -> Judging:
    waits, lost, passed = again(0, count=None, every=b"60000"), again(1), again(2)
    copies = [numbered(waits, 10, 2, 121_000, at_ms=61_003), numbered(lost, 11, 2)]
    copies += [numbered(passed, 12, 2), numbered(passed, 13, 3)]
    told = [came(waits, 1, 61_000), came(lost, 1), came(passed, 1), came(passed, 3)]
    assert (yield History([waits, lost, passed, *copies], told)).by_class == {
        "delivered": "0 1 2 2#3",
        "pending": "0#2",
        "missing": "1#2 2#2",
    }


@one_run()
def test_a_cancel_ends_the_series_and_what_comes_after_it_is_a_fault() -> Judging:
    """Also if the copy lies behind the cancel: the bridge had not read it when the occurrence before it left."""
    ended, told, goes_on = again(0, id=b"a"), again(1, id=b"b"), again(2, id=b"c")
    nameless = again(3)
    stops = [
        cancel(b"a", 40, at_ms=15_000),
        cancel(b"b", 41, at_ms=11_002),
        cancel(b"c", 42, at_ms=12_000),
        cancel(nameless.origin, 43, at_ms=15_000),
    ]
    copies = [numbered(ended, 10, 2), numbered(told, 51, 2), numbered(goes_on, 12, 2), numbered(goes_on, 13, 3)]
    copies += [numbered(nameless, 14, 2)]
    history = History(
        [ended, told, goes_on, nameless, *stops, *copies],
        [came(each, 1) for each in (ended, told, goes_on, nameless)] + [came(goes_on, 2), came(goes_on, 3)],
        [],
        [
            receipt("cancelled", stops[0], ended),
            receipt("cancelled", stops[1], told, at_ms=11_010),
            receipt("cancelled", stops[3], nameless),
        ],
    )
    assert (yield history).by_class == {
        "delivered": "0 1 2 3",
        "cancelled": "0#2 1#2 3#2",
        "cancelled-but-delivered": "2#2 2#3",
        "cancel-done": "40 41 43",
        "cancel-too-late": "42",
    }


@one_run()
def test_a_replacement_is_a_series_of_its_own() -> Judging:
    asked, other = again(0, id=b"x"), again(30, id=b"x", at_ms=15_000, count=1)
    found = yield History([asked, numbered(asked, 10, 2), other], [came(asked, 1), came(other, 1, 25_000)])
    assert found.by_class == {"delivered": "0 30", "replaced": "0#2"}


@one_run()
def test_after_downtime_the_policy_says_which_times_are_left_out() -> Judging:
    """The first occurrence leaves at 35,000: 21,000 and 31,000 have passed."""
    late_ms, missed = 35_000, names.MISSED_POLICY
    one, idle = again(0), again(1)
    all_, left_out = again(2, also=((missed, b"all"),)), again(3, also=((missed, b"all"),))
    none, early = again(4, also=((missed, b"none"),), count=1), again(5, also=((missed, b"none"),), count=1)
    stale, old = again(6, also=((missed, b"none"),), count=1), again(7, count=2)
    copies = [
        numbered(one, 10, 2, 41_000, at_ms=late_ms),
        numbered(idle, 11, 2, 41_000),
        numbered(all_, 12, 2, at_ms=late_ms),
        numbered(left_out, 13, 2, 41_000, at_ms=late_ms),
        numbered(none, 14, 1, 41_000, rolls=1, at_ms=late_ms),
        numbered(early, 15, 1, 41_500, rolls=1, at_ms=late_ms),
        numbered(old, 17, 2, 21_000, at_ms=late_ms),
    ]
    told = [came(one, 1, at_ms=late_ms), came(idle, 1), came(all_, 1, at_ms=late_ms), came(left_out, 1, at_ms=late_ms)]
    told += [came(each, 2, 41_000) for each in (one, idle, left_out)]
    told += [came(none, 1, 41_000, rolls=1), came(early, 1, 41_500, rolls=1), came(stale, 1, at_ms=late_ms)]
    told += [came(old, 1, at_ms=late_ms), came(old, 2, 21_000, at_ms=late_ms + 5)]
    found = (yield History([one, idle, all_, left_out, none, early, stale, old, *copies], told)).by_class
    assert found == {"delivered": "0 1 2 3 4 7", "broken-off": "0#2", "off-rule": "1#2 3#2 5 6 7#2", "missing": "2#2"}


@one_run()
def test_a_moved_occurrence_does_not_move_the_next_one() -> Judging:
    asked, shifted, unasked = again(0, id=b"x", count=2), again(1, count=2), again(2, count=2)
    moves = [move(b"x", 20, 17_000), move(shifted.origin, 21, 17_000)]
    moved = [
        numbered(each, 30 + n, 1, 17_000, rolls=1, at_ms=2_003, scheduled_ms=11_000)
        for n, each in enumerate((asked, shifted, unasked))
    ]
    copies = [numbered(asked, 40, 2, 21_000, rolls=2, at_ms=17_003)]
    copies += [numbered(shifted, 41, 2, 27_000, rolls=2, at_ms=17_003)]
    told = [came(asked, 1, 17_000, rolls=1), came(asked, 2, rolls=2)]
    told += [came(shifted, 1, 17_000, rolls=1), came(shifted, 2, 27_000, rolls=2)]
    found = (yield History([asked, shifted, unasked, *moves, *moved, *copies], told)).by_class
    assert found == {"moved": "0 1", "delivered": "0#2", "off-rule": "1#2", "missing": "2 32", "move": "20 21"}


@one_run()
def test_the_number_belongs_on_a_delivery_of_a_recurring_timer_and_on_no_other() -> Judging:
    asked, plain, other = again(0, count=1), request(1), request(2)
    told = [came(asked, 1, also=()), came(plain, 1, 5_000), came(other, 2, 5_000)]
    found = (yield History([asked, plain, other], told)).by_class
    assert found == {"altered": "0 1", "missing": "2", "unexplained": "2#2"}


@one_run()
def test_a_rejected_occurrence_does_not_end_the_series() -> Judging:
    asked = again(count=3)
    history = whole(asked, (1, 3))
    history.requests.append(numbered(asked, 20, 2))
    history.rejections.append(refused(asked, 2, "unknown-topic", due(2)))
    assert (yield history).by_class == {"delivered": "0 0#3", "rejected": "0#2"}


@one_run()
def test_a_copy_that_is_altered_is_no_copy() -> Judging:
    value, rule = again(0, count=2), again(1, count=2)
    copies = [numbered(value, 10, 2, value=b"other"), numbered(rule, 11, 2)]
    copies[1] = copies[1]._replace(headers=tuple((n, b"9" if n == names.COUNT else v) for n, v in copies[1].headers))
    found = (yield History([value, rule, *copies], [came(value, 1), came(rule, 1)])).by_class
    assert found == {"broken-off": "0 1", "missing": "10 11"}


@one_run()
def test_a_rule_is_refused_for_a_reason() -> Judging:
    def by_cron(offset: int, text: bytes, *also: tuple[str, bytes]) -> Record:
        return again(offset, every=None, count=None, also=((names.CRON, text), *also))

    good, never = by_cron(0, b"0 9 * * *"), by_cron(1, b"0 0 30 2 *")
    nowhere, four = by_cron(2, b"* * * * *", (names.ZONE, b"X")), by_cron(3, b"* * * *")
    ended, open_ = by_cron(4, b"* * * * *", (names.UNTIL_MS, b"5000")), by_cron(5, b"* * * * *")
    taken = by_cron(6, b"61 * * * *")
    # With a time of their own, they need no match.
    wrong = [
        by_cron(7, b"61 * * * *", (names.DELIVER_MS, b"5000")),
        by_cron(8, b"* * * * *", (names.ZONE, b"../X"), (names.DELIVER_MS, b"5000")),
    ]
    far = by_cron(9, b"* * * * *", (names.DELIVER_MS, b"%d" % 2**61))
    refusals = [rejection(each) for each in (good, never, nowhere, four, *wrong)]
    refusals.append(rejection(far, "too-far"))
    refusals += [rejection(each, "no-occurrence") for each in (ended, open_)]
    asked = [good, never, nowhere, four, ended, open_, taken, *wrong, far]
    assert (yield History(asked, [came(taken, 1, 1_000)], refusals)).by_class == {
        "wrongly-rejected": "0 5",
        "rejected": "1 2 3 4 7 8 9",
        "malformed-but-delivered": "6",
    }


@one_run()
def test_the_end_of_a_series_in_downtime_is_told() -> Judging:
    none = ((names.MISSED_POLICY, b"none"), (names.UNTIL_MS, b"25000"))
    asked, early = again(0, also=none, count=None), again(1, also=none, count=None)
    refusals = [refused(asked, 1, "missed", 30_000), refused(early, 1, "missed", 11_003)]
    found = yield History([asked, early], [], refusals)
    assert found.classes == {"0": "rejected", "1": "wrongly-rejected"}


@one_run()
def test_a_copy_that_was_not_read_yet_makes_no_fault() -> Judging:
    """Its delivery is from after the end of what was read of the timer topic."""
    asked = again(count=2, every=b"%d" % (AS_OF_MS - 2_000))
    found = yield History([asked], [came(asked, 1, AS_OF_MS - 1_000, at_ms=AS_OF_MS + 1)])
    assert found.classes == {"0": "delivered"}


def next_time_ms(cron: str, zone: str, after_ms: int) -> int | None:
    return time_after(Recurrence(cron, zone=zone), 0, after_ms)


@pytest.mark.parametrize(("zone", "at"), SPANS)
def test_searches_of_audit_and_bridge_find_what_a_walk_over_all_minutes_finds(zone: str, at: tuple[int, ...]) -> None:
    first_ms = int(datetime(*at, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[misc, arg-type]
    minutes = 2 * 24 * 60
    for cron in CRONS:
        walked = by_the_clock(cron, zone, first_ms, minutes)
        for search in (match_ms, next_time_ms):
            found, after_ms = [], first_ms
            while (later_ms := search(cron, zone, after_ms)) is not None and later_ms < first_ms + minutes * 60_000:
                found.append(after_ms := later_ms)
            assert found == walked, (search, cron)


def test_the_bridge_refuses_the_rules_that_the_audit_refuses() -> None:
    rng, kinds = Random(3), Counter[bool]()
    fields = ("*", "*/2", "*/31", "1,*/2", "L", "1W", "5L", "6l", "MON#2", "7#6", "SUN", "1-5", "0", "60")
    for _ in range(2_000):
        cron = f"0 9 {rng.choice(fields)} {rng.choice(('*', 'JAN', '*/2', '13'))} {rng.choice(fields)}"
        try:
            match_ms(cron, "UTC", 0)
            is_refused = False
        except (CronSimError, ValueError):
            is_refused = True
        refusal = problem_of(Recurrence(cron), 1_000, 1_000, 1_000)
        assert is_refused == (refusal is not None and refusal.code == "bad-header"), cron
        kinds[is_refused] += 1
    assert min(kinds.values()) > 200, kinds
