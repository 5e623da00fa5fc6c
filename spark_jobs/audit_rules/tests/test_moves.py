"""Requests that give a timer another time: what the audit proves of those timers, and what of the requests."""

import pytest

from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, cancel, copy, delivery, move, receipt, rejection, request

pytestmark = pytest.mark.spark


@one_run()
def test_moved_timers_have_a_class_of_their_own_and_moves_are_no_timers() -> Judging:
    later, sooner, twice = (request(n, id=b"%d" % n, due_ms=50_000) for n in range(3))
    waits, ended, lost = (request(n, id=b"%d" % n) for n in range(3, 6))
    moves = [
        move(b"0", 10, 60_000),
        move(b"1", 11, 9_000),
        move(b"2", 12, 9_000),
        move(b"2", 13, 70_000, at_ms=3_000),
        move(b"3", 14, AS_OF_MS + 5),
        move(b"4", 15, 80_000),
        move(b"5", 16, 20_000),
        move(b"nothing", 17, 20_000),
    ]
    rounds = [copy(later, 30, due_ms=b"60000"), copy(sooner, 31, due_ms=b"9000"), copy(twice, 32, due_ms=b"9000")]
    rounds += [copy(twice, 33, due_ms=b"70000", rolls=2), copy(waits, 34, due_ms=b"%d" % (AS_OF_MS + 5))]
    stops = cancel(b"4", 40, at_ms=70_000)
    came = [delivery(later, due_ms=60_000, rolls=1), delivery(sooner, due_ms=9_000, rolls=1)]
    came.append(delivery(twice, due_ms=70_000, rolls=2))
    told = [receipt("moved", moves[0], later), receipt("not-found", moves[7])]
    found = yield History([later, sooner, twice, waits, ended, lost, *moves, *rounds, stops], came, [], told)
    assert found.by_class == {
        "moved": "0 1 2",
        "pending": "3",
        "cancelled": "4",
        "missing": "5",
        "move": "10 11 12 13 14 15 16 17",
        "cancel-done": "40",
    }
    rows = {row.offset: row for row in found.rows}
    assert (rows[0].due_ms, rows[0].lateness_ms, rows[5].due_ms) == (60_000, 3, 20_000)


@one_run()
def test_a_moved_timer_still_hides_no_fault() -> Judging:
    early, other, twice, value = (request(n, id=b"%d" % n) for n in range(4))
    forged = request(4, id=b"4")
    plain = request(5, due_ms=AS_OF_MS + 1)
    moves = [move(b"%d" % n, 10 + n, 20_000) for n in range(4)]
    asked = [early, other, twice, value, forged, plain, *moves, copy(forged, 30, due_ms=b"9000"), move(None, 31, 5)]
    came = [delivery(early, due_ms=20_000, at_ms=19_999), delivery(other, due_ms=20_001)]
    came += [delivery(twice), delivery(twice, offset=90), delivery(value, due_ms=20_000, value=b"other")]
    came += [delivery(forged), delivery(moves[3], due_ms=20_000, offset=91)]
    assert (yield History(asked, came)).by_class == {
        "early": "0",
        "altered": "1 3",
        "duplicate": "2",
        "delivered": "4",
        "pending": "5",
        "move": "10 11 12",
        "malformed-but-delivered": "13",
        "missing": "30 31",
    }


@one_run()
def test_a_move_that_was_refused_or_found_nothing_moves_nothing() -> Judging:
    """A receipt says that it found nothing: the timer, told as delivered or not, has its own time."""
    came, lost, asked = (request(n, id=id_) for n, id_ in enumerate((b"came", b"lost", b"x")))
    moves = [move(b"came", 10, 60_000, at_ms=6_000), move(b"lost", 11, AS_OF_MS + 5, at_ms=6_000)]
    far, no_time = move(b"x", 12, 10**15), move(b"x", 13, None)
    told = [receipt("too-late", moves[0]), receipt("not-found", moves[1])]
    back = [rejection(far, "too-far"), rejection(no_time)]
    history = History([came, lost, asked, *moves, far, no_time], [delivery(came), delivery(asked)], back, told)
    assert (yield history).by_class == {"delivered": "0 2", "missing": "1", "move": "10 11", "rejected": "12 13"}


@one_run()
def test_the_earliest_of_its_times_is_in_the_table() -> Judging:
    """A backfill asks whether a delivery of then would still be there."""
    asked, own, plain = request(0, id=b"x", due_ms=50_000), request(1, id=b"y"), request(2)
    moves = [move(b"x", 10, 9_000), move(b"x", 11, 70_000, at_ms=3_000), move(b"y", 12, 70_000)]
    rows = {row.offset: row for row in (yield History([asked, own, plain, *moves])).rows}
    assert [(rows[n]["class"], rows[n].due_ms, rows[n].moved_low_ms) for n in range(3)] == [
        ("missing", 70_000, 9_000),
        ("missing", 70_000, 5_000),
        ("missing", 5_000, None),
    ]


@one_run(**TIGHT)
def test_a_timer_that_was_moved_during_the_audit_is_pending() -> Judging:
    """Its move and the copy, or the copy alone, lie behind what was read of the timer topic."""
    far_ms, now_ms = AS_OF_MS + 10**6, AS_OF_MS + 3
    moved, seen, ended, other, sooner, past = (request(n, id=b"%d" % n, due_ms=far_ms) for n in (0, 1, 3, 4, 5, 6))
    rolled = request(2, due_ms=AS_OF_MS)
    moves = [move(b"1", 10, AS_OF_MS)]
    stops = cancel(b"3", 11, at_ms=AS_OF_MS - 900)
    came = [delivery(each, due_ms=AS_OF_MS, at_ms=now_ms, rolls=1) for each in (moved, seen, ended)]
    came.append(delivery(rolled, rolls=1))
    came.append(delivery(other, due_ms=AS_OF_MS, at_ms=now_ms, rolls=1, value=b"other"))
    came.append(delivery(sooner, due_ms=now_ms + 1, at_ms=now_ms, rolls=1))
    came.append(delivery(past, due_ms=50_000, at_ms=50_003, rolls=1))
    history = History([moved, seen, rolled, ended, other, sooner, past, *moves, stops], came)
    rows = {row.offset: row for row in (yield history).rows if row.offset < 10}
    assert {offset: (row["class"], row.open, row.faults) for offset, row in rows.items()} == {
        **dict.fromkeys(range(4), ("pending", True, [])),
        4: ("altered", True, ["altered"]),
        5: ("early", True, ["early"]),
        6: ("early", False, ["early", "altered"]),
    }
    assert (rows[0].due_ms, rows[0].lateness_ms, rows[0].altered) == (AS_OF_MS, 3, [])
