"""Paused timers and those of a paused target: held, late from the resume on, and a fault if delivered meanwhile."""

import pytest

from kafka_timer import headers as names
from spark_jobs.audit_rules.tests.test_series import again, came, due, numbered
from spark_jobs.kafka.admin import Span
from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import (
    AS_OF_MS,
    History,
    Record,
    asking,
    cancel,
    copy,
    delivery,
    move,
    pause,
    paused_copy,
    receipt,
    rejection,
    request,
)

pytestmark = pytest.mark.spark

PAUSES = (names.DELIVER_MS, b"soon")
"""A time header, which a pause ignores as a cancel does."""


def timers(count: int, first: int = 0) -> list[Record]:
    """Return timers that are due at 5,000, with their offset as id."""
    return [request(first + n, id=b"%d" % (first + n)) for n in range(count)]


@one_run()
def test_a_paused_timer_is_held_until_it_is_resumed() -> Judging:
    silent, told, twice, nameless = *timers(3), request(3)
    later = request(4, id=b"4", due_ms=AS_OF_MS + 5)
    resumed, again_paused, resumed_now, gone = timers(4, 5)
    asked = [silent, told, twice, nameless, later, resumed, again_paused, resumed_now, gone]
    pauses = [
        asking("pause", b"0", 20, also=(PAUSES,)),
        asking("pause", b"1", 21),
        asking("pause", b"2", 22),
        asking("pause", b"2", 23, 50_000),
        asking("pause", nameless.origin, 24),
        asking("pause", b"4", 25),
        *(asking("pause", b"5", 26), asking("resume", b"5", 27, 60_000)),
        *(asking("pause", b"6", 28), asking("resume", b"6", 29, 60_000), asking("pause", b"6", 30, 60_500)),
        *(asking("pause", b"7", 31), asking("resume", b"7", 32, AS_OF_MS + 1)),
        *(asking("pause", b"8", 33), asking("resume", b"8", 34, 60_000)),
    ]
    copies = [paused_copy(told, 40), paused_copy(nameless, 41), paused_copy(resumed, 42)]
    copies.append(copy(resumed, 43, rolls=2, at_ms=60_001))
    told_of = [receipt("paused", pauses[1], told), receipt("resumed", pauses[7], resumed)]
    told_of += [receipt("paused", pauses[13], gone), receipt("not-found", pauses[14])]
    found = yield History([*asked, *pauses, *copies], [], [], told_of)
    assert found.by_class == {
        "held": "0 1 2 3 6",
        "pending": "4 7",
        "missing": "5 8",
        "move": " ".join(map(str, range(20, 35))),
    }
    assert {row.offset for row in found.rows if row.open and row.offset < 10} == {*range(9)}


@one_run()
def test_a_pause_that_came_too_late_hides_no_lost_timer() -> Judging:
    """A receipt says that there was a timer to pause, and another one that there was none."""
    lost, lost_twice, there, gone, resumed = timers(5)
    pauses = [
        asking("pause", b"0", 20, 50_000),
        *(asking("pause", b"1", 21, 50_000), asking("pause", b"1", 22, 60_000)),
        asking("pause", b"2", 23, 50_000),
        asking("pause", b"3", 24, 5_500),
        *(asking("resume", b"4", 25, 60_000), asking("pause", b"4", 26, 60_100)),
    ]
    told_of = [receipt("paused", pauses[3], there), receipt("not-found", pauses[4])]
    found = yield History([lost, lost_twice, there, gone, resumed, *pauses], [], [], told_of)
    assert found.by_class == {"missing": "0 1 3 4", "held": "2", "move": "20 21 22 23 24 25 26"}


@one_run()
def test_a_move_a_replacement_and_a_cancel_end_a_pause() -> Judging:
    (lost, waits), nameless, (replaced, cancelled, overdue) = timers(2), request(2), timers(3, 3)
    pauses = [
        *(asking("pause", b"%d" % n, 20 + n) for n in (0, 1, 3, 4)),
        asking("pause", nameless.origin, 22),
        asking("pause", b"5", 25, 50_000),
    ]
    ends = [move(b"0", 30, 9_000, at_ms=3_000), move(b"1", 31, AS_OF_MS + 5, at_ms=3_000)]
    ends += [move(nameless.origin, 32, 9_000, at_ms=3_000), request(33, id=b"3", at_ms=60_000, due_ms=61_000)]
    ends += [cancel(b"4", 34, at_ms=60_000), cancel(b"5", 35, at_ms=60_000)]
    history = History([lost, waits, nameless, replaced, cancelled, overdue, *pauses, *ends], [delivery(ends[3])])
    assert (yield history).by_class == {
        "missing": "0 2 5",
        "pending": "1",
        "replaced": "3",
        "cancelled": "4",
        "move": "20 21 22 23 24 25 30 31 32",
        "delivered": "33",
        "cancel-done": "34 35",
    }


