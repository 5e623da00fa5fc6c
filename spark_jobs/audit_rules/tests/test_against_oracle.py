"""Small histories at random, judged by Spark and by a few lines of plain Python that know the contract alone.

Many histories are one example, each in a partition of its own: Spark's fixed cost is paid once for all of them. Some of
them are about moves, some about pauses. An example meets every class of the audit.
More of them: EXAMPLES=100 SEED=4711 pytest spark_jobs/audit_rules/tests/test_against_oracle.py
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from itertools import count, takewhile
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from kafka_timer import headers as names
from schemas.tables import AuditClass
from spark_jobs.audit_rules.verdicts import FAULTS
from spark_jobs.kafka.admin import Span
from spark_jobs.tests.records import (
    AS_OF_MS,
    Headers,
    History,
    Record,
    asking,
    copy,
    delivery,
    move,
    receipt,
    rejection,
    request,
)

pytestmark = pytest.mark.spark

SETTLED_MS, TOLERANCE_MS, SKEW_MS, LATE_MS = AS_OF_MS - 100, 5_000, 1_000, 9_000
MAX_DELAY_MS = 60_000
TIMES = (1_000, 2_000, 5_000, 9_000, 20_000, 60_000, AS_OF_MS - 50, AS_OF_MS + 5_000)
CODES = ("bad-header", "too-far", "too-large", "unknown-topic", "expired", "not-ours")
FATES = ("delivered", "delivered", "delivered", "nothing", "nothing", "twice", "rejected", "altered", "both")
KINDS = ("accepted", "cancelled", "replaced", "moved", "paused", "not-found", "too-late", "delivered")
NEVER_DRAWN = {"broken-off", "off-rule", "unjudged", "unstamped", "waived", "wrong-origin"}
"""These histories have no gaps, no waivers, no trace ids and no recurring timers (test_series.py)."""
ENDINGS = ("cancelled", "replaced")
SWITCHES = (b"pause", b"resume")
PLAIN = ("schedule", "schedule", "schedule", "cancel", "bad", "copy")
ALL = (*PLAIN, "schedule", "replace", "move", "move", "cancel of", "move of", "switch")
MOVES = ("replace", "move", "move", "move", "move of", "copy")
PAUSES = ("schedule", "pause", "pause", "resume", "pause of", "resume of", "move", "cancel", "copy")
ENDS_NOTHING = (b"move", *SWITCHES)
HISTORIES = 180
MOST_DRAWS = 200


def drawn(rng: Random, partition: int, kinds: Sequence[str] = ALL) -> History:
    """Up to seven records of the timer topic and whatever became of them, right or wrong."""
    history, at_ms = History(), 1_000
    for offset in range(rng.randint(1, 7)):
        at_ms += rng.choice((0, 10, 4_000, 30_000))
        at_ms = min(at_ms, AS_OF_MS - rng.choice((10, 200)))
        history.requests.append(_asked(rng, history, partition, offset, at_ms, kinds))
    timers = [r for r in history.requests if not _is_copy(r)]
    for asked in timers:
        _fate(rng, history, asked)
    for asked in history.requests:
        if _is_copy(asked) and rng.random() < 0.5:
            history.rejections.append(rejection(asked, "not-ours"))
        if rng.randrange(4) == 0:
            about = rng.choice([None, *timers]) if timers else None
            late_ms = rng.choice((2, 3_000, 40_000))
            history.receipts.append(receipt(rng.choice(KINDS), asked, about, at_ms=asked.timestamp_ms + late_ms))
    if rng.randrange(20) == 0:
        history.deliveries.append(delivery(request(90, partition=partition), offset=partition * 100 + 99))
    return history


def _asked(rng: Random, history: History, partition: int, offset: int, at_ms: int, kinds: Sequence[str]) -> Record:
    before = [r for r in history.requests if not _is_copy(r) and _is_timer(r) and r.header(names.DELIVER_MS)]
    kind = rng.choice([kind for kind in kinds if before or kind != "copy"])
    id_ = rng.choice((None, b"x", b"x", b"y") if kinds is ALL or kinds is PLAIN else (b"x",))
    if kind.endswith(" of"):
        place = rng.choice((offset, 77) if not history.requests else [r.offset for r in history.requests])
        origin = f"timer.requests/{partition if rng.randrange(9) else 999}/{place}"
        if kind != "move of":
            return asking(kind.removesuffix(" of"), origin, offset, at_ms, partition=partition)
        return move(origin, offset, rng.choice((*TIMES, None)), at_ms=at_ms, partition=partition)
    if kind in ("cancel", "pause", "resume"):
        return asking(kind, id_, offset, at_ms, partition=partition)
    if kind == "copy":
        of = rng.choice(before)
        moves = [r.header(names.DELIVER_MS) for r in history.requests if _is_move_of(r, of)]
        other: dict[str, Any] = {"value": b"forged"} if rng.randrange(4) == 0 else {}
        paused = b"%d" % (names.PAUSED_MS + int(of.header(names.DELIVER_MS) or 0))
        other |= {"due_ms": rng.choice([*moves, paused, b"777"])} if rng.random() < 0.6 else {}
        return copy(of, offset, rolls=rng.choice((1, 1, 2)), at_ms=at_ms, partition=partition, **other)
    due_ms = None if kind == "bad" else rng.choice(TIMES)
    if kind == "move":
        return move(id_, offset, rng.choice((due_ms, due_ms, due_ms, None)), at_ms=at_ms, partition=partition)
    if kind == "switch":
        target, action = rng.choice(("orders", "orders", None)), rng.choice(SWITCHES)
        also: Headers = ((names.ACTION, action),)
        return request(offset, due_ms=None, at_ms=at_ms, target=target, also=also, partition=partition)
    expires = kind == "schedule" and rng.randrange(6) == 0
    also = (("timer-expire-ms", b"30000"),) if expires else ()
    if kind == "replace":
        id_, also = id_ or b"x", ((names.ACTION, b"replace"),)
    return request(offset, due_ms=due_ms, at_ms=at_ms, id=id_, also=also, partition=partition)


def _fate(rng: Random, history: History, asked: Record) -> None:
    fate = rng.choice(FATES)
    if not _is_timer(asked) and rng.random() < 0.6:
        fate = "nothing"
    moves = [r for r in history.requests if r.offset > asked.offset and _is_move_of(r, asked)]
    times = [int(r.header(names.DELIVER_MS) or 0) for r in moves]
    due_ms = int(asked.header(names.DELIVER_MS) or 0)
    told_ms = rng.choice([due_ms, *times, *times]) if rng.randrange(12) else 777
    resumes = [r.timestamp_ms for r in history.requests if _action(r) == b"resume"]
    resumed_ms = rng.choice((0, *resumes)) if resumes else 0
    came_ms = max(told_ms, asked.timestamp_ms, resumed_ms) + rng.choice((-1, 3, 3, 2_000, 10_000))
    rolls = rng.choice((0, 0, 1))
    place = asked.partition * 100 + asked.offset
    if fate in ("delivered", "twice", "altered", "both"):
        value = b"other" if fate == "altered" else asked.value
        history.deliveries.append(
            delivery(asked, at_ms=came_ms, due_ms=told_ms, value=value, offset=place, rolls=rolls)
        )
    if fate == "twice":
        history.deliveries.append(delivery(asked, at_ms=came_ms + 1, offset=place + 50, rolls=rolls))
    if fate in ("rejected", "both"):
        history.rejections.append(rejection(asked, rng.choice(CODES), offset=place, at_ms=came_ms))


def _action(record: Record) -> bytes:
    return record.header(names.ACTION) or b"schedule"


def _is_timer(record: Record) -> bool:
    return _action(record) in (b"schedule", b"replace")


def _is_move_of(record: Record, asked: Record) -> bool:
    """True if `record` asks for another time of `asked`, by its origin, or of what has its id."""
    id_ = asked.header(names.ID)
    is_move = _action(record) == b"move" and record.header(names.DELIVER_MS) is not None
    return is_move and (_of(record) == asked.origin or (id_ is not None and record.header(names.ID) == id_))


def _of(record: Record) -> str | None:
    """Return the origin that a cancel or a move names; None if it names none of its partition."""
    place = (record.header(names.OF) or b"").decode()
    is_of = record.header(names.ID) is None and _action(record) in (b"cancel", *ENDS_NOTHING)
    return place if is_of and place.rpartition("/")[0] == record.origin.rpartition("/")[0] else None


def _is_unnamed(record: Record) -> bool:
    """True if it pauses or resumes a target topic."""
    return _action(record) in SWITCHES and record.header(names.ID) is None and record.header(names.OF) is None


class Round(NamedTuple):
    """A pause of a timer. since_ms: end of the one before."""

    ms: int
    since_ms: int
    answered_ms: int | None = None
    ended_ms: int | None = None


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
        came = self._history.deliveries + self._history.rejections
        unasked = {_origin(r) for r in came} - {r.origin for r in self._history.requests}
        return {asked.origin: self._class(asked) for asked in self._timers} | dict.fromkeys(unasked, "unexplained")

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
                and self._may_be_due(asked, r.header(names.DELIVER_MS))
            ]
            number = 1
            while same := [r for r in claims if int(r.header(names.ROLLS) or 0) == number]:
                found.append(same[0])
                self._copies[asked.origin] = number
                number += 1
        return found

    def _may_be_due(self, asked: Record, due: bytes | None) -> bool:
        """A copy has the request's time, or one to which a move of its id asked for."""
        moves = (r.header(names.DELIVER_MS) for r in self._history.requests if _is_move_of(r, asked))
        times = (asked.header(names.DELIVER_MS), *moves)
        return due in times or due in [b"%d" % (names.PAUSED_MS + int(time)) for time in times if time is not None]

    @staticmethod
    def _readable(asked: Record) -> bool:
        if _action(asked) == b"cancel":
            return asked.header(names.ID) is not None or _of(asked) is not None
        if _action(asked) in SWITCHES:
            no_timer = asked.header(names.ID) is None and _of(asked) is None
            return asked.header(names.TOPIC) is not None if _is_unnamed(asked) else not no_timer
        if _action(asked) == b"move" and asked.header(names.ID) is None and _of(asked) is None:
            return False
        due, expire = asked.header(names.DELIVER_MS), asked.header(names.EXPIRE_MS)
        return not _is_copy(asked) and due is not None and (expire is None or int(due) < int(expire))

    def _class(self, asked: Record) -> str:
        name = self._by_outcome(asked)
        return "false-receipt" if name not in FAULTS and self._is_told_falsely(asked) else name

    def _is_told_falsely(self, asked: Record) -> bool:
        """True if a receipt says that it was ended, by another one than the next of its id, or though it cannot be."""
        if not self._ended_by_receipt(asked):
            return False
        next_ = self._next(asked)
        return (
            not self._may_end(asked)
            or bool(self._back(asked))
            or (next_ is not None and not self._is_told_truly(asked, next_))
            or (next_ is None and asked.header(names.ID) is None and not self._is_told_ahead(asked))
        )

    def _may_end(self, asked: Record) -> bool:
        return self._readable(asked) and _is_timer(asked)

    def _is_told_ahead(self, asked: Record) -> bool:
        """True if it was ended after the audit's time, by a request that the audit has not read."""
        at_ms = [at for kind, _, about, at in self._receipts() if about == asked.origin and kind in ENDINGS]
        return self._may_end(asked) and min(at_ms, default=0) > AS_OF_MS

    def _is_told_truly(self, asked: Record, next_: Record) -> bool:
        """True if every receipt that says that it was ended names `next_` and its kind."""
        told = {(kind, by) for kind, by, about, _ in self._receipts() if about == asked.origin and kind in ENDINGS}
        return told == {("cancelled" if _action(next_) == b"cancel" else "replaced", next_.origin)}

    def _by_outcome(self, asked: Record) -> str:
        came, back = self._came(asked), self._back(asked)
        readable = self._readable(asked)
        next_ = self._next(asked)
        if came and back:
            return "rejected-but-delivered"
        if came and not (readable and _is_timer(asked)):
            return "malformed-but-delivered"
        was_read = next_ and self._was_read(next_, min((d.timestamp_ms for d in came), default=0))
        if came and (was_read or self._ended_by_receipt(asked)):
            return "cancelled-but-delivered"
        if came and self._is_paused_at(asked, min(d.timestamp_ms for d in came)):
            return "paused-but-delivered"
        expire = asked.header("timer-expire-ms")
        if came and expire and min(d.timestamp_ms for d in came) > int(expire) + TOLERANCE_MS:
            return "expired-but-delivered"
        if len(came) > 1 or len(back) > 1:
            return "duplicate"
        if came:
            return self._delivered(asked, came[0])
        if back:
            return self._returned(asked, back[0], expire)
        if readable and not _is_timer(asked):
            other = "switch" if _is_unnamed(asked) else "move"
            return self._cancel(asked) if _action(asked) == b"cancel" else other
        return self._nothing(asked, next_)

    def _delivered(self, asked: Record, came: Record) -> str:
        told_ms, moved_ms, own_ms = self._due_ms(came), self._moved_ms(asked), self._due_ms(asked)
        has_rolled_more = int(came.header(names.ROLLS) or 0) > self._copies.get(asked.origin, 0)
        is_ahead = has_rolled_more and came.timestamp_ms + SKEW_MS >= AS_OF_MS  # its copy may lie behind what was read
        if came.timestamp_ms < (told_ms if moved_ms or is_ahead else own_ms):
            return "early"
        if came.value != asked.value:
            return "altered"
        if is_ahead:
            return "pending"
        if has_rolled_more or not min(own_ms, *moved_ms, own_ms) <= told_ms <= max(own_ms, *moved_ms, own_ms):
            return "altered"
        if moved_ms:
            return "moved"
        return "late" if came.timestamp_ms - self._freed_ms(asked, came.timestamp_ms) > LATE_MS else "delivered"

    def _returned(self, asked: Record, back: Record, expire: bytes | None) -> str:
        code = back.header(names.ERROR)
        if code in (b"bad-header", b"not-ours") or (code == b"too-far" and self._is_near(asked)):
            return "wrongly-rejected" if self._readable(asked) else "rejected"
        if code != b"expired":
            return "rejected"
        return "missing" if expire is None or back.timestamp_ms + SKEW_MS < int(expire) else "expired"

    def _is_near(self, asked: Record) -> bool:
        """True if it is not due later than the longest delay after its request."""
        has_time = _action(asked) not in (b"cancel", *SWITCHES)
        return not has_time or self._due_ms(asked) - asked.timestamp_ms <= MAX_DELAY_MS

    def _nothing(self, asked: Record, next_: Record | None) -> str:
        is_paused, expected_ms = self._is_paused(asked), self._freed_ms(asked)
        if next_ is None:
            is_over = expected_ms <= SETTLED_MS and not self._is_told_ahead(asked)
            return ("held" if is_paused else "missing") if is_over else "pending"
        if self._is_told_truly(asked, next_):
            return "cancelled" if _action(next_) == b"cancel" else "replaced"
        if self._answered_ms(next_) is not None:
            return "missing"
        if expected_ms + TOLERANCE_MS < next_.timestamp_ms and not is_paused:
            return "missing"
        if next_.timestamp_ms > SETTLED_MS:
            return "pending"
        return "cancelled" if _action(next_) == b"cancel" else "replaced"

    def _cancel(self, asked: Record) -> str:
        kinds = [kind for kind, by, _, _ in self._receipts() if by == asked.origin]
        if set(ENDINGS) & set(kinds):
            return "cancel-done"
        if {"not-found", "too-late"} & set(kinds):
            return "cancel-" + min(kind for kind in kinds if kind in ("not-found", "too-late"))
        if self._answered_ms(asked) is not None or asked.timestamp_ms > SETTLED_MS:
            return "pending"
        line = self._line(asked)
        at = line.index(asked)
        last = line[at - 1] if at else None
        if last is None or _action(last) == b"cancel":
            # A second cancel behind one that nobody should have delivered.
            return "cancel-too-late" if last and (self._came(last) or self._back(last)) else "cancel-not-found"
        if self._came(last) or self._back(last):
            return "cancel-too-late"
        pause = self._pause(last)
        waits = pause is not None and pause.ended_ms is None
        overdue = not waits and self._freed_ms(last) + TOLERANCE_MS < asked.timestamp_ms
        return "cancel-not-found" if overdue else "cancel-done"

    def _was_read(self, next_: Record, came_ms: int) -> bool:
        answered_ms = self._answered_ms(next_)
        read_ms = next_.timestamp_ms + TOLERANCE_MS if answered_ms is None else answered_ms + SKEW_MS
        return read_ms < came_ms

    def _line(self, asked: Record) -> list[Record]:
        """Every request with its id, or about it by origin, that was taken and may end one, in order."""
        return [r for r in self._line_with_moves(asked) if _action(r) not in ENDS_NOTHING]

    def _line_with_moves(self, asked: Record) -> list[Record]:
        chain = self._chain(asked)
        return [r for r in self._timers if self._stands(r) and self._chain(r) == chain]

    def _chain(self, asked: Record) -> bytes | str:
        """Return its id; or the chain of the timer that it names, if that is the last one there; or its origin."""
        of = next((r for r in self._timers if r.origin == _of(asked) and _is_timer(r) and self._stands(r)), None)
        if of is None:
            return asked.header(names.ID) or asked.origin
        chain = of.header(names.ID) or of.origin
        before = [r for r in self._timers if r.offset < asked.offset and _is_timer(r) and self._stands(r)]
        last = [r for r in before if (r.header(names.ID) or r.origin) == chain][-1:]
        return chain if last == [of] else asked.origin

    def _moved_ms(self, asked: Record) -> list[int]:
        changes = self._changes(asked)
        return [self._due_ms(r) for r in changes if _action(r) == b"move" and not self._is_missed(r)]

    def _changes(self, asked: Record) -> list[Record]:
        """The moves, pauses and resumes that follow it, before the next request with its id."""
        line = self._line_with_moves(asked)
        if asked not in line or not _is_timer(asked):
            return []
        return [*takewhile(lambda r: _action(r) in ENDS_NOTHING, line[line.index(asked) + 1 :])]

    def _is_missed(self, asked: Record) -> bool:
        """True if a receipt says that nothing was pending."""
        return any(by == asked.origin and kind in ("not-found", "too-late") for kind, by, _, _ in self._receipts())

    def _pause(self, asked: Record, at_ms: int = 2**62) -> Round | None:
        """The last pause that began before then."""
        rounds: list[Round] = []
        since_ms, is_open = 0, False
        for each in self._changes(asked):
            if _action(each) == b"pause" and not self._is_missed(each):
                began = rounds.pop() if is_open else Round(each.timestamp_ms, since_ms)
                answers = [ms for ms in (began.answered_ms, self._answered_ms(each)) if ms is not None]
                first_ms = min(began.ms, each.timestamp_ms)
                rounds.append(began._replace(ms=first_ms, answered_ms=min(answers, default=None)))
                is_open = True
            elif is_open:
                rounds[-1] = rounds[-1]._replace(ended_ms=each.timestamp_ms)
                since_ms, is_open = max(since_ms, each.timestamp_ms), False
        before = [each for each in reversed(rounds) if each.ms <= at_ms]
        return max(before, key=lambda each: each.ms, default=None)

    def _is_paused_at(self, asked: Record, came_ms: int) -> bool:
        pause = self._pause(asked, came_ms)
        if pause is None:
            return False
        is_told = pause.answered_ms is not None and pause.answered_ms + SKEW_MS >= pause.ms
        read_ms = (pause.answered_ms or 0) + SKEW_MS if is_told else pause.ms + TOLERANCE_MS
        return read_ms < came_ms < (AS_OF_MS if pause.ended_ms is None else pause.ended_ms) - SKEW_MS

    def _is_paused(self, asked: Record) -> bool:
        """True if the last one of its pauses has not ended, and did not come when it was long overdue."""
        pause = self._pause(asked)
        if pause is None or pause.ended_ms is not None:
            return False
        is_early = max(self._expected_ms(asked), pause.since_ms) >= pause.ms - TOLERANCE_MS
        return pause.answered_ms is not None or is_early

    def _freed_ms(self, asked: Record, came_ms: int = 2**62) -> int:
        """When it was to be delivered, not before the end of its pause."""
        pause, expected_ms = self._pause(asked, came_ms), self._expected_ms(asked)
        if pause is None or pause.ended_ms is None or pause.ended_ms > came_ms + SKEW_MS:
            return expected_ms
        return max(expected_ms, min(pause.ended_ms, came_ms))

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
        overdue = min(r.timestamp_ms for r in back) >= self._asked_ms(asked) and _action(asked) not in ENDS_NOTHING
        return code == b"too-large" and (overdue or self._answered_ms(asked) is not None)

    def _next(self, asked: Record) -> Record | None:
        line = self._line(asked)
        return next((r for r in line if r.offset > asked.offset), None) if asked in line else None

    def _receipts(self) -> list[tuple[str, str, str | None, int]]:
        return [_said(r) for r in self._history.receipts]

    def _answered_ms(self, asked: Record) -> int | None:
        answers = [
            at for kind, by, _, at in self._receipts() if by == asked.origin and kind not in ("delivered", "moved")
        ]
        return min(answers, default=None)

    def _ended_by_receipt(self, asked: Record) -> bool:
        return any(about == asked.origin and kind in ENDINGS for kind, _, about, _ in self._receipts())

    def _came(self, asked: Record) -> list[Record]:
        return [r for r in self._history.deliveries if _origin(r) == asked.origin]

    def _back(self, asked: Record) -> list[Record]:
        return [r for r in self._history.rejections if _origin(r) == asked.origin]

    def _due_ms(self, asked: Record) -> int:
        return int(asked.header(names.DELIVER_MS) or 0)

    def _asked_ms(self, asked: Record) -> int:
        due_ms = self._due_ms(asked) if self._readable(asked) and _is_timer(asked) else 0
        return max(asked.timestamp_ms, due_ms)

    def _expected_ms(self, asked: Record) -> int:
        return max(self._asked_ms(asked), *self._moved_ms(asked), 0)


