"""Requests read -> what becomes of each. Decides, does nothing.

    key = (visit_ms, offset), visit = max(due, timestamp)

    refused                    -> rejected topic, named in the journal
    key >  K                   -> store, in its place
    key <= K, visit <= now     -> late: leaves in the very transaction that moves C past it (invariant 3)
    key <= K, visit >  now     -> held: the clock went back behind K; stored, named in the journal

A request that is overdue when it is sent takes its place by its timestamp: so all visits lie between the oldest live
request's timestamp and the roll window ahead, and no sender can claim a slot of the past.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bridge.ports import Record
from schemas.headers import Refusal, Rules, Schedule, parse
from schemas.progress import Key
from timer.batch import Batch
from timer.record import Body, pack_headers


@dataclass(slots=True)
class Intake:
    """`late` and `refused` go out with the transaction; `batch` goes into the store before it."""

    batch: Batch = field(default_factory=Batch)
    late: list[Body] = field(default_factory=list)
    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)


def body_of(record: Record, schedule: Schedule) -> Body:
    headers, plain = pack_headers(record.headers)
    return Body(
        schedule.target,
        schedule.partition,
        record.offset,
        record.timestamp_ms,
        schedule.due_ms,
        record.key,
        record.value,
        headers,
        plain,
    )


def visit_of(record: Record, schedule: Schedule) -> int:
    return max(schedule.due_ms, record.timestamp_ms)


def intake(records: Iterable[Record], settled: Key, now_ms: int, rules: Rules) -> Intake:
    """What becomes of `records` when everything up to the key `settled` (K) has left and it is `now_ms`."""
    taken = Intake()
    for record in records:
        asked = parse(record.headers, record.timestamp_ms, rules)
        if isinstance(asked, Refusal):
            taken.refused.append((record, asked))
            continue
        visit_ms = visit_of(record, asked)
        if (visit_ms, record.offset) > settled:
            taken.batch.append(body_of(record, asked), visit_ms)
        elif visit_ms <= now_ms:
            taken.late.append(body_of(record, asked))
        else:
            taken.batch.hold(body_of(record, asked), visit_ms)
            taken.held.append(record.offset)
    return taken


def replay(
    records: Iterable[Record], settled: Key, rules_at: Callable[[int], Rules], refused: set[int], held: set[int]
) -> Batch:
    """The timers among `records` that still live, when the journal tells what was `refused` and is `held`.

    Raises ValueError where a request that the journal calls a timer does not read as one.
    """
    batch = Batch()
    for record in records:
        if record.offset in refused:
            continue
        asked = parse(record.headers, record.timestamp_ms, rules_at(record.offset))
        if isinstance(asked, Refusal):
            raise ValueError(f"offset {record.offset} was taken once, but now reads as {asked.code}: {asked.detail}")
        visit_ms = visit_of(record, asked)
        if record.offset in held:
            batch.hold(body_of(record, asked), visit_ms)
        elif (visit_ms, record.offset) > settled:
            batch.append(body_of(record, asked), visit_ms)
    return batch
