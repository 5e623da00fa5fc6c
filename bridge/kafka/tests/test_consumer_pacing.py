"""The pace of turns and of reads: a minimum interval, and no wait after a pause."""

import time
from typing import Any

import pytest

from bridge.config.kafka_config import Connection
from bridge.kafka.consumer import ConfluentSource, PollPacer
from bridge.kafka.retry import Retrier
from bridge.ports import Polled
from schemas.origin import Shard


class Timekeeper:
    """A clock that a sleep or the test moves. Eighths of a second, so that sums are exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def test_the_first_turn_and_one_after_a_pause_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, pace = Timekeeper(monkeypatch), PollPacer(0.25)
    pace.wait()
    assert keeper.now_s == 1000.0
    keeper.pass_time(0.25)
    pace.wait()
    assert keeper.now_s == 1000.25


def test_a_turn_that_comes_too_soon_waits_for_the_rest_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, pace = Timekeeper(monkeypatch), PollPacer(0.25)
    pace.wait()
    keeper.pass_time(0.125)
    pace.wait()
    assert keeper.now_s == 1000.25
    pace.wait()
    assert keeper.now_s == 1000.5


class Fetched:
    """A record that the client has fetched."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "timer.requests"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000

    def key(self) -> None: ...

    def value(self) -> None: ...

    def headers(self) -> None: ...


class Fetcher:
    """A consumer with `left` records to come. Time passes while it has none."""

    def __init__(self, keeper: Timekeeper, left: int, group_metadata: object) -> None:
        self._keeper = keeper
        self._all = self.left = left
        self._group_metadata = group_metadata
        self.waits_s: list[float] = []

    def add(self, count: int) -> None:
        self.left += count
        self._all += count

    def poll(self, timeout_s: float) -> Fetched | None:
        if self.left == 0:
            self.waits_s.append(timeout_s)
            if timeout_s > 0:
                self._keeper.pass_time(timeout_s)
            return None
        return self.consume(1, 0)[0]

    def consume(self, count: int, timeout_s: float) -> list[Fetched]:
        del timeout_s
        count = min(count, self.left)
        first, self.left = self._all - self.left, self.left - count
        return [Fetched(offset) for offset in range(first, first + count)]

    def consumer_group_metadata(self) -> object:
        return self._group_metadata

    def incremental_assign(self, places: object) -> None: ...

    def resume(self, places: object) -> None: ...


def reading(keeper: Timekeeper, left: int) -> tuple[Any, Fetcher]:
    """Return a source with a read interval of 0.25 s, at offset 0 of its partition."""
    source: Any = ConfluentSource(Connection("127.0.0.1:1"), ["timer.requests"], Retrier(), read_interval_s=0.25)
    real = source._consumer
    source._consumer = fetcher = Fetcher(keeper, left, real.consumer_group_metadata())
    real.close()
    shard = Shard("timer.requests", 0)
    source._owned.add(shard)
    source.start(shard, 0)
    return source, fetcher


def offsets(polled: Polled) -> list[int]:
    return [record.offset for records in polled.records.values() for record in records]


def test_while_timers_leave_records_wait_to_be_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Timekeeper(monkeypatch)
    source, fetcher = reading(keeper, 1)
    assert offsets(source.poll(0, 10)) == [0]
    fetcher.add(3)
    due = source.poll(125, 10)  # a timer is due in an eighth of a second
    assert (offsets(due), due.has_read) == ([], False)
    read = source.poll(125, 10)
    assert (offsets(read), read.has_read) == ([1, 2, 3], True)


def test_a_poll_that_may_wait_reads_when_the_interval_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Timekeeper(monkeypatch)
    source, fetcher = reading(keeper, 1)
    assert offsets(source.poll(0, 10)) == [0]
    fetcher.add(1)
    assert offsets(source.poll(500, 10)) == [1]
    assert keeper.now_s == 1000.25


def test_more_records_than_a_turn_takes_are_read_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = reading(Timekeeper(monkeypatch), 25)
    assert [len(offsets(source.poll(0, 10))) for _ in range(3)] == [10, 10, 5]
    assert not source.poll(0, 10).has_read


def test_an_idle_consumer_wakes_up_less_often_until_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Timekeeper(monkeypatch)
    source, fetcher = reading(keeper, 0)
    source.poll(3000, 10)
    assert (fetcher.waits_s[0], max(fetcher.waits_s)) == (0.02, 0.1)
    before_s = keeper.now_s
    source.wake()
    source.poll(3000, 10)
    assert keeper.now_s - before_s < 0.25 + 0.101  # the read interval, and one wait
    fetcher.waits_s.clear()
    source.poll(500, 10)
    assert fetcher.waits_s[0] == 0.02
