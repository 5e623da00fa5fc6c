"""Tests that share one run of Spark: each yields its history and gets what the audit found in it.

    @one_run()
    def test_a_timer_that_came_is_delivered() -> Judging:
        found = yield History([asked], [delivery(asked)])
        assert found.classes == {"0": "delivered"}

An audit takes seconds even for a few rows. The histories of all collected modules (with the same limits) are therefore
judged together when the first of their tests runs. Each is moved to partitions of its own, and its rows are moved
back.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql import Row, SparkSession

from spark_jobs.kafka.admin import Span
from spark_jobs.tests.records import History, Record

TIGHT = {"settle_ms": 10, "late_ms": 10, "max_delay_ms": 2_000}
"""Limits for all tests whose classes depend on one of these."""
_TOPIC = "timer.requests"
_PARTITIONS = 2
"""Partitions of the timer topic that a history may use."""
_ORIGIN = re.compile(rb"timer\.requests/(\d+)/")
_SPANS = tuple(Span(_TOPIC, partition, 0, 1_000) for partition in range(_PARTITIONS))


@dataclass(frozen=True)
class Found:
    """The rows of one history, by partition and offset; rows without a request are last. parts: by history."""

    rows: Sequence[Row]
    parts: Sequence["Found"] = ()

    @property
    def classes(self) -> dict[str, str]:
        """Offset of the origin (or the whole of one in another partition than 0) -> class."""
        return {row.origin.removeprefix(f"{_TOPIC}/0/"): row["class"] for row in self.rows}

    @property
    def by_class(self) -> dict[str, str]:
        """Class -> offsets of its origins in partition 0, in order: {"delivered": "0 0#2", "missing": "3"}."""
        found: dict[str, list[str]] = defaultdict(list)
        for offset, name in sorted(self.classes.items(), key=lambda item: [int(part) for part in item[0].split("#")]):
            found[name].append(offset)
        return {name: " ".join(offsets) for name, offsets in found.items()}


Judging: TypeAlias = Generator[History | Sequence[History], Found, None]
"""A test may yield several histories. The rows of each are then one of the `parts` of Found."""
_Name: TypeAlias = tuple[str, str]
"""Of a test: its module and its own."""
_waiting: dict[tuple[tuple[str, int], ...], dict[_Name, Callable[[], Judging]]] = defaultdict(dict)
_judged: dict[_Name, tuple[Judging, Found]] = {}


def one_run(**limits: int) -> Callable[[Callable[[], Judging]], Callable[[SparkSession], None]]:
    """Make a test of a generator. `limits`: see History.judged; tests with the same limits share a run."""

    def decorated(story: Callable[[], Judging]) -> Callable[[SparkSession], None]:
        name = story.__module__, story.__name__
        group = _waiting[tuple(sorted(limits.items()))]
        group[name] = story

        def test(spark: SparkSession) -> None:
            if name not in _judged:
                _judge(spark, group, limits)
            running, found = _judged.pop(name)
            try:
                running.send(found)
            except StopIteration:
                return
            raise AssertionError(f"{story.__name__} yields twice")

        test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
        return test

    return decorated


def _judge(spark: SparkSession, stories: dict[_Name, Callable[[], Judging]], limits: dict[str, int]) -> None:
    running = {name: story() for name, story in stories.items()}
    told = [next(each) for each in running.values()]
    lots = [[each] if isinstance(each, History) else each for each in told]
    found = iter(judged_together(spark, [each for lot in lots for each in lot], **limits))
    for (name, each), lot in zip(running.items(), lots, strict=True):
        parts = [next(found) for _ in lot]
        _judged[name] = each, Found([row for part in parts for row in part.rows], parts)


def judged_together(spark: SparkSession, told: Sequence[History], **limits: int) -> list[Found]:
    """Judge the histories in one run of Spark, each in partitions of its own. `limits`: see History.judged."""
    together, spans, excluded = History(), list[Span](), list[Span]()
    for place, each in enumerate(told):
        own = each.spans or _SPANS
        placed = [span._replace(partition=place * _PARTITIONS + span.partition) for span in own]
        spans += placed
        excluded += placed if each.is_excluded else []
        together.add(each, partial(_moved, place=place))
    found: dict[int, list[Row]] = defaultdict(list)
    for row in together.judged(spark, spans=spans, excluded=excluded, **limits).collect():
        number = row.partition if row.origin.startswith("?trace/") else int(row.origin.split("/")[1])
        place, partition = divmod(number, _PARTITIONS)
        back: dict[str, Any] = {"origin": row.origin.replace(f"/{number}/", f"/{partition}/")}
        back["partition"] = None if row.partition is None else partition
        found[place].append(Row(**{**row.asDict(), **back}))

    def order(row: Row) -> tuple[object, ...]:
        return row.partition is None, row.partition, row.offset, row.origin

    return [Found(sorted(found[place], key=order)) for place in range(len(told))]


def _moved(record: Record, place: int) -> Record:
    """Return the record, and all that it says of origins, in the partitions of its history."""

    def moved(text: bytes | None) -> bytes | None:
        return text and _ORIGIN.sub(lambda origin: b"timer.requests/%d/" % (place * _PARTITIONS + int(origin[1])), text)

    partition = place * _PARTITIONS + record.partition if record.topic == _TOPIC else record.partition
    headers = tuple((name, moved(value)) for name, value in record.headers)
    return record._replace(partition=partition, headers=headers, value=moved(record.value))
