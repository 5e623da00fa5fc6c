"""One timer in full: with key and headers of its request, and on request its value.

A timer is found by its id through the index, which is fast, or by the offset of its request, for which the partition's
log is scanned step by step. Bytes that are not UTF-8 are given in base64.
"""

import base64
from codecs import utf_8_decode
from collections.abc import Callable

from pydantic import BaseModel, Field

from bridge.loop.loop import Bridge
from bridge.query.search import NamedTimer, id_fields
from bridge.query.summary import Timer, named_bodies, timers_with_bodies
from bridge.release.owned_partition import OwnedPartition
from schemas.origin import Shard
from timer.format.body import Body, unpack_headers
from timer.format.unit import Rows

MAX_SHOWN_BYTES = 64 << 10
"""Most bytes of a value that are shown."""


class Content(BaseModel):
    """Bytes of a message: `text`, or `base64` if they are not UTF-8."""

    bytes: int
    text: str | None = None
    base64: str | None = None
    is_cut: bool = Field(default=False, description="Only the beginning is shown.")


class Header(BaseModel):
    """`value` null: the header is null."""

    name: str
    value: Content | None


class TimerDetail(NamedTimer):
    """A timer with the content of its request. While it is `rolling`, only the id is known."""

    key: Content | None = None
    headers: list[Header] = Field(default_factory=list)
    requested_ms: int | None = Field(default=None, description="When this copy came, by the broker's clock.")
    value_bytes: int | None = Field(default=None, description="Null: the value is null.")
    value: Content | None = Field(default=None, description="Only if it was asked for.")


class Found(BaseModel):
    """At most one timer for each partition."""

    at_ms: int
    timers: list[TimerDetail]


def content(raw: bytes | None) -> Content | None:
    """Return the bytes as text or base64, at most the first MAX_SHOWN_BYTES."""
    if raw is None:
        return None
    shown, is_cut = raw[:MAX_SHOWN_BYTES], len(raw) > MAX_SHOWN_BYTES
    try:
        text, _ = utf_8_decode(shown, "strict", not is_cut)  # the cut may be inside a character
    except UnicodeDecodeError:
        return Content(bytes=len(raw), base64=base64.b64encode(shown).decode(), is_cut=is_cut)
    return Content(bytes=len(raw), text=text, is_cut=is_cut)


def find_by_id(bridge: Bridge, id_: bytes, now_ms: int, *, with_value: bool) -> Found:
    """Return the timers under an id in all partitions that are open here."""
    found = named_bodies(bridge, id_, now_ms)
    return Found(at_ms=now_ms, timers=[_detail(timer, body, id_, with_value=with_value) for timer, body in found])


class OriginSearch:
    """Find the timer whose first request has this offset, one step after each turn, as search.Search does."""

    def __init__(self, shard: Shard, origin: int, *, with_value: bool) -> None:
        self.found: Found | None = None
        """None if the partition is not open here."""
        self._shard = shard
        self._origin = origin
        self._with_value = with_value
        self._owned: OwnedPartition | None = None
        self._next: int | None = 0

    def step(self, bridge: Bridge, now_ms: int, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Do the next step. True if the search is done. Raises CorruptStoreError."""
        owned = bridge.shards.get(self._shard)
        if owned is None:
            return True
        if owned is not self._owned:  # opened again: its units are others
            self._owned, self._next = owned, 0
        while self._next is not None:
            scanned, self._next = owned.store.queries.list_pending(self._next)
            rows = scanned[scanned["origin"] == self._origin]
            if len(rows):
                self._finish(owned, now_ms, [rows[:1]])
                return True
            if self._next is not None and should_stop():
                return False
        self._finish(owned, now_ms, [])
        return True

    def _finish(self, owned: OwnedPartition, now_ms: int, rows: list[Rows]) -> None:
        leaving = [body for body in owned.leaving() if body.origin == self._origin]
        rolling = [flight for flight in owned.flights.alive() if flight.origin == self._origin]
        found = timers_with_bodies(self._shard, owned, now_ms, leaving, rows, rolling)
        timers = [_detail(timer, body, None, with_value=self._with_value) for timer, body in found]
        self.found = Found(at_ms=now_ms, timers=timers)


def _detail(timer: Timer, body: Body | None, id_: bytes | None, *, with_value: bool) -> TimerDetail:
    """`id_`: the id of the question, for a timer without body."""
    fields = timer.model_dump() | id_fields(id_ if body is None else body.id)
    if body is None:
        return TimerDetail(**fields)
    return TimerDetail(
        **fields,
        key=content(body.key),
        headers=[Header(name=name, value=content(value)) for name, value in unpack_headers(body.headers)],
        requested_ms=body.timestamp_ms,
        value_bytes=None if body.value is None else len(body.value),
        value=content(body.value) if with_value else None,
    )
