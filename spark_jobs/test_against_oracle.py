"""Small histories at random, judged by Spark and by a few lines of plain Python that know the contract alone.

Sixty histories are one example, each in a partition of its own: Spark's fixed cost is paid once for all of them.
More of them: EXAMPLES=100 pytest spark_jobs/test_against_oracle.py
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from schemas import headers as names
from spark_jobs.brokers import Span
from spark_jobs.testing import AS_OF_MS, History, Record, cancel, copy, delivery, receipt, rejection, request

pytestmark = pytest.mark.spark

SETTLED_MS, TOLERANCE_MS, SKEW_MS = AS_OF_MS - 100, 5_000, 1_000
TIMES = (1_000, 2_000, 5_000, 9_000, 20_000, 60_000, AS_OF_MS - 50, AS_OF_MS + 5_000)
CODES = ("bad-header", "too-far", "too-large", "unknown-topic", "expired", "not-ours")
FATES = ("delivered", "delivered", "delivered", "nothing", "nothing", "twice", "rejected", "altered", "both")
KINDS = ("accepted", "cancelled", "replaced", "not-found", "too-late", "delivered")


@st.composite
def histories(draw: st.DrawFn, partition: int) -> History:
    """Up to six records of the timer topic and whatever became of them, right or wrong."""
    history, at_ms = History(), 1_000
    for offset in range(draw(st.integers(1, 6))):
        at_ms += draw(st.sampled_from((0, 10, 4_000, 30_000)))
        at_ms = min(at_ms, AS_OF_MS - draw(st.sampled_from((10, 200))))
        history.requests.append(draw(_asked(history, partition, offset, at_ms)))
    timers = [r for r in history.requests if not _is_copy(r)]
    for asked in timers:
        _fate(draw, history, asked)
    for asked in history.requests:
        if _is_copy(asked) and draw(st.booleans()):
            history.rejections.append(rejection(asked, "not-ours"))
        if draw(st.integers(0, 3)) == 0:
            about = draw(st.sampled_from([None, *timers])) if timers else None
            late_ms = draw(st.sampled_from((2, 3_000, 40_000)))
            kind = draw(st.sampled_from(KINDS))
            history.receipts.append(receipt(kind, asked, about, at_ms=asked.timestamp_ms + late_ms))
    return history


@st.composite
def _asked(draw: st.DrawFn, history: History, partition: int, offset: int, at_ms: int) -> Record:
    before = [r for r in history.requests if not _is_copy(r) and r.header(names.DELIVER_MS)]
    kind = draw(st.sampled_from(("schedule", "schedule", "schedule", "cancel", "bad", *(["copy"] if before else []))))
    id_ = draw(st.sampled_from((None, b"x", b"x", b"y")))
    if kind == "cancel":
        return cancel(id_, offset, at_ms=at_ms, partition=partition)
    if kind == "copy":
        other: dict[str, Any] = {"value": b"forged"} if draw(st.integers(0, 3)) == 0 else {}
        rolls = draw(st.sampled_from((1, 1, 2)))
        return copy(draw(st.sampled_from(before)), offset, rolls=rolls, at_ms=at_ms, partition=partition, **other)
    due_ms = None if kind == "bad" else draw(st.sampled_from(TIMES))
    also = ((("timer-expire-ms", b"30000"),) if draw(st.integers(0, 5)) == 0 else ()) if kind == "schedule" else ()
    return request(offset, due_ms=due_ms, at_ms=at_ms, id=id_, also=also, partition=partition)


def _fate(draw: st.DrawFn, history: History, asked: Record) -> None:
    fate = draw(st.sampled_from(FATES))
    due_ms = int(asked.header(names.DELIVER_MS) or 0)
    came_ms = max(due_ms, asked.timestamp_ms) + draw(st.sampled_from((-1, 3, 3, 2_000, 10_000)))
    rolls = draw(st.sampled_from((0, 0, 1)))
    place = asked.partition * 100 + asked.offset
    if fate in ("delivered", "twice", "altered", "both"):
        value = b"other" if fate == "altered" else asked.value
        history.deliveries.append(delivery(asked, at_ms=came_ms, value=value, offset=place, rolls=rolls))
    if fate == "twice":
        history.deliveries.append(delivery(asked, at_ms=came_ms + 1, offset=place + 50, rolls=rolls))
    if fate in ("rejected", "both"):
        history.rejections.append(rejection(asked, draw(st.sampled_from(CODES)), offset=place, at_ms=came_ms))


def _is_copy(record: Record) -> bool:
    return record.header(names.ORIGIN) is not None


class Plain:
    """The audit of one history, record by record."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._copies: dict[str, int] = {}
        copies = self._taken()
        self._timers = [r for r in history.requests if r not in copies]

    def classes(self) -> dict[str, str]:
        return {asked.origin: self._class(asked) for asked in self._timers}

    def _taken(self) -> list[Record]:
        """Those that say they are copies, are not refused, and are what the next copy has to be."""
        found: list[Record] = []
        refused = {_origin(r) for r in self._history.rejections}
        for asked in [r for r in self._history.requests if not _is_copy(r)]:
            claims = [
                r
                for r in self._history.requests
                if r.header(names.ORIGIN) == asked.origin.encode()
                and r.origin not in refused
                and r.value == asked.value
                and self._readable(asked)
            ]
            number = 1
            while same := [r for r in claims if int(r.header(names.ROLLS) or 0) == number]:
                found.append(same[0])
                self._copies[asked.origin] = number
                number += 1
        return found

    @staticmethod
    def _readable(asked: Record) -> bool:
        if asked.header(names.ACTION) == b"cancel":
            return asked.header(names.ID) is not None
        return not _is_copy(asked) and asked.header(names.DELIVER_MS) is not None

    def _class(self, asked: Record) -> str:
        came, back = self._came(asked), self._back(asked)
        is_cancel = asked.header(names.ACTION) == b"cancel"
        readable = self._readable(asked)
        next_ = self._next(asked)
        if came and back:
            return "rejected-but-delivered"
        if came and (not readable or is_cancel):
            return "malformed-but-delivered"
        was_read = next_ and self._was_read(next_, min((d.timestamp_ms for d in came), default=0))
        if came and (was_read or self._ended_by_receipt(asked)):
            return "cancelled-but-delivered"
        expire = asked.header("timer-expire-ms")
        if came and expire and min(d.timestamp_ms for d in came) > int(expire) + TOLERANCE_MS:
            return "expired-but-delivered"
        if len(came) > 1 or len(back) > 1:
            return "duplicate"
        if came:
            return self._delivered(asked, came[0])
        if back:
            return self._returned(asked, back[0], expire)
        if is_cancel and readable:
            return self._cancel(asked)
        return self._nothing(asked, next_)

    def _delivered(self, asked: Record, came: Record) -> str:
        if came.timestamp_ms < self._due_ms(asked):
            return "early"
        if came.value != asked.value:
            return "altered"
        if int(came.header(names.ROLLS) or 0) <= self._copies.get(asked.origin, 0):
            return "delivered"
        # Its copy may lie behind what was read.
        return "pending" if came.timestamp_ms + SKEW_MS >= AS_OF_MS else "altered"

    def _returned(self, asked: Record, back: Record, expire: bytes | None) -> str:
        if back.header(names.ERROR) != b"expired":
            return "rejected"
        return "missing" if expire is None or back.timestamp_ms + SKEW_MS < int(expire) else "expired"

    def _nothing(self, asked: Record, next_: Record | None) -> str:
        if next_ is None:
            return "missing" if self._expected_ms(asked) <= SETTLED_MS else "pending"
        if self._ended_by_receipt(asked):
            return "cancelled" if next_.header(names.ACTION) else "replaced"
        if self._answered_ms(next_) is not None or self._expected_ms(asked) + TOLERANCE_MS < next_.timestamp_ms:
            return "missing"
        if next_.timestamp_ms > SETTLED_MS:
            return "pending"
        return "cancelled" if next_.header(names.ACTION) else "replaced"

    def _cancel(self, asked: Record) -> str:
        kinds = [kind for kind, by, _, _ in self._receipts() if by == asked.origin]
        if {"cancelled", "replaced"} & set(kinds):
            return "cancel-done"
        if {"not-found", "too-late"} & set(kinds):
            return "cancel-" + min(kind for kind in kinds if kind in ("not-found", "too-late"))
        if self._answered_ms(asked) is not None or asked.timestamp_ms > SETTLED_MS:
            return "pending"
        line = self._line(asked)
        at = line.index(asked)
        last = line[at - 1] if at else None
        if last is None or last.header(names.ACTION):
            # A second cancel behind one that nobody should have delivered.
            return "cancel-too-late" if last and (self._came(last) or self._back(last)) else "cancel-not-found"
        if self._came(last) or self._back(last):
            return "cancel-too-late"
        overdue = self._expected_ms(last) + TOLERANCE_MS < asked.timestamp_ms
        return "cancel-not-found" if overdue else "cancel-done"

    def _was_read(self, next_: Record, came_ms: int) -> bool:
        answered_ms = self._answered_ms(next_)
        read_ms = next_.timestamp_ms + TOLERANCE_MS if answered_ms is None else answered_ms + SKEW_MS
        return read_ms < came_ms

    def _line(self, asked: Record) -> list[Record]:
        """Every request with its id that was taken, in order."""
        id_ = asked.header(names.ID)
        return [r for r in self._timers if id_ and r.header(names.ID) == id_ and self._stands(r)]

    def _stands(self, asked: Record) -> bool:
        """Read well, and not refused at intake."""
        if not self._readable(asked):
            return False
        back = self._back(asked)
        if not back:
            return True
        code = min(r.header(names.ERROR) or b"" for r in back)
        if code in (b"unknown-topic", b"expired"):
            return True
        return code == b"too-large" and min(r.timestamp_ms for r in back) >= self._expected_ms(asked)

    def _next(self, asked: Record) -> Record | None:
        line = self._line(asked)
        return next((r for r in line if r.offset > asked.offset), None) if asked in line else None

    def _receipts(self) -> list[tuple[str, str, str | None, int]]:
        return [_said(r) for r in self._history.receipts]

    def _answered_ms(self, asked: Record) -> int | None:
        answers = [at for kind, by, _, at in self._receipts() if by == asked.origin and kind != "delivered"]
        return min(answers, default=None)

    def _ended_by_receipt(self, asked: Record) -> bool:
        return any(
            about == asked.origin and kind in ("cancelled", "replaced") for kind, _, about, _ in self._receipts()
        )

    def _came(self, asked: Record) -> list[Record]:
        return [r for r in self._history.deliveries if _origin(r) == asked.origin]

    def _back(self, asked: Record) -> list[Record]:
        return [r for r in self._history.rejections if _origin(r) == asked.origin]

    def _due_ms(self, asked: Record) -> int:
        return int(asked.header(names.DELIVER_MS) or 0)

    def _expected_ms(self, asked: Record) -> int:
        due_ms = self._due_ms(asked) if self._readable(asked) and not asked.header(names.ACTION) else 0
        return max(asked.timestamp_ms, due_ms)