@one_run(**TIGHT)
def test_a_resumed_timer_is_late_from_the_resume_on() -> Judging:
    in_time, late, early, before, moved, behind = timers(6)
    pauses = [asking("pause", b"%d" % n, 20 + n) for n in (0, 1, 2, 4, 5)] + [asking("pause", b"3", 23, 6_500)]
    resumes = [asking("resume", b"%d" % n, 30 + n, 60_000) for n in (0, 1, 3, 5)]
    resumes += [asking("resume", b"2", 32, 3_000), move(b"4", 34, 60_000, at_ms=61_000)]
    copies = [paused_copy(in_time, 40), copy(in_time, 41, rolls=2, at_ms=60_001), paused_copy(moved, 42)]
    copies.append(copy(moved, 43, rolls=2, due_ms=b"60000", at_ms=61_001))
    came_on = [delivery(in_time, at_ms=60_003, rolls=2), delivery(moved, due_ms=60_000, at_ms=61_003, rolls=2)]
    times_ms = ((late, 70_000), (early, 5_003), (before, 6_000), (behind, 59_900))
    came_on += [delivery(each, at_ms=at_ms) for each, at_ms in times_ms]
    asked = [in_time, late, early, before, moved, behind]
    rows = {row.offset: row for row in (yield History([*asked, *pauses, *resumes, *copies], came_on)).rows}
    classes = ["delivered", "late", "delivered", "late", "moved", "delivered"]
    assert [rows[n]["class"] for n in range(6)] == classes
    assert [rows[n].lateness_ms for n in range(6)] == [3, 10_000, 3, 1_000, 3, 0]


@one_run()
def test_a_delivery_while_paused_is_a_fault() -> Judging:
    """Clocks may differ by a second (the default), and a pause may be read a second later (the tolerance)."""
    silent, told, between, second, race, told_race, late, nameless = *timers(7), request(7)
    pauses = [
        asking("pause", b"0", 20),
        asking("pause", b"1", 21, 4_900),
        *(asking("pause", b"2", 22), asking("resume", b"2", 32, 60_000)),
        *(asking("pause", b"3", 23), asking("resume", b"3", 33, 3_000), asking("pause", b"3", 43, 3_500)),
        *(asking("resume", b"3", 53, 60_000), asking("pause", b"3", 63, 70_000)),
        asking("pause", b"4", 24, 4_903),
        asking("pause", b"5", 25, 2_000),
        asking("pause", b"6", 26, 2_000),
        asking("pause", nameless.origin, 27),
    ]
    answers = [receipt("paused", pauses[1], told), receipt("paused", pauses[10], told_race, at_ms=30_000)]
    answers.append(receipt("too-late", pauses[11], at_ms=30_000))
    came_on = [delivery(each, at_ms=5_903) for each in (silent, told, between, second, race, told_race, late, nameless)]
    came_on[5] = delivery(told_race, at_ms=30_900)
    asked = [silent, told, between, second, race, told_race, late, nameless]
    assert (yield History([*asked, *pauses], came_on, [], answers)).by_class == {
        "paused-but-delivered": "0 1 2 3 7",
        "delivered": "4 5 6",
        "move": "20 21 22 23 24 25 26 27 32 33 43 53 63",
    }


@one_run()
def test_what_was_resumed_behind_what_was_read_is_no_fault_yet() -> Judging:
    """The audit has read all that is older than its time. Such a delivery is looked at once more."""
    asked, nameless, paused = *timers(1), request(1), request(2)
    pauses = [asking("pause", b"0", 20), asking("pause", nameless.origin, 21), asking("pause", paused.origin, 22)]
    came_on = [delivery(asked, at_ms=AS_OF_MS + 3), delivery(nameless, at_ms=AS_OF_MS - 900)]
    found = yield History([asked, nameless, paused, *pauses], [*came_on, delivery(paused, at_ms=AS_OF_MS - 1_100)])
    assert found.by_class == {"delivered": "0 1", "paused-but-delivered": "2", "move": "20 21 22"}
    assert {row.offset for row in found.rows if row.open} == {0, 1}


