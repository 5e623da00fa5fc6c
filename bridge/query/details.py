"""One timer, told whole: what lives under an id, with the headers of its request, and its value where it is asked for.

By the index of ids, so however many are pending. By the place of its request, where it has no id: then its shard's log
is looked through, bit by bit. Bytes that are no UTF-8 are told in base64.
"""

import base64
from codecs import utf_8_decode
from collections.abc import Callable

from pydantic import BaseModel, Field

from bridge.loop.loop import Bridge
from bridge.query.search import NamedTimer, id_fields
from bridge.query.summary import Timer, named_bodies, told_of
from bridge.release.partition import OwnedPartition
from schemas.origin import Shard
from timer.format.body import Body, unpack_headers
from timer.format.unit import Rows

MOST_SHOWN_BYTES = 64 << 10
"""Of a value."""


class Content(BaseModel):
    """Some bytes of a sender's: `text`, or `base64` where they are no UTF-8."""

    bytes: int
    text: str | None = None
    base64: str | None = None
    is_cut: bool = Field(default=False, description="Only the beginning is told.")


class Header(BaseModel):
    """`value` null: the header is null."""

    name: str
    value: Content | None


class TimerDetail(NamedTimer):
    """A timer with what its request carried. While it is `rolling`, only its id is known of that."""

    key: Content | None = None
    headers: list[Header] = Field(default_factory=list)
    requested_ms: int | None = Field(default=None, description="When this copy came, by the broker's clock.")
    value_bytes: int | None = Field(default=None, description="Null: the value is null.")
    value: Content | None = Field(default=None, description="Where it was asked for.")


class Found(BaseModel):
    """One timer for each shard at the most."""

    at_ms: int
    timers: list[TimerDetail]


def content(raw: bytes | None) -> Content | None:
    """At most its first MOST_SHOWN_BYTES."""
    if raw is None:
        return None
    shown, is_cut = raw[:MOST_SHOWN_BYTES], len(raw) > MOST_SHOWN_BYTES
    try:
        text, _ = utf_8_decode(shown, "strict", not is_cut)  # a character may be cut in two
    except UnicodeDecodeError:
        return Content(bytes=len(raw), base64=base64.b64encode(shown).decode(), is_cut=is_cut)
    return Content(bytes=len(raw), text=text, is_cut=is_cut)


def look_up(bridge: Bridge, id_: bytes, now_ms: int, *, with_value: bool) -> Found:
    """In the shards that are ours and open."""
    found = named_bodies(bridge, id_, now_ms)
    return Found(at_ms=now_ms, timers=[_detail(timer, body, id_, with_value=with_value) for timer, body in found])


class OriginSearch:
    """The timer whose first request has this offset. As search.Search: a step after each turn until done."""

    def __init__(self, shard: Shard, origin: int, *, with_value: bool) -> None:
        self.found: Found | None = None
        """None: the shard is not open here."""
        self._shard = shard
        self._origin = origin
        self._with_value = with_value
        self._owned: OwnedPartition | None = None
        self._next: int | None = 0

    def go_on(self, bridge: Bridge, now_ms: int, is_over: Callable[[], bool] = lambda: False) -> bool:
        """True: it is done. Raises CorruptStoreError."""
        owned = bridge.shards.get(self._shard)
        if owned is None:
            return True
        if owned is not self._owned:  # opened anew: its units are others
            self._owned, self._next = owned, 0
        while self._next is not None:
            run, self._next = owned.store.list_pending(self._next)
            rows = run[run["origin"] == self._origin]
            if len(rows):
                self._tell(owned, now_ms, [rows[:1]])
                return True
            if self._next is not None and is_over():
                return False
        self._tell(owned, now_ms, [])
        return True

    def _tell(self, owned: OwnedPartition, now_ms: int, rows: list[Rows]) -> None:
        leaving = [body for body in owned.leaving() if body.origin == self._origin]
        rolling = [flight for flight in owned.flights.alive() if flight.origin == self._origin]
        told = told_of(self._shard, owned, now_ms, leaving, rows, rolling)
        timers = [_detail(timer, body, None, with_value=self._with_value) for timer, body in told]
        self.found = Found(at_ms=now_ms, timers=timers)


def _detail(timer: Timer, body: Body | None, id_: bytes | None, *, with_value: bool) -> TimerDetail:
    """`id_`: as it was asked for."""
    told = timer.model_dump() | id_fields(id_ if body is None else body.id)
    if body is None:
        return TimerDetail(**told)
    return TimerDetail(
        **told,
        key=content(body.key),
        headers=[Header(name=name, value=content(value)) for name, value in unpack_headers(body.headers)],
        requested_ms=body.timestamp_ms,
        value_bytes=None if body.value is None else len(body.value),
        value=content(body.value) if with_value else None,
    )