def _origin(record: Record) -> str:
    return (record.header(names.ORIGIN) or b"").decode()


def _said(record: Record) -> tuple[str, str, str | None, int]:
    told = json.loads(record.value or b"{}")
    return told["kind"], told["request"], told.get("origin"), record.timestamp_ms


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # a failure's repr is long
@settings(
    max_examples=int(os.environ.get("EXAMPLES", "2")),
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(drawn=st.tuples(*(histories(partition) for partition in range(60))))
def test_spark_and_plain_python_agree(spark: SparkSession, drawn: Sequence[History]) -> None:
    together = History()
    expected: dict[str, str] = {}
    for history in drawn:
        expected |= Plain(history).classes()
        together.requests += history.requests
        together.deliveries += history.deliveries
        together.rejections += history.rejections
        together.receipts += history.receipts
    for name in set(expected.values()):
        event(name)
    spans = [Span("timer.requests", partition, 0, 100) for partition in range(60)]
    rows = together.judged(spark, spans=spans, settle_ms=100, tolerance_ms=TOLERANCE_MS, skew_ms=SKEW_MS).collect()
    found = {row.origin: row["class"] for row in rows}
    wrong = {origin: (found.get(origin), name) for origin, name in expected.items() if found.get(origin) != name}
    assert not wrong, wrong
    assert len(rows) == len(expected)