def _origin(record: Record) -> str:
    return (record.header(names.ORIGIN) or b"").decode()


def _said(record: Record) -> tuple[str, str, str | None, int]:
    told = json.loads(record.value or b"{}")
    return told["kind"], told["request"], told.get("origin"), record.timestamp_ms


class Example(NamedTuple):
    seed: int
    histories: list[History]
    expected: dict[str, str]
    """Of each origin the class, by `Plain`."""

    def meets_all(self, first: int) -> bool:
        """True if it meets every class. Fail if MOST_DRAWS examples from seed `first` on do not."""
        missing = {each.value for each in AuditClass} - set(self.expected.values()) - NEVER_DRAWN
        assert not missing or self.seed < first + MOST_DRAWS, f"never met: {missing}"
        return not missing


def _example(seed: int) -> Example:
    rng = Random(seed)
    histories = [drawn(rng, partition, (ALL, MOVES, PAUSES)[partition % 3]) for partition in range(HISTORIES)]
    classes = (Plain(history).classes() for history in histories)
    return Example(seed, histories, {origin: name for each in classes for origin, name in each.items()})


@pytest.mark.slow
@pytest.mark.parametrize("example", range(int(os.environ.get("EXAMPLES", "1"))))
def test_spark_and_plain_python_agree(spark: SparkSession, example: int) -> None:
    first = int(os.environ.get("SEED", "1")) + example * MOST_DRAWS
    seed, histories, expected = next(each for each in map(_example, count(first)) if each.meets_all(first))
    print(f"SEED={seed}", sorted(Counter(expected.values()).items()))
    together = History()
    for history in histories:
        together.add(history)
    spans = [Span("timer.requests", partition, 0, 100) for partition in range(HISTORIES)]
    limits: dict[str, Any] = {"settle_ms": 100, "tolerance_ms": TOLERANCE_MS, "skew_ms": SKEW_MS, "late_ms": LATE_MS}
    limits["max_delay_ms"] = MAX_DELAY_MS
    rows = together.judged(spark, spans=spans, **limits).collect()
    found = {row.origin: row["class"] for row in rows}
    wrong = {origin: (found.get(origin), name) for origin, name in expected.items() if found.get(origin) != name}
    assert not wrong, wrong
    assert len(rows) == len(expected)
