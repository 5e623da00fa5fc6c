"""Build the records of a release: deliveries, rejected records and receipts.

If the broker refuses a record, its type says where else it may go: a `Delivery` to the rejected topic, a `Rejection`
there without its payload, any other record nowhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bridge.intake.decisions import ReceiptDraft
from bridge.intake.request import absolute_headers, headers_without_profile, occurrence_of, sent_headers
from bridge.ports import Outgoing, Record
from schemas.headers import (
    BARE,
    CONTROL,
    DELIVER_MS,
    ERROR,
    ERROR_DETAIL,
    EXPIRE_MS,
    KEY,
    OCCURRENCE,
    ORIGIN,
    RECURRENCE,
    RELEASED_MS,
    ROLLS,
    Headers,
    Refusal,
)
from schemas.origin import Shard, origin
from schemas.receipts import Receipt, printable
from timer.format.body import Body, unpack_headers

_REASON_HEADERS = 3
"""Number of headers that give the reason of a rejection."""
_TOO_LARGE = b"; too large for this topic"
_EXPIRES = EXPIRE_MS.encode()


@dataclass(slots=True, eq=False)
class Delivery(Outgoing):
    """A timer's record for its target topic."""

    origin_offset: int


@dataclass(slots=True, eq=False)
class Rejection(Outgoing):
    """A record for the rejected topic: a timer that its target does not take, or a refused request."""

    origin_offset: int


def expired(body: Body, now_ms: int) -> Refusal | None:
    """Return why a timer that leaves now has expired, or None."""
    if body.plain or _EXPIRES not in body.headers:
        return None
    expire_ms = dict(unpack_headers(body.headers)).get(EXPIRE_MS)
    if expire_ms is None or now_ms < int(expire_ms):
        return None
    return Refusal("expired", f"not released before {EXPIRE_MS} {int(expire_ms)}: send it again if it is still of use")


def deliveries(shard: Shard, bodies: Iterable[Body], now_ms: int) -> list[Outgoing]:
    """Return the delivery of each timer: key, value, the sender's own headers, then four of ours, five if it recurs.

    Headers are made once for the release time, equal due times in a row, and `timer-rolls: 0`: a batch is large.
    """
    origin_prefix = origin(shard, 0)[:-1]
    released, not_rolled, last_ms, due = (RELEASED_MS, b"%d" % now_ms), (ROLLS, b"0"), -1, (DELIVER_MS, b"")
    records: list[Outgoing] = []
    for body in bodies:
        target, partition, _, _, due_ms, key, value, _, plain, offset, rolls, _ = body
        if due_ms != last_ms:
            last_ms, due = due_ms, (DELIVER_MS, b"%d" % due_ms)
        headers: list[tuple[str, bytes | None]] = [
            (ORIGIN, origin_prefix + b"%d" % offset),
            due,
            released,
            (ROLLS, b"%d" % rolls) if rolls else not_rolled,
        ]
        if not plain:
            theirs = headers_without_profile(body)
            key = dict(theirs).get(KEY, key)
            if occurrence := occurrence_of(body):
                headers.append((OCCURRENCE, b"%d" % occurrence.number))
            headers[:0] = [header for header in theirs if header[0] not in CONTROL]
        records.append(Delivery(target, partition, key, value, headers, now_ms, offset))
    return records


def refuse(topic: str, shard: Shard, record: Record, refusal: Refusal, now_ms: int) -> Rejection:
    """Return the rejected record of a request that was refused at intake: the request, then the reason headers."""
    return _rejected(topic, shard, record.offset, record.key, record.value, record.headers, refusal, now_ms)


def park(topic: str, shard: Shard, body: Body, refusal: Refusal, now_ms: int) -> Rejection:
    """Return the rejected record of a timer that its target refuses: its request, then the reason headers.

    Of a recurring timer that is a request for this occurrence alone: the timer itself goes on.
    """
    occurrence = occurrence_of(body)
    if occurrence is None:
        headers = sent_headers(body)
    else:
        headers = [each for each in absolute_headers(body, body.due_ms) if each[0] not in RECURRENCE]
        headers.append((OCCURRENCE, b"%d" % occurrence.number))
    return _rejected(topic, shard, body.origin_offset, body.key, body.value, headers, refusal, now_ms)


def bare(rejected: Rejection) -> Rejection:
    """Return a rejected record that was too large, without the request, which is found by its `timer-origin`."""
    (error, code), (name, detail), place = rejected.headers[-_REASON_HEADERS:]
    headers = [(error, code), (name, (detail or b"") + _TOO_LARGE + BARE), place]
    return replace(rejected, key=None, value=None, headers=headers)


def receipt(topic: str, shard: Shard, draft: ReceiptDraft, now_ms: int) -> Outgoing:
    """Return the receipt of a request. Its key is the id, or else the origin."""
    about = origin(shard, draft.origin_offset) if draft.origin_offset >= 0 else None
    said = Receipt(
        kind=draft.kind,
        at_ms=now_ms,
        request=origin(shard, draft.request).decode(),
        origin=about.decode() if about else None,
        id=printable(draft.id) if draft.id else None,
        due_ms=draft.due_ms,
        code=draft.code,
    )
    return Outgoing(topic, -1, draft.id or about, said.to_bytes(), [], now_ms)


def _rejected(
    topic: str,
    shard: Shard,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    refusal: Refusal,
    now_ms: int,
) -> Rejection:
    reason: list[tuple[str, bytes | None]] = [
        (ERROR, refusal.code.encode()),
        (ERROR_DETAIL, refusal.detail.encode()),
        (ORIGIN, origin(shard, offset)),
    ]
    return Rejection(topic, -1, key, value, [*headers, *reason], now_ms, offset)
