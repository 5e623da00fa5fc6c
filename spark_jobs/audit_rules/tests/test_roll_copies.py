"""Rolled requests: one row for a request and all its copies; a forged copy is a request of its own, to be refused."""

from typing import Any

import pytest

from kafka_timer import headers as names
from spark_jobs.kafka.admin import Span
from spark_jobs.tests.one_run import TIGHT, Judging, one_run
from spark_jobs.tests.records import AS_OF_MS, History, cancel, copy, delivery, rejection, request

pytestmark = pytest.mark.spark


@one_run()
def test_a_copy_is_no_request_of_its_own() -> Judging:
    delayed = request(0, due_ms=None, id=b"x", also=((names.DELAY_MS, b"4000"), (names.KEY, b"other")))
    first, second = (copy(delayed, 3, due_ms=b"5000"), copy(delayed, 6, rolls=2, due_ms=b"5000"))
    waiting = request(1, due_ms=AS_OF_MS + 1)
    came = delivery(delayed, due_ms=5_000, key=b"other", rolls=2)
    found = yield History([delayed, waiting, copy(waiting, 4), first, second], [came])
    assert [(r["offset"], r["class"], r.copies, r.faults) for r in found.rows] == [
        (0, "delivered", 2, []),
        (1, "pending", 1, []),
    ]


@one_run()
def test_a_rolled_timer_may_be_missing_duplicate_or_cancelled() -> Judging:
    lost, twice, ended = request(0), request(1), request(2, id=b"x", due_ms=50_000)
    copies = [copy(asked, 10 + asked.offset) for asked in (lost, twice, ended)]
    ends = cancel(b"x", 20)
    came = [delivery(twice, rolls=1), delivery(twice, rolls=1, offset=7)]
    found = yield History([lost, twice, ended, *copies, ends], came)
    assert found.by_class == {"missing": "0", "duplicate": "1", "cancelled": "2", "cancel-done": "20"}


FORGED: list[dict[str, Any]] = [
    {"value": b"other"},
    {"key": b"other"},
    {"due_ms": b"4999"},
    {"rolls": 2},
    {"partition": 1},
    {"headers": ((names.ORIGIN, b"timer.requests/0/0"), (names.ROLLS, b"1"))},
    {"headers": ((names.TOPIC, b"orders"), (names.DELIVER_MS, b"5000"), (names.ORIGIN, b"timer.requests/0/0"))},
    {"headers": ((names.TOPIC, b"orders"), (names.DELIVER_MS, b"5000"), (names.ROLLS, b"1"))},
]


@one_run()
def test_a_refused_forgery_is_rejected_and_changes_no_other_row() -> Judging:
    """The one that is refused may have the very bytes of a copy."""
    asked = request(0)
    those = [copy(asked, **{"offset": 10 + n, **how}) for n, how in enumerate([*FORGED, {}])]
    rows = (yield History([asked, *those], [delivery(asked)], [rejection(each, "not-ours") for each in those])).rows
    assert {(r["class"], r.copies, r.deliveries) for r in rows if r.offset} == {("rejected", 0, 0)}
    assert [(r["class"], r.copies, r.kind) for r in rows if not r.offset] == [("delivered", 0, "schedule")]


@one_run()
def test_a_forgery_that_was_not_refused_is_missing_there() -> Judging:
    asked = request(0)
    true = copy(asked, 50)
    those = [copy(asked, **{"offset": 60 + n, **how}) for n, how in enumerate([{}, {"rolls": 4}, *FORGED])]
    those[-3] = those[-3]._replace(headers=(*those[-3].headers, (names.TOPIC, b"orders")))
    rows = (yield History([asked, true, *those[:-1]], [delivery(asked, rolls=1)])).rows
    found = {(r.partition, r.offset): (r["class"], r.kind) for r in rows}
    assert found.pop((0, 0)) == ("delivered", "schedule")
    # rolls 2 after the true 1 is what a second copy would look like: nothing on the topics tells it apart.
    lookalike = next(each for each in those if each.header(names.ROLLS) == b"2")
    assert (0, lookalike.offset) not in found
    assert set(found.values()) == {("missing", "copy")}
    assert len(found) == len(those) - 2


@one_run()
def test_a_forged_copy_with_an_id_ends_nothing() -> Judging:
    asked, other = request(0, id=b"x"), request(1, id=b"y")
    fake = copy(other, 5, headers=(*asked.headers, (names.ORIGIN, b"timer.requests/0/1"), (names.ROLLS, b"1")))
    found = yield History([asked, other, fake], [delivery(asked), delivery(other)], [rejection(fake, "not-ours")])
    assert found.by_class == {"delivered": "0 1", "rejected": "5"}


