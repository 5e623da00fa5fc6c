"""Decisions on requests, and the records that leave, without a broker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from bridge.partition.copies import CopiesInFlight, copy_of
from bridge.partition.decide import NO_QUOTA, Quota, View, decide
from bridge.partition.ids import Intake, RecentlyDelivered
from bridge.partition.limits import TargetRateLimits
from bridge.partition.options import TurnOptions
from bridge.partition.recover import replay
from bridge.partition.request import requests_of
from bridge.ports import Record
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight, Decisions, JournalRecord
from schemas.progress import NOTHING_SETTLED, Key
from schemas.rules import Rules
from timer.format.body import Body, frame_size
from timer.format.unit import NO_ROWS, TIMER_ROW, Rows
from timer.schedule.release_policy import visit_ms

PARTITION = TimerPartition("timer.requests", 2)
RULES = Rules(max_delay_ms=10_000, roll_window_ms=600)
OPTIONS = TurnOptions(rules=RULES, max_message_bytes=2000, receipts="all")


def request(
    offset: int = 0, due_ms: int = 1500, *, timestamp_ms: int = 1000, extra: Headers = (), value: bytes | None = b"v"
) -> Record:
    headers = [("timer-topic", b"orders"), ("timer-deliver-ms", b"%d" % due_ms), *extra]
    return Record(offset, timestamp_ms, b"k", value, headers)


def named(offset: int, id_: bytes = b"x", due_ms: int = 1500, action: bytes = b"schedule") -> Record:
    return request(offset, due_ms, extra=[("timer-id", id_), ("timer-action", action)])


def cancel(offset: int, id_: bytes = b"x") -> Record:
    return Record(offset, 1000, None, None, [("timer-action", b"cancel"), ("timer-id", id_)])


@dataclass
class Stored:
    """A store with one pending timer of each id. `origins`: by id."""

    settled: Key = NOTHING_SETTLED
    origins: dict[bytes, int] = field(default_factory=dict)
    targets = 0

    def has_target(self, _target: str) -> bool:
        return False

    def must_wait(self, _target: str) -> bool:
        return False

    def is_unreleased(self, _target: str, place: tuple[int, int]) -> bool:
        return place > self.settled

    def bodies(self, rows: Rows) -> list[Body]:
        return [body._replace(origin_offset=int(row["origin"])) for row in rows for body in bodies(named(0))]

    def find(self, ids: list[bytes]) -> Mapping[bytes, Rows]:
        found = {}
        for id_ in ids:
            if id_ in self.origins:
                row = np.zeros(1, TIMER_ROW)
                row["origin"] = self.origins[id_]
                found[id_] = row
        return found

    def find_origin(self, origin: int) -> Rows:
        rows = [row for row in self.find(list(self.origins)).values() if row["origin"] == origin]
        return rows[0] if rows else NO_ROWS


def take(
    *records: Record,
    settled: Key = NOTHING_SETTLED,
    now_ms: int = 1000,
    stored: dict[bytes, int] | None = None,
    flights: Iterable[CopyInFlight] = (),
    ended: Iterable[int] = (),
    delivered: Iterable[bytes] = (),
    quota: Quota = NO_QUOTA,
    options: TurnOptions = OPTIONS,
) -> Intake:
    store, recently = Stored(settled, stored or {}), RecentlyDelivered()
    recently.add(delivered, now_ms)
    copies = CopiesInFlight(PARTITION, flights, ended)
    view = View(store, store, copies, recently, TargetRateLimits({}), options)
    return decide(view, requests_of(records, RULES), now_ms, quota)


def bodies(*records: Record) -> list[Body]:
    """Return the bodies of the requests: all are read as overdue."""
    return list(take(*records, settled=Key(9999, 9), now_ms=9999).overdue.values())


def outcomes(taken: Intake) -> list[tuple[str, int, int]]:
    return [(told.kind, told.request, told.origin_offset) for told in taken.decisions.receipts]


# -- keys


def test_the_key_of_a_request_overdue_when_sent_has_its_timestamp() -> None:
    assert take(request(0, 3, timestamp_ms=1000), now_ms=2000).batch.places() == [(1000, 0)]


def test_a_request_whose_key_has_passed_is_out_of_order_until_due_and_overdue_after_that() -> None:
    taken = take(request(6), request(4), request(7, 1499), settled=Key(1500, 5), now_ms=1499)
    assert taken.batch.places() == [(1500, 6), (1500, 4)]
    assert taken.decisions.held == [4]
    assert list(taken.overdue) == [7]


def test_accepted_receipts_are_made_if_the_settings_ask_for_them() -> None:
    asked = [request(0), named(1), Record(2, 1000, None, None, [])]
    for wanted in (True, False):
        taken = take(*asked, options=OPTIONS if wanted else TurnOptions(rules=RULES))
        assert outcomes(taken) == [("accepted", 0, 0), ("accepted", 1, 1)] * wanted + [("rejected", 2, 2)]


def test_a_request_whose_copy_would_not_fit_is_refused_only_if_it_would_be_rolled() -> None:
    taken = take(request(0, 5000, value=b"v" * 1800), request(1, 1500, value=b"v" * 1800))
    assert taken.batch.places() == [(1500, 1)]
    assert [(record.offset, refusal.code) for record, refusal in taken.decisions.refused] == [(0, "too-large")]


# -- ids


def test_a_cancel_ends_an_overdue_timer() -> None:
    taken = take(named(6), cancel(7), settled=Key(1500, 7), now_ms=1500)
    assert (taken.overdue, taken.decisions.ended) == ({}, [6])


def by_origin(offset: int, origin: bytes) -> Record:
    return Record(offset, 1000, None, None, [("timer-action", b"cancel"), ("timer-of", origin)])


def test_a_cancel_by_origin_ends_the_timer_of_that_request_alone() -> None:
    taken = take(by_origin(9, b"timer.requests/2/4"), stored={b"x": 4, b"y": 5})
    assert (taken.decisions.ended, taken.batch.ended()["origin"].tolist()) == ([4], [4])
    assert outcomes(taken) == [("cancelled", 9, 4)]
    assert outcomes(take(by_origin(9, b"timer.requests/2/6"), stored={b"x": 4})) == [("not-found", 9, -1)]


@pytest.mark.parametrize(
    "origin",
    [b"timer.requests/1/4", b"other/2/4", *(b"timer.requests/2/" + at for at in (b"04", b"-4", b"", b"9" * 19)), b"4"],
)
def test_a_request_by_origin_for_another_partition_is_refused(origin: bytes) -> None:
    taken = take(by_origin(9, origin), stored={b"x": 4})
    ((_, refusal),) = taken.decisions.refused
    assert (refusal.code, taken.decisions.ended) == ("bad-header", [])


@pytest.mark.parametrize("bad", [("timer-key", None), ("timer-partition", b"-1"), ("timer-delay-ms", b"5")])
def test_a_bad_request_with_a_pending_id_ends_no_timer(bad: tuple[str, bytes | None]) -> None:
    taken = take(request(5, extra=[("timer-id", b"x"), bad]), stored={b"x": 4})
    assert (taken.decisions.ended, len(taken.batch)) == ([], 0)


def test_a_request_too_large_to_roll_with_a_pending_id_ends_no_timer() -> None:
    taken = take(request(5, 5000, value=b"v" * 1800, extra=[("timer-id", b"x")]), stored={b"x": 4})
    assert (taken.decisions.ended, len(taken.batch)) == ([], 0)


# -- copies


def rolled(offset: int = 3, id_: bytes = b"x", due_ms: int = 5000) -> tuple[Record, CopyInFlight]:
    """Return a copy as it is read at offset 20, and its flight."""
    (body,) = bodies(named(offset, id_, due_ms))
    copy = copy_of(PARTITION, body, 1600)
    return Record(20, 1600, copy.key, copy.value, copy.headers), copy.flight


def test_a_received_copy_is_a_timer_under_its_old_origin() -> None:
    copy, flight = rolled()
    taken = take(copy, flights=[flight], now_ms=1600)
    assert taken.batch.places() == [(2200, 3)]
    assert (taken.decisions.landed, taken.decisions.refused) == ([(3, 1)], [])


@pytest.mark.parametrize("change", ["value", "due", "origin", "rolls", "target", "shard", "none"])
def test_a_forged_copy_is_refused(change: str) -> None:
    copy, flight = rolled()
    headers = dict(copy.headers)
    match change:
        case "value":
            copy = copy._replace(value=b"other")
        case "due":
            headers["timer-deliver-ms"] = b"5001"
        case "origin":
            headers["timer-origin"] = b"timer.requests/2/03"
        case "rolls":
            headers["timer-rolls"] = b"2"
        case "target":
            headers["timer-topic"] = b"other"
        case "shard":
            headers["timer-origin"] = b"timer.requests/1/3"
    copy = copy._replace(headers=list(headers.items()))
    taken = take(copy, flights=[] if change == "none" else [flight])
    assert [refusal.code for _, refusal in taken.decisions.refused] == ["not-ours"]
    assert len(taken.batch) == 0


def test_a_copy_is_received_once() -> None:
    copy, flight = rolled()
    taken = take(copy, copy._replace(offset=21), flights=[flight])
    assert len(taken.batch) == 1
    assert [record.offset for record, _ in taken.decisions.refused] == [21]


def test_a_replace_of_a_copy_in_flight_needs_no_quota() -> None:
    _, flight = rolled(3)
    taken = take(named(5), named(6, b"y"), flights=[flight], quota=Quota(timers=0))
    assert taken.decisions.ended == [3]
    assert [(record.offset, why.code) for record, why in taken.decisions.refused] == [(6, "quota-exceeded")]


@pytest.mark.parametrize("beyond", [0, 1])
def test_bodies_may_fill_the_quota_to_the_byte(beyond: int) -> None:
    (body,) = bodies(request(5))
    taken = take(request(5), quota=Quota(size_bytes=frame_size(body) - beyond))
    assert len(taken.decisions.refused) == beyond


def test_a_received_copy_is_ended_as_any_timer() -> None:
    copy, flight = rolled()
    taken = take(copy, cancel(21), flights=[flight], now_ms=1600)
    assert (taken.decisions.ended, taken.decisions.dropped, len(taken.batch)) == ([3], [], 0)


def test_a_received_copy_ends_no_timer_with_its_id() -> None:
    copy, flight = rolled()
    taken = take(named(19), copy, flights=[flight], now_ms=1600)
    assert taken.batch.places() == [(1500, 19)]
    assert (taken.decisions.ended, taken.decisions.dropped) == ([3], [20])


# -- replay


def test_a_replay_keeps_the_pending_requests_of_rule_and_journal() -> None:
    copy, flight = rolled(0)
    told = JournalRecord(
        from_offset=0,
        next_offset=9,
        rules=RULES,
        refused=(4,),
        ended=(5,),
        rolled=(flight,),
        landed=((0, 1),),
        held=(1,),
    )
    records = [request(n, 1500 + n) for n in range(7)] + [cancel(7), copy._replace(offset=8)]
    batch = replay(records, Stored(Key(1502, 2)).is_unreleased, lambda _: (RULES, 9), Decisions([told]), lambda _: 0)
    assert batch.places() == [(1501, 1), (1503, 3), (1506, 6), (2200, 0)]


def test_a_replay_reads_each_request_by_the_rules_of_its_range() -> None:
    later = Rules(max_delay_ms=10_000, roll_window_ms=1200)
    records = [request(0, 3000), request(1, 3000), request(2, 3000), request(3, 3000)]
    told = Decisions([JournalRecord(from_offset=0, next_offset=4, rules=RULES)])
    batch = replay(records, Stored().is_unreleased, lambda at: (RULES, 2) if at < 2 else (later, 4), told, lambda _: 0)
    visits = [visit_ms(3000, 1000, rules.roll_window_ms) for rules in (RULES, later)]
    assert [visit for visit, _ in batch.places()] == [visits[0], visits[0], visits[1], visits[1]]
    assert visits[0] != visits[1]
