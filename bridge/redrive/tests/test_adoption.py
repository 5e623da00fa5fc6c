"""What an adoption and a redrive read of which topics, and when they refuse, by fakes of Kafka."""

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.config.settings import load
from bridge.errors import BridgeError, SettingsError
from bridge.ports import Record
from bridge.redrive.adoption import ConfluentAdoption, Mirror
from bridge.redrive.rules import PlanRow, RedriveFilter
from bridge.redrive.sender import ConfluentRedrive
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition

TIMERS, FROM_MS = "timer.requests", 1_000_000_000_000
MIRROR = Mirror(f"primary.{TIMERS}", "primary.", TIMERS, FROM_MS)
BAD_HEADER: Headers = [("timer-error", b"bad-header"), ("timer-error-detail", b"")]


class SecondCluster:
    """Topics of one partition, with their records; topics and history of a ConfluentAdoption."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Record]] = {TIMERS: [], MIRROR.topic: []}
        self.timestamps = "CreateTime"
        self.read: list[tuple[int, int]] = []
        """The ranges that were read."""

    def add(self, topic: str, value: bytes, *headers: tuple[str, bytes | None], at_ms: int = FROM_MS) -> None:
        log = self.topics.setdefault(topic, [])
        log.append(Record(self.bounds(TimerPartition(topic, 0))[1], at_ms, b"k", value, list(headers)))

    def partitions(self, topic: str) -> int | None:
        return 1 if topic in self.topics else None

    def config(self, topic: str) -> dict[str, str]:
        return {"message.timestamp.type": self.timestamps if topic == MIRROR.topic else "LogAppendTime"}

    def bounds(self, place: TimerPartition) -> tuple[int, int]:
        log = self.topics[place.topic]
        return (log[0].offset, log[-1].offset + 1) if log else (0, 0)

    def offset_at(self, place: TimerPartition, timestamp_ms: int) -> int:
        records = self.topics[place.topic]
        return next((each.offset for each in records if each.timestamp_ms >= timestamp_ms), self.bounds(place)[1])

    def requests(self, place: TimerPartition, first: int, end: int) -> Iterator[list[Record]]:
        self.read.append((first, end))
        yield [record for record in self.topics[place.topic] if first <= record.offset < end]

    def adoption(self) -> ConfluentAdoption:
        made: Any = ConfluentAdoption(load({"bootstrap_servers": "127.0.0.1:1", "max_delay": "10000d"}, {}, None))
        made._topics = made._history = self
        return made  # type: ignore[no-any-return]


def schedule(target: bytes = b"orders", due_ms: int = FROM_MS) -> Headers:
    return [("timer-topic", target), ("timer-deliver-ms", b"%d" % due_ms)]


def delivery(offset: int, due_ms: int = FROM_MS) -> Headers:
    return [("timer-origin", b"timer.requests/0/%d" % offset), ("timer-deliver-ms", b"%d" % due_ms)]


def test_timers_are_counted_by_outcome_and_target() -> None:
    cluster = SecondCluster()
    for value in (b"1", b"2"):
        cluster.add(MIRROR.topic, value, *schedule())
    cluster.add(MIRROR.topic, b"before", *schedule(due_ms=FROM_MS - 1))
    cluster.add(MIRROR.topic, b"3", *schedule(b"bills"))
    cluster.add(MIRROR.topic, b"", ("timer-action", b"cancel"), ("timer-of", b"timer.requests/0/9"))
    cluster.add("primary.orders", b"2", *delivery(99), at_ms=FROM_MS - 50)
    cluster.add("orders", b"1", *delivery(1))
    plan = cluster.adoption().look_at(MIRROR)
    assert plan.rows() == [
        PlanRow("delivered", "orders", 1, 0, 0),
        PlanRow("pending", "bills", 1, 0, 1),
        PlanRow("pending", "orders", 1, 0, 1),
    ]
    assert plan.notes == [
        "primary.bills does not exist: timers for bills are sent also if they have left",
        "1 cancels or moves name a timer by its position in the lost cluster, which the mirror does not keep, so they"
        " count for nothing; the first is for timer.requests/0/9",
    ]


def test_topics_that_do_not_fit_are_refused() -> None:
    cluster = SecondCluster()
    cluster.timestamps = "LogAppendTime"
    with pytest.raises(BridgeError, match=r"timestamp.type is LogAppendTime, which loses times: mirror it again"):
        cluster.adoption().look_at(MIRROR)
    del cluster.topics[TIMERS]
    with pytest.raises(BridgeError, match=r"has 1 partitions, timer.requests none: start `timer-bridge run`"):
        cluster.adoption().look_at(MIRROR)


def test_a_target_whose_deliveries_retention_has_taken_is_refused() -> None:
    cluster = SecondCluster()
    cluster.add(MIRROR.topic, b"1", *schedule())
    cluster.topics["primary.orders"] = [Record(5, FROM_MS - 59_000, None, None, [])]
    with pytest.raises(BridgeError, match=r"primary.orders/0 lacks deliveries since --due-from by retention"):
        cluster.adoption().look_at(MIRROR)
    cluster.topics["primary.orders"].insert(0, Record(4, FROM_MS - 61_000, None, None, []))
    assert [row.code for row in cluster.adoption().look_at(MIRROR).rows()] == ["pending"]


def test_a_record_that_has_another_one_in_its_place_is_not_sent() -> None:
    cluster = SecondCluster()
    cluster.add(MIRROR.topic, b"1", *schedule())
    adoption: Any = cluster.adoption()
    plan = adoption.look_at(MIRROR)
    plan.limit_to(None)
    ((parked, request),) = adoption._requests(plan.selected).items()
    assert (parked.target, request.partition, request.headers) == ("orders", 0, schedule())
    cluster.topics[MIRROR.topic].clear()
    cluster.add(MIRROR.topic, b"1", *schedule(), at_ms=FROM_MS + 1)
    assert adoption._requests(plan.selected) == {}


def test_chosen_records_are_read_from_the_first_to_the_last_that_is_there() -> None:
    cluster = SecondCluster()
    cluster.topics["timer.rejected"] = [
        Record(at, 1, None, b"", [*BAD_HEADER, ("timer-origin", f"{TIMERS}/0/{at}".encode())]) for at in range(10, 20)
    ]
    redrive: Any = ConfluentRedrive(load({"bootstrap_servers": "127.0.0.1:1"}, {}, None))
    redrive._topics = redrive._history = cluster
    redrive._require_partitions = lambda records: None
    chosen = {(TimerPartition("timer.rejected", 0), at) for at in (3, 12, 15, 99)}
    found = redrive.look(RedriveFilter(frozenset({TIMERS}), places=frozenset(chosen)))
    assert [each.origin_text for each in found.selected] == [f"{TIMERS}/0/12", f"{TIMERS}/0/15"]
    assert [(first, end) for first, end in cluster.read if first < end] == [(12, 16)]


def test_the_timer_topic_is_no_mirror_of_itself() -> None:
    for arguments in ([TIMERS, "--prefix", ""], [f"x.{TIMERS}", "--prefix", "y."]):
        ended = CliRunner().invoke(app, ["adopt", *arguments, "--due-from", "0", "--bootstrap-servers", "127.0.0.1:1"])
        assert isinstance(ended.exception, SettingsError)
        assert "name a mirror that begins with --prefix" in str(ended.exception)
