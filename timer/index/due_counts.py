"""Pending timers by target topic and due time. Exact after a restart, as all are counted again.

    topic -> day -> 24 hours: counts          topic -> its first and its last due time, if they are known

The first (last) due time of a topic is unknown after its timer has left. The counts then give the hour, and `search`
reads the ticks of the hour, or the log if some timers of the hour roll first.

Counted by the topic's hash, which every unit has; the name is read from a body once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kafka_timer.headers import MAX_INT64
from timer.errors import CorruptStoreError
from timer.format.checkpoint import UNITS
from timer.format.unit import Ints, Rows, stable_argsort, topic_hash, unique_counts

HOUR_MS = 3_600_000
_HOURS = 24
_MAX_EMPTY_TOPICS = 1000
"""Empty topics are kept up to this number plus that of the others, as reading a name again costs a log read."""


TopicState: TypeAlias = tuple[int, str, int | None, int | None]
"""Hash, name, first and last due time if known."""


_Bound: TypeAlias = tuple[int, bool]
"""Hash of a topic, and True for its last due time, False for the first."""


class DueRange(NamedTuple):
    """Number of pending timers of one topic, and their first and last due time, epoch ms."""

    pending: int
    first_ms: int
    last_ms: int


def joined_ranges(parts: Iterable[Mapping[str, DueRange]]) -> dict[str, DueRange]:
    found: dict[str, DueRange] = {}
    for part in parts:
        for topic, (pending, first_ms, last_ms) in part.items():
            other = found.get(topic, DueRange(0, first_ms, last_ms))
            found[topic] = DueRange(pending + other.pending, min(first_ms, other.first_ms), max(last_ms, other.last_ms))
    return found


def joined_hours(parts: Iterable[Mapping[str, Mapping[int, int]]]) -> dict[str, Counter[int]]:
    """Return the counts of all `parts`, by topic: start of the hour (epoch ms) to number of timers."""
    found: dict[str, Counter[int]] = {}
    for part in parts:
        for topic, hours in part.items():
            found.setdefault(topic, Counter()).update(hours)
    return found


class _Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.pending = 0
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self._days: dict[int, NDArray[np.int32]] = {}

    def count(self, hour: int, change: int) -> None:
        day, within = divmod(hour, _HOURS)
        if day not in self._days:
            self._days[day] = np.zeros(_HOURS, np.int32)
        self._days[day][within] += change
        self.pending += change
        if change < 0 and not self._days[day].any():
            del self._days[day]

    def hours(self) -> Iterator[tuple[int, int]]:
        """Yield (hour, count), ascending, without empty hours."""
        for day in sorted(self._days):
            counts = self._days[day]
            for within in np.flatnonzero(counts).tolist():
                yield day * _HOURS + within, int(counts[within])

    def due_by(self, hour: int) -> int:
        last, within = divmod(hour, _HOURS)
        before = sum(int(counts.sum()) for day, counts in self._days.items() if day < last)
        return before + (int(self._days[last][: within + 1].sum()) if last in self._days else 0)

    def bound_hour(self, *, is_last: bool) -> int:
        """Return the first or the last hour with timers."""
        day = max(self._days) if is_last else min(self._days)
        return day * _HOURS + int(self._days[day].nonzero()[0][-1 if is_last else 0])


class DueCounts:
    """target_of: returns the topic name of a row."""

    def __init__(self, target_of: Callable[[Rows], str]) -> None:
        self._target_of = target_of
        self._topics: dict[int, _Topic] = {}
        self._rolled_hours: Counter[int] = Counter()
        self.targets = 0
        """Number of topics with pending timers."""

    def add(self, run: Rows) -> None:
        for hash_, at, first_ms, last_ms, dues in _by_topic(run):
            topic = self._topics.get(hash_)
            if topic is None:
                self._drop_empty_topics()
                topic = self._topics[hash_] = _Topic(self._target_of(run[at : at + 1]))
            if topic.pending == 0:
                self.targets += 1
                topic.first_ms, topic.last_ms = first_ms, last_ms
            else:
                topic.first_ms = None if topic.first_ms is None else min(topic.first_ms, first_ms)
                topic.last_ms = None if topic.last_ms is None else max(topic.last_ms, last_ms)
            for hour, count in _by_hour(dues, first_ms, last_ms):
                topic.count(hour, count)
        if rolled := _hours_of_rolled(run):
            self._rolled_hours.update(rolled)

    def remove(self, run: Rows) -> None:
        for hash_, _, first_ms, last_ms, dues in _by_topic(run):
            topic = self._topic(hash_)
            for hour, count in _by_hour(dues, first_ms, last_ms):
                topic.count(hour, -count)
            self.targets -= topic.pending == 0
            if topic.first_ms is not None and first_ms <= topic.first_ms:
                topic.first_ms = None
            if topic.last_ms is not None and last_ms >= topic.last_ms:
                topic.last_ms = None
        if rolled := _hours_of_rolled(run):
            self._rolled_hours.subtract(rolled)

    def _drop_empty_topics(self) -> None:
        """Bound the number of empty topics: senders choose the names."""
        if len(self._topics) > 2 * self.targets + _MAX_EMPTY_TOPICS:
            self._topics = {hash_: topic for hash_, topic in self._topics.items() if topic.pending}

    def state(self) -> tuple[list[TopicState], Ints, Ints]:
        """Return topics, rows of (hash, hour, count), and rows of (hour, count) of timers that roll first."""
        topics = [(hash_, t.name, t.first_ms, t.last_ms) for hash_, t in self._topics.items() if t.pending]
        hours = [(hash_, *hour) for hash_, t in self._topics.items() for hour in t.hours()]
        elsewhere = [(hour, count) for hour, count in self._rolled_hours.items() if count]
        return topics, np.array(hours, np.int64).reshape(-1, 3), np.array(elsewhere, np.int64).reshape(-1, 2)

    def restore(self, topics: list[TopicState], hours: Ints, elsewhere: Ints) -> None:
        for hash_, name, first_ms, last_ms in topics:
            topic = self._topics[hash_] = _Topic(name)
            topic.first_ms, topic.last_ms = first_ms, last_ms
        for hash_, hour, count in hours.tolist():
            self._topics[hash_].count(hour, count)
        self.targets = len(topics)
        self._rolled_hours.update(dict(elsewhere.tolist()))

    def name(self, hash_: int) -> str:
        """Return the name of a topic that was counted. Raises CorruptStoreError if it was not."""
        return self._topic(hash_).name

    def _topic(self, hash_: int) -> _Topic:
        topic = self._topics.get(hash_)
        if topic is None:
            raise CorruptStoreError(UNITS, f"a unit of the topic with hash {hash_}, which has no counted timer")
        return topic

    def has(self, topic: str) -> bool:
        found = self._topics.get(topic_hash(topic))
        return found is not None and found.pending > 0

    def due_by(self, hash_: int, hour: int) -> int:
        """Return the number of timers of a topic due by the end of `hour` (since the epoch)."""
        topic = self._topics.get(hash_)
        return 0 if topic is None else topic.due_by(hour)

    def counts(self) -> dict[str, int]:
        return {topic.name: topic.pending for topic in self._topics.values() if topic.pending}

    def hours(self) -> dict[str, dict[int, int]]:
        """Return, by topic, the start of each hour (epoch ms) and the number of timers due in it."""
        pending = (topic for topic in self._topics.values() if topic.pending)
        return {topic.name: {hour * HOUR_MS: count for hour, count in topic.hours()} for topic in pending}

    def ranges(self) -> dict[str, DueRange]:
        """Return the due range by topic. An unknown first or last time is that of its hour."""
        found = {}
        for topic in self._topics.values():
            if topic.pending:
                first_ms, last_ms = topic.first_ms, topic.last_ms
                first_ms = topic.bound_hour(is_last=False) * HOUR_MS if first_ms is None else first_ms
                last_ms = (topic.bound_hour(is_last=True) + 1) * HOUR_MS - 1 if last_ms is None else last_ms
                found[topic.name] = DueRange(topic.pending, first_ms, last_ms)
        return found

    def search(
        self,
        rows_of_hour: Callable[[int], Iterator[Rows]],
        all_rows: Callable[[], Iterator[Rows]],
        is_over: Callable[[], bool],
        *,
        needs_last: bool,
    ) -> None:
        """Find unknown first and last due times in the pending rows, until `is_over()` returns True.

        rows_of_hour: yields rows out of order, then the rows of each tick of the hour (since the epoch), ascending.
        """
        bounds: dict[int, set[_Bound]] = {}
        for hash_, topic in self._topics.items():
            if topic.pending and topic.first_ms is None:
                bounds.setdefault(topic.bound_hour(is_last=False), set()).add((hash_, False))
            if topic.pending and topic.last_ms is None and needs_last:
                bounds.setdefault(topic.bound_hour(is_last=True), set()).add((hash_, True))
        for hour in sorted(bounds):
            if is_over():
                break
            is_in_order = not self._rolled_hours[hour]  # else some timers due in the hour wake up earlier
            runs = rows_of_hour(hour) if is_in_order else all_rows()
            self._search_hour(hour, bounds[hour], runs, is_over, is_in_order=is_in_order)

    def _search_hour(
        self, hour: int, bounds: set[_Bound], runs: Iterator[Rows], is_over: Callable[[], bool], *, is_in_order: bool
    ) -> None:
        found: dict[_Bound, int] = {}
        for number, run in enumerate(runs):
            if is_over():
                return
            for hash_, _, first_ms, last_ms, _ in _by_topic(run[run["due_ms"] // HOUR_MS == hour]):
                first, last = (hash_, False), (hash_, True)
                if last in bounds:  # sure only after all runs
                    found[last] = max(found.get(last, 0), last_ms)
                if first in bounds:
                    found[first] = min(found.get(first, MAX_INT64), first_ms)
                    if is_in_order and number > 0:  # run 0 is out of order
                        self._topics[hash_].first_ms = found[first]
                        bounds.remove(first)
            if not bounds:
                break
        for (hash_, is_last), due_ms in found.items():
            if is_last:
                self._topics[hash_].last_ms = due_ms
            else:
                self._topics[hash_].first_ms = due_ms


def _by_topic(run: Rows) -> Iterator[tuple[int, int, int, int, Ints]]:
    """Yield topic hash, index of a row, first, last and all due times of each topic in `run`."""
    if len(run) == 0:
        return
    hashes, dues = run["topic_hash"], run["due_ms"]
    if hashes[0] == hashes[-1] and (hashes == hashes[0]).all():
        yield int(hashes[0]), 0, int(dues.min()), int(dues.max()), dues
        return
    order = stable_argsort(hashes)
    hashes, dues = hashes[order], dues[order]
    starts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
    firsts_ms, lasts_ms = np.minimum.reduceat(dues, starts), np.maximum.reduceat(dues, starts)
    each = zip(*(column.tolist() for column in (hashes[starts], order[starts], firsts_ms, lasts_ms)), strict=True)
    for (hash_, at, first_ms, last_ms), (start, end) in zip(each, pairwise([*starts.tolist(), len(run)]), strict=True):
        yield hash_, at, first_ms, last_ms, dues[start:end]


def _by_hour(dues: Ints, first_ms: int, last_ms: int) -> Iterable[tuple[int, int]]:
    """Return (hour, number) of due times between these two: nearly always one hour."""
    if first_ms // HOUR_MS == last_ms // HOUR_MS:
        return [(first_ms // HOUR_MS, len(dues))]
    hours, counts = unique_counts(dues // HOUR_MS)
    return zip(hours.tolist(), counts.tolist(), strict=True)


def _hours_of_rolled(run: Rows) -> list[int]:
    hours: list[int] = (run["due_ms"][run["due_ms"] != run["visit_ms"]] // HOUR_MS).tolist()
    return hours
