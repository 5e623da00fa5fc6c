"""Which parked records are sent again, in which order and form. bridge.partition.draft makes the records."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.errors import BridgeError
from bridge.partition.copies import copy_of
from bridge.partition.draft import bare, park, refuse
from bridge.partition.request import body_of
from bridge.ports import Outgoing, Record
from bridge.redrive import sender
from bridge.redrive.rules import (
    Parked,
    PlanRow,
    RedriveFilter,
    RedrivePlan,
    in_send_order,
    marker_of,
    parked,
    request_of,
)
from bridge.redrive.sender import RedriveResult
from kafka_timer.headers import NOT_OURS, Claim, Headers, Refusal, Schedule, parse
from kafka_timer.origin import TimerPartition
from schemas.profiles import read
from schemas.rules import Rules

RULES = Rules(max_delay_ms=10_000, roll_window_ms=1_000, profiles=("native", "rocketmq"))
TIMERS = TimerPartition("timer.requests", 2)
PLACE = TimerPartition("timer.rejected", 0)
ALL = RedriveFilter(timer_topics=frozenset({"timer.requests"}))
ASKED: Headers = [("trace", b"1"), ("timer-topic", b"orders"), ("timer-delay-ms", b"5"), ("timer-id", b"a")]
UNKNOWN = Refusal("unknown-topic", "")


def request(headers: Headers = ASKED) -> Record:
    return Record(7, 1_000, b"key", b"value", headers)


def rejected(outgoing: Outgoing, offset: int = 3, at_ms: int = 2_000) -> Record:
    return Record(offset, at_ms, outgoing.key, outgoing.value, outgoing.headers)


def undelivered() -> Record:
    """A timer that its target did not accept."""
    schedule = parse(ASKED, 1_000, RULES)
    assert isinstance(schedule, Schedule)
    return rejected(park(PLACE.topic, TIMERS, body_of(request(), schedule, 7, 0), UNKNOWN, 2_000))


def refused(code: str, headers: Headers = ASKED, offset: int = 3) -> Record:
    return rejected(refuse(PLACE.topic, TIMERS, request(headers), Refusal(code, "why"), 2_000), offset)


def seen(record: Record, place: TimerPartition = PLACE) -> Parked:
    found = parked(place, record, {TIMERS.topic: RULES})
    assert found is not None
    return found


def look(*records: Record, selection: RedriveFilter = ALL, markers: tuple[bytes, ...] = ()) -> RedrivePlan:
    found = RedrivePlan(selection, markers)
    for record in records:
        found.add(parked(PLACE, record, {TIMERS.topic: RULES}))
    found.limit_to(None)
    return found


def test_a_parked_record_is_parsed() -> None:
    record = undelivered()
    assert seen(record) == Parked(PLACE, 3, 2_000, "unknown-topic", TIMERS, 7, "orders", b"a", seen(record).size)
    assert (record.key, record.value, request_of(record, "unknown-topic")[1]) == (b"key", b"value", ASKED)


def test_a_rolled_copy_with_profile_headers_and_no_key_is_sent_again() -> None:
    """The copy has a null `timer-key`, which a request may not have."""
    rules = Rules(max_delay_ms=10_000, roll_window_ms=1_000, profiles=("native", "etf1"))
    spelled = [("scheduler-epoch", b"6"), ("scheduler-target-topic", b"orders")]
    record = Record(7, 1_000, b"pay-7", b"value", spelled)
    schedule = read(record.headers, 1_000, rules, record.key, record.value)
    assert isinstance(schedule, Schedule)
    copy = copy_of(TIMERS, body_of(record, schedule, 7, 0), 1_500)
    claim = read(copy.headers, 1_500, rules, copy.key, copy.value)
    assert isinstance(claim, Claim)
    landed = Record(90, 1_500, copy.key, copy.value, copy.headers)
    parked_ = rejected(park(PLACE.topic, TIMERS, body_of(landed, claim.schedule, 7, 1), UNKNOWN, 2_000))
    key, headers = request_of(parked_, UNKNOWN.code)
    again = read(headers, 9_000, rules, key, parked_.value)
    assert isinstance(again, Schedule)
    assert (again.target, again.id, key) == ("orders", b"pay-7", None)
    assert seen(parked_).id == b"pay-7"


def test_a_copy_that_no_journal_knew_is_sent_as_a_request() -> None:
    """A copy would be refused again, and it is all that is left of a timer that rolled before progress was adopted."""
    headers = [*ASKED, ("timer-origin", b"timer.requests/2/1"), ("timer-rolls", b"1")]
    assert request_of(refused(NOT_OURS.code, headers), NOT_OURS.code)[1] == ASKED
    assert request_of(refused("bad-header", headers), "bad-header")[1] == headers


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        (ASKED, "orders"),
        ([("REAL_TOPIC", b"bills"), ("TIMER_DELAY_SEC", b"1")], "bills"),
        ([("timer-topic", b"orders"), ("timer-delay-ms", b"x")], "orders"),
        ([("timer-delay-ms", b"1")], ""),
    ],
)
def test_the_target_topic_is_found_in_any_spelling(headers: Headers, target: str) -> None:
    assert seen(refused("bad-header", headers)).target == target


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("timer-error", b"x"), ("timer-origin", b"a/0/1")],
        [("timer-error", b"x"), ("timer-error-detail", b""), ("timer-origin", b"a/0/-1")],
        [("timer-error", b"x"), ("timer-error-detail", b""), ("timer-origin", None)],
        [("timer-error", b""), ("timer-error-detail", b""), ("timer-origin", b"a/0/1")],
        [("timer-error", b"x"), ("timer-error-detail", b""), ("timer-origin", b"a/0/1"), ("more", b"")],
    ],
)
def test_a_foreign_record_is_counted_and_not_sent(headers: Headers) -> None:
    found = look(Record(0, 0, None, None, headers))
    assert (found.foreign, found.rows(), found.selected) == (1, [], [])


def test_a_senders_mistake_is_selected_only_by_its_code() -> None:
    records = (undelivered(), refused("bad-header", offset=4))
    rows = [PlanRow("bad-header", "orders", 1, 0, 0), PlanRow("unknown-topic", "orders", 1, 0, 1)]
    assert look(*records).rows() == rows
    chosen = RedriveFilter(ALL.timer_topics, codes=frozenset({"bad-header"}))
    assert [each.code for each in look(*records, selection=chosen).selected] == ["bad-header"]
    chosen = RedriveFilter(ALL.timer_topics, places=frozenset({(PLACE, 4)}))
    assert [each.code for each in look(*records, selection=chosen).selected] == ["bad-header"], "or by its place"


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (RedriveFilter(ALL.timer_topics, targets=frozenset({"orders"})), 1),
        (RedriveFilter(ALL.timer_topics, targets=frozenset({"bills"})), 0),
        (RedriveFilter(ALL.timer_topics, origins=frozenset({"timer.requests/2/7"})), 1),
        (RedriveFilter(ALL.timer_topics, origins=frozenset({"timer.requests/2/8"})), 0),
        (RedriveFilter(ALL.timer_topics, from_ms=2_000, to_ms=2_001), 1),
        (RedriveFilter(ALL.timer_topics, from_ms=2_001), 0),
        (RedriveFilter(ALL.timer_topics, to_ms=2_000), 0),
        (RedriveFilter(ALL.timer_topics, places=frozenset()), 0),
        (RedriveFilter(frozenset({"others"}), places=frozenset({(PLACE, 3)})), 0),
    ],
)
def test_filters(selection: RedriveFilter, taken: int) -> None:
    assert len(look(undelivered(), selection=selection).selected) == taken


def test_records_without_contents_or_of_another_timer_topic_are_counted_and_not_sent() -> None:
    """A writer to the rejected topic must not be able to send to any topic."""
    found = look(rejected(bare(refuse(PLACE.topic, TIMERS, request(), UNKNOWN, 2_000))))
    assert ([each.origin_text for each in found.bare], found.selected) == (["timer.requests/2/7"], [])
    found = look(undelivered(), selection=RedriveFilter(frozenset({"others"})))
    assert (found.other_topics, found.selected) == ({"timer.requests": 1}, [])


def test_a_marked_record_is_not_sent_again_unless_the_topic_was_recreated() -> None:
    record = undelivered()
    marker = marker_of(seen(record))
    assert look(record, markers=(marker,)).rows() == [PlanRow("unknown-topic", "orders", 1, 1, 0)]
    assert len(look(record._replace(timestamp_ms=5_000), markers=(marker,)).selected) == 1


def one(origin: int, at_ms: int, id_: bytes | None = None, partition: TimerPartition = TIMERS) -> Parked:
    return Parked(PLACE, origin, at_ms, "unknown-topic", partition, origin, "orders", id_, 10)


def test_requests_of_an_id_in_one_partition_keep_their_order_whatever_the_clocks_were() -> None:
    first, last, other = one(1, 500, b"a"), one(2, 100, b"a"), one(3, 200, b"b")
    elsewhere = one(2, 90, b"a", TimerPartition(TIMERS.topic, 0))
    assert in_send_order([last, first, other, elsewhere]) == [elsewhere, other, first, last]
    found = RedrivePlan(ALL, ())
    for record in (last, first, other, elsewhere):
        found.add(record)
    found.limit_to(2)
    assert found.selected == [elsewhere, other], "a limit takes the first that leave"
    assert found.rows() == [PlanRow("unknown-topic", "orders", 4, 0, 2)]


def redrive(monkeypatch: pytest.MonkeyPatch, outcome: RedriveResult | BridgeError, *more: str) -> tuple[int, str, str]:
    """Return the exit code, 1 after an exception, and the output. There are records to send, and others."""

    def look(selection: RedriveFilter) -> RedrivePlan:
        found, one = RedrivePlan(selection, ()), seen(undelivered())
        without_contents = seen(rejected(bare(refuse(PLACE.topic, TIMERS, request(), UNKNOWN, 2_000))))
        for record in (one, without_contents, None, one._replace(partition=TimerPartition("timer.other", 0))):
            found.add(record)
        return found

    def apply(selected: list[Parked], note: Callable[[list[Parked]], None]) -> RedriveResult:
        if isinstance(outcome, BridgeError):
            note(selected)
            raise outcome
        return outcome

    work = SimpleNamespace(begin=lambda: None, look=look, apply=apply, close=lambda: None)
    monkeypatch.setattr(sender, "ConfluentRedrive", lambda _: work)
    asked = ["redrive", "--bootstrap-servers", "127.0.0.1:1", "--timer-topic", TIMERS.topic, *more]
    ended = CliRunner().invoke(app, asked)
    error = "" if isinstance(ended.exception, SystemExit | None) else str(ended.exception)
    return ended.exit_code, ended.stdout, ended.stderr + error


def test_records_that_are_not_sent_are_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    code, told, beside = redrive(monkeypatch, RedriveResult())
    assert (code, "1 would be sent: give --apply to send them" in told) == (0, True)
    assert "1 more are of timer.other: give --timer-topic timer.other, if that is a timer topic of yours" in beside
    assert "1 cannot be sent from there: they were too large for timer.rejected" in beside
    assert "the first is timer.requests/2/7" in beside
    assert "1 records on timer.rejected were not written by a bridge" in beside


@pytest.mark.parametrize("main", [None, "timer.requests", "timer.other"])
def test_the_hint_about_another_timer_topic_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main: str | None
) -> None:
    if main is not None:
        monkeypatch.setenv("TIMER_BRIDGE_TIMER_TOPIC", main)
    config = tmp_path / "bridge.toml"
    config.write_text('[topics."timer.other"]')
    one, other = "timer.requests", "timer.other"
    for asked, left in ((one, other), (other, one)):
        code, told, beside = redrive(monkeypatch, RedriveResult(), "--config", str(config), "--timer-topic", asked)
        assert (code, "1 would be sent" in told) == (0, True), beside
        assert f"more are of {left}: give --timer-topic {left}\n" in beside


def test_missing_and_refused_records_and_wrong_times_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    code, told, beside = redrive(monkeypatch, RedriveResult(count=1, gone=2), "--apply")
    assert (code, "1 sent" in told, "2 were gone by then: retention deleted them" in beside) == (0, True, True)
    code, _, beside = redrive(monkeypatch, RedriveResult(refused=[(seen(undelivered()), "too-large")]), "--apply")
    assert (code, "1 were not sent, as timer.requests does not take them (too-large)" in beside) == (1, True)
    code, _, beside = redrive(monkeypatch, RedriveResult(), "--from", "yesterday")
    assert (code, "--from: 'yesterday' is no instant" in beside) == (1, True)
    code, _, beside = redrive(monkeypatch, BridgeError("no broker answers"), "--apply")
    assert (code, "1 of 1 sent before the error" in beside, "no broker answers" in beside) == (1, True, True)