@one_run()
def test_a_pause_of_nothing_changes_nothing() -> Judging:
    other, refused, past = timers(3)
    cancelled, stops = request(3, id=b"3", due_ms=50_000), cancel(b"3", 10)
    pauses = [
        asking("pause", b"nothing", 20),
        asking("resume", "timer.requests/0/77", 21),
        asking("pause", b"1", 22),
        asking("resume", b"2", 23, 60_000),
        asking("pause", b"3", 24, 3_000),
        asking("pause", "timer.requests/9/0", 25),
        asking("pause", b"", 26),
        asking("pause", None, 27, also=((names.TOPIC, b"orders"),)),
        asking("resume", None, 28),
        asking("pause", None, 29, also=((names.TOPIC, b"orders"), (names.OF, b"here"))),
    ]
    rejections = [rejection(pauses[2], "denied-action"), rejection(pauses[5]), rejection(pauses[6])]
    rejections += [rejection(pauses[8]), rejection(pauses[9])]
    came_on = [delivery(other), delivery(refused), delivery(past)]
    history = History([other, refused, past, cancelled, stops, *pauses], came_on, rejections)
    found = yield history
    assert found.by_class == {
        "delivered": "0 1 2",
        "cancelled": "3",
        "cancel-done": "10",
        "move": "20 21 23 24",
        "rejected": "22 25 26 28 29",
        "switch": "27",
    }
    assert [row.lateness_ms for row in found.rows if row["class"] == "delivered"] == [3, 3, 3]


@one_run()
def test_an_expiry_is_checked_when_the_timer_is_resumed() -> Judging:
    expire = ((names.EXPIRE_MS, b"30000"),)
    asked, waits = request(0, id=b"0", also=expire), request(1, id=b"1", also=expire)
    switches = [asking("pause", b"0", 20), asking("pause", b"1", 21), asking("resume", b"0", 22, 60_000)]
    history = History([asked, waits, *switches], [], [rejection(asked, "expired", at_ms=60_003)])
    assert (yield history).by_class == {"expired": "0", "held": "1", "move": "20 21 22"}


@one_run(**TIGHT)
def test_a_paused_occurrence_is_held_and_the_series_goes_on_after_the_resume() -> Judging:
    """The second occurrence (21,000) is held from 15,000 to 35,000: by `one` the next is due at 41,000."""
    one, wrong, stays, lost = (again(n, id=b"%d" % n) for n in (0, 1, 2, 4))
    held = again(3)
    all_ = again(5, id=b"5", also=((names.MISSED_POLICY, b"all"),))
    none = again(6, id=b"6", also=((names.MISSED_POLICY, b"none"),), count=2)
    series = [one, wrong, stays, held, lost, all_, none]
    pauses = [asking("pause", each.origin, 20 + n, 15_000) for n, each in enumerate(series)]
    resumes = [asking("resume", b"%d" % n, 30 + n, 35_000) for n in (0, 1, 4, 5, 6)]
    pauses.append(asking("pause", b"0", 37, 35_500))
    resumes.append(asking("resume", b"0", 38, 36_000))
    seconds = [numbered(each, 40 + n, 2) for n, each in enumerate(series)]
    paused = [
        numbered(each, 50 + n, 2, names.PAUSED_MS + due(2), rolls=2, at_ms=15_001, scheduled_ms=due(2))
        for n, each in enumerate(series)
    ]
    back = [numbered(each, 60 + n, 2, rolls=3, at_ms=35_001) for n, each in enumerate(series) if n not in (2, 3)]
    thirds = [numbered(one, 70, 3, 41_000, rolls=4, at_ms=35_003), numbered(wrong, 71, 3, 31_000, rolls=4)]
    thirds += [numbered(all_, 75, 3, 31_000, rolls=4, at_ms=35_003)]
    thirds += [numbered(none, 76, 2, 41_000, rolls=4, at_ms=35_003)]
    told = [came(each, 1) for each in series]
    told += [came(each, 2, at_ms=36_003, rolls=3) for each in (one, all_)]
    told += [came(wrong, 2, at_ms=22_500, rolls=1), came(wrong, 3, at_ms=36_003, rolls=4)]
    told += [came(one, 3, 41_000, rolls=4), came(all_, 3, 31_000, at_ms=36_005, rolls=4)]
    told.append(came(none, 2, 41_000, rolls=4))
    found = yield History([*series, *pauses, *resumes, *seconds, *paused, *back, *thirds], told)
    by_class = found.by_class
    assert by_class.pop("move").split() == [str(n) for n in (*range(20, 27), 30, 31, 34, 35, 36, 37, 38)]
    assert by_class == {
        "delivered": "0 0#2 0#3 1 2 3 4 5 6 6#2",
        "late": "1#3 5#2 5#3",
        "paused-but-delivered": "1#2",
        "held": "2#2 3#2",
        "missing": "4#2",
    }
    rows = {row.origin.rpartition("/")[2]: row for row in found.rows}
    assert [rows[n].lateness_ms for n in ("0", "0#2", "0#3", "5#3", "6#2")] == [3, 3, 3, 1_005, 3]


