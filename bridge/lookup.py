"""One timer, told whole: what lives under an id, with the headers of its request, and its value where it is asked for.

By the index of ids, so however many are pending; bytes that are no UTF-8 are told in base64.
"""

import base64
from codecs import utf_8_decode

from pydantic import BaseModel, Field

from bridge.listing import NamedTimer, id_fields
from bridge.pending import Timer, named_bodies
from bridge.turn import Bridge
from timer.record import Body, unpack_headers

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


def content(raw: bytes | None, most: int = MOST_SHOWN_BYTES) -> Content | None:
    """At most its first `most` bytes."""
    if raw is None:
        return None
    shown, is_cut = raw[:most], len(raw) > most
    try:
        text, _ = utf_8_decode(shown, "strict", not is_cut)  # a character may be cut in two
    except UnicodeDecodeError:
        return Content(bytes=len(raw), base64=base64.b64encode(shown).decode(), is_cut=is_cut)
    return Content(bytes=len(raw), text=text, is_cut=is_cut)


def look_up(bridge: Bridge, id_: bytes, now_ms: int, *, with_value: bool) -> Found:
    """In the shards that are ours and open."""
    found = named_bodies(bridge, id_, now_ms)
    return Found(at_ms=now_ms, timers=[_detail(timer, body, id_, with_value=with_value) for timer, body in found])


def _detail(timer: Timer, body: Body | None, id_: bytes, *, with_value: bool) -> TimerDetail:
    told = timer.model_dump() | id_fields(id_)
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
