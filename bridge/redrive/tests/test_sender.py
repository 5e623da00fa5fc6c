"""Reads of a redrive, by a fake log."""

from collections.abc import Iterator
from typing import Any

from bridge.config.settings import Settings
from bridge.ports import Record
from bridge.redrive.rules import RedriveFilter
from bridge.redrive.sender import ConfluentRedrive
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition

TIMERS = "timer.requests"


class Log:
    """Two partitions of rejected records; `read`: the ranges that were read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int, int]] = []

    def partitions(self, topic: str) -> int | None:
        return 2 if topic == "timer.rejected" else None

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        return 10, 20

    def requests(self, partition: TimerPartition, first: int, end: int) -> Iterator[list[Record]]:
        self.read.append((partition.partition, first, end))
        reason: Headers = [("timer-error", b"bad-header"), ("timer-error-detail", b"")]
        yield [
            Record(at, 1, None, b"", [*reason, ("timer-origin", f"{TIMERS}/{partition.partition}/{at}".encode())])
            for at in range(first, end)
        ]


def test_chosen_records_are_read_from_the_first_to_the_last_that_is_there() -> None:
    redrive: Any = ConfluentRedrive(Settings(bootstrap_servers="127.0.0.1:1"))
    redrive._topics = redrive._history = log = Log()
    redrive._require_partitions = lambda records: None
    chosen = {(TimerPartition("timer.rejected", 0), at) for at in (3, 12, 15, 99)}
    found = redrive.look(RedriveFilter(frozenset({TIMERS}), places=frozenset(chosen)))
    assert [each.origin_text for each in found.selected] == [f"{TIMERS}/0/12", f"{TIMERS}/0/15"]
    assert [(first, end) for _, first, end in log.read if first < end] == [(12, 16)]
