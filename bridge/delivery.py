"""A timer that leaves, as the record to be published: to its real topic, or to the rejected one."""

from bridge.ports import Outgoing, Record
from schemas.headers import (
    CONTROL,
    DELIVER_MS,
    ERROR,
    ERROR_DETAIL,
    KEY,
    ORIGIN,
    RELEASED_MS,
    ROLLS,
    Headers,
    Refusal,
)
from schemas.origin import Shard, origin
from timer.record import Body, unpack_headers


def deliver(shard: Shard, body: Body, now_ms: int) -> Outgoing:
    """Value, key and foreign headers as they came; ours taken off, `timer-origin` and its kin added."""
    key = body.key
    headers: list[tuple[str, bytes | None]] = []
    if not body.plain:
        for name, value in unpack_headers(body.headers):
            if name not in CONTROL:
                headers.append((name, value))
            elif name == KEY:
                key = value
    headers += (
        (ORIGIN, origin(shard, body.offset)),
        (DELIVER_MS, b"%d" % body.due_ms),
        (RELEASED_MS, b"%d" % now_ms),
        (ROLLS, b"0"),
    )
    return Outgoing(body.target, body.partition, key, body.value, headers, now_ms)


def refuse(topic: str, shard: Shard, record: Record, refusal: Refusal, now_ms: int) -> Outgoing:
    """A request that never became a timer, kept whole, with the reason behind its own headers."""
    return _rejected(topic, shard, record.offset, record.key, record.value, record.headers, refusal, now_ms)


def park(topic: str, shard: Shard, body: Body, refusal: Refusal, now_ms: int) -> Outgoing:
    """A timer that its target will not take, kept as its request was."""
    headers = unpack_headers(body.headers)
    return _rejected(topic, shard, body.offset, body.key, body.value, headers, refusal, now_ms)


def _rejected(
    topic: str,
    shard: Shard,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    refusal: Refusal,
    now_ms: int,
) -> Outgoing:
    reason: list[tuple[str, bytes | None]] = [
        (ERROR, refusal.code.encode()),
        (ERROR_DETAIL, refusal.detail.encode()),
        (ORIGIN, origin(shard, offset)),
    ]
    return Outgoing(topic, -1, key, value, [*headers, *reason], now_ms)