@one_run()
def test_if_retention_deleted_the_request_its_copy_counts() -> Judging:
    gone, lost, ended = request(0), request(1), request(2, id=b"x", due_ms=50_000)
    there = [copy(gone, 10, rolls=3), copy(gone, 11, rolls=4), copy(lost, 12, rolls=2), copy(ended, 13, rolls=1)]
    asked, spans = [*there, cancel(b"x", 20, at_ms=3_000)], [Span("timer.requests", 0, 10, 30)]
    found = yield History(asked, [delivery(gone, rolls=4)], spans=spans)
    assert found.by_class == {"delivered": "0", "missing": "1", "cancelled": "2", "cancel-done": "20"}


@one_run()
def test_a_copy_of_a_request_before_the_range_is_of_another_time() -> Judging:
    """What was refused, is no copy by its headers, or names a request of the range that is not there is judged."""
    before, absent, within = request(0), request(7), request(8)
    refused, illegible = copy(before, 12), copy(before, 13, headers=((names.ORIGIN, b"timer.requests/0/0"),))
    claims = [copy(before, 10), copy(before, 11, rolls=2), refused, illegible, copy(absent, 14), copy(within, 15)]
    history = History([within, *claims], [delivery(within, rolls=1)], [rejection(refused, "not-ours")])
    history.spans, history.is_excluded = [Span("timer.requests", 0, 5, 20)], True
    assert (yield history).by_class == {"delivered": "8", "rejected": "12", "missing": "13 14"}


@one_run()
def test_a_delivery_of_a_copy_that_is_not_there_or_without_its_number_is_altered() -> Judging:
    asked, plain, odd = request(0), request(1), request(2)
    came = [delivery(asked, rolls=2), delivery(plain, rolls=3), delivery(odd)]
    came[2] = came[2]._replace(headers=[(n, b"none" if n == names.ROLLS else v) for n, v in came[2].headers])
    found = yield History([asked, plain, odd, copy(asked, 5)], came)
    assert [(r["class"], r.altered) for r in found.rows] == [("altered", [names.ROLLS])] * 3


@one_run()
def test_a_level_is_a_delay() -> Judging:
    delays_ms = {0: 0, 1: 1_000, 18: 7_200_000, 99: 7_200_000}
    asked = [request(n, due_ms=None, also=((names.DELAY_LEVEL, b"%d" % n),)) for n in delays_ms]
    came = [delivery(each, due_ms=1_000 + delays_ms[each.offset]) for each in asked[:2]]
    found = yield History(asked, came)
    assert [(r.due_ms, r["class"]) for r in found.rows] == [
        (1_000, "delivered"),
        (2_000, "delivered"),
        (7_201_000, "pending"),
        (7_201_000, "pending"),
    ]


@one_run()
def test_expiry() -> Judging:
    """`expired` is believed where the request says so and its time had come."""
    until = (("timer-expire-ms", b"6000"),)
    asked = [request(n, also=until) for n in range(5)] + [request(5)]
    came = [delivery(asked[0]), delivery(asked[1], at_ms=9_000)]
    refused = [
        rejection(asked[2], "expired", at_ms=6_001),
        rejection(asked[3], "expired", at_ms=4_000),
        rejection(asked[5], "expired", at_ms=6_001),
    ]
    found = yield History(asked, came, refused)
    assert found.by_class == {"delivered": "0", "expired-but-delivered": "1", "expired": "2", "missing": "3 4 5"}


@one_run()
def test_an_extreme_time_does_not_fail_the_audit() -> Judging:
    """Any sender may write the largest number there is."""
    last_ms = 2**63 - 1
    never = request(0, also=(("timer-expire-ms", b"%d" % last_ms),))
    far = [request(n, due_ms=last_ms, id=b"far") for n in (1, 2)]
    found = yield History([never, *far, cancel(b"far", 3)], [delivery(never)])
    assert found.by_class == {"delivered": "0", "replaced": "1", "cancelled": "2", "cancel-done": "3"}


@one_run(**TIGHT)
def test_late_depends_on_a_limit_and_counts_from_the_request() -> Judging:
    asked = [request(0), request(1), request(2, due_ms=0, at_ms=8_000)]
    came = [delivery(each, at_ms=at_ms) for each, at_ms in zip(asked, (5_010, 5_011, 8_010), strict=True)]
    found = yield History(asked, came)
    assert found.by_class == {"delivered": "0 2", "late": "1"}