@one_run()
def test_a_timer_whose_pause_retention_has_deleted_is_held_by_the_word_of_its_copies() -> Judging:
    """Only copies are left of these requests. An earlier request that was not paused is missing."""
    held, resumed, asked_now, lost, moved_on = timers(5)
    copies = [paused_copy(held, 30, rolls=3, at_ms=60_000), paused_copy(held, 31, rolls=4, at_ms=70_000)]
    copies += [paused_copy(resumed, 32, rolls=3), copy(resumed, 33, rolls=4, at_ms=60_000)]
    copies += [paused_copy(asked_now, 34, rolls=3), asking("resume", b"2", 35, 60_000)]
    copies += [copy(lost, 36, rolls=3), paused_copy(moved_on, 37, rolls=2), asking("pause", b"4", 38, 50_000)]
    copies += [paused_copy(moved_on, 39, rolls=3, at_ms=70_000)]
    found = yield History(copies, spans=[Span("timer.requests", 0, 30, 1_000)])
    assert found.by_class == {"held": "0 4", "missing": "1 2 3", "move": "35 38"}


@one_run()
def test_a_copy_may_be_due_in_the_year_33658_only_as_a_copy() -> Judging:
    asked, forged, other = request(0), request(1, due_ms=names.PAUSED_MS + 5_000), request(2)
    copies = [paused_copy(asked, 10), paused_copy(other, 11, value=b"other")]
    found = yield History([asked, forged, other, *copies], [delivery(other)], [rejection(forged, "too-far")])
    assert found.by_class == {"missing": "0 11", "rejected": "1", "delivered": "2"}


@one_run(**TIGHT)
def test_timers_of_a_paused_topic_are_held() -> Judging:
    """`shirts` is paused at 4,000 and again at 6,000, and its key is deleted later. The tolerance is 1,000 ms."""

    def shirts(offset: int, *, due_ms: int | None = 5_000, id: bytes | None = None) -> Record:  # noqa: A002
        return request(offset, target="shirts", due_ms=due_ms, id=id)

    before, within, later = (shirts(n, due_ms=due_ms) for n, due_ms in enumerate((2_999, 3_000, 20_000)))
    came, future, bad = shirts(3), shirts(4, due_ms=AS_OF_MS + 1), shirts(5, due_ms=None)
    waits, ended = shirts(6, id=b"x"), cancel(b"x", 7, at_ms=50_000)
    resumed, just_now = (request(n, target=target, due_ms=6_000) for n, target in ((8, "bills"), (9, "mails")))
    elsewhere = request(12, target="other", due_ms=6_000)
    lost, late = shirts(10, id=b"y", due_ms=2_000), cancel(b"y", 11, at_ms=50_000)
    asked = [before, within, later, came, future, bad, waits, ended, resumed, just_now, lost, late, elsewhere]
    history = History(asked, [delivery(came, topic="shirts")])
    history.control = [
        *(pause("shirts", 0, 1_000), pause("shirts", 1, 2_000, on=False)),
        *(pause("shirts", 2, 4_000), pause("shirts", 3, 6_000), pause("shirts", 4, 7_000, on=None)),
        *(pause("bills", 5, 4_000), pause("bills", 6, 9_000, on=False)),
        *(pause("mails", 7, 4_000), pause("mails", 8, AS_OF_MS - 9, on=False)),
        pause("other", 9, 1_000, timers="timer.more"),
        Record("timer.control", 0, 10, 1_000, "LogAppendTime", b"skip/timer.requests/0/9", b'{"v":1,"on":true}', ()),
    ]
    found = yield history
    assert found.by_class == {
        "missing": "0 5 8 10 12",
        "held": "1 2 9",
        "delivered": "3",
        "pending": "4",
        "cancelled": "6",
        "cancel-not-found": "7 11",
    }
    assert {row.offset for row in found.rows if row.open} == {0, 1, 2, 4, 5, 8, 9, 10, 12}
