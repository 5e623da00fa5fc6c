"""One timer in full: with key and headers of its request, and on request its value.

A timer is found by its id through the index, which is fast, or by the offset of its request, for which the partition's
log is scanned step by step. Bytes that are not UTF-8 are given in base64.
"""

from pydantic import BaseModel, Field

from bridge.loop.loop import Bridge
from bridge.partition.request import occurrence_of
from bridge.query.search import MAX_SHOWN_BYTES, Content, NamedTimer, content, content_fields, id_fields
from bridge.query.summary import Timer, named_bodies, timers_with_bodies
from kafka_timer.origin import TimerPartition
from schemas.recurrence import due_times
from timer.format.body import Body, unpack_headers


class Header(BaseModel):
    """`value` null: the header is null."""

    name: str
    value: Content | None


class TimerDetail(NamedTimer):
    """A timer with its whole request, and its value if the question has `value`."""

    headers: list[Header] = Field(default_factory=list)
    occurrence: int | None = Field(default=None, description="Number of the occurrence that it waits for.")
    next_due_ms: list[int] = Field(default_factory=list, description="Its next times if it recurs, five at most.")
    requested_ms: int | None = Field(default=None, description="When this copy came, by the broker's clock.")


def find_by_id(bridge: Bridge, id_: bytes, now_ms: int, *, with_value: bool) -> list[TimerDetail]:
    """Return the timers under an id in all partitions that are open here."""
    found = named_bodies(bridge, id_, now_ms)
    return [_detail(timer, body, id_, with_value=with_value) for timer, body in found]


def find_by_origin(
    bridge: Bridge, partition: TimerPartition, origin_offset: int, now_ms: int, *, with_value: bool
) -> list[TimerDetail]:
    """Return the timer whose first request has this offset; none if the partition is not open here."""
    owned = bridge.partitions.get(partition)
    if owned is None:
        return []
    leaving = [body for body in owned.leaving() if body.origin_offset == origin_offset]
    row = owned.store.queries.find_origin(origin_offset)
    rows = [row] if len(row) else []
    found = timers_with_bodies(partition, owned, now_ms, leaving, rows, owned.flights.with_origin(origin_offset))
    return [_detail(timer, body, None, with_value=with_value) for timer, body in found]


def _detail(timer: Timer, body: Body | None, id_: bytes | None, *, with_value: bool) -> TimerDetail:
    """`id_`: the id of the question, for a timer without body."""
    fields = timer.model_dump() | id_fields(id_ if body is None else body.id)
    if body is None:
        return TimerDetail(**fields)
    occurrence = occurrence_of(body)
    return TimerDetail(
        **fields,
        **content_fields(body, MAX_SHOWN_BYTES if with_value else 0),
        headers=[Header(name=name, value=content(value)) for name, value in unpack_headers(body.headers)],
        occurrence=None if occurrence is None else max(1, occurrence.number),
        next_due_ms=[] if occurrence is None else due_times(occurrence),
        requested_ms=body.timestamp_ms,
    )
