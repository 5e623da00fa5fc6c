"""Translate requests: records to what they ask for, stored timers to headers. Other modules see native requests.

record --requests_of--> Schedule | Cancel | Move | ByOrigin | Claim | Refusal
Schedule --body_of--> Body: its headers as they were sent, after the name of their profile (schemas.profiles.as_stored)
Body --native_headers--> copies: our headers in place of the profile's
     --headers_without_profile--> deliveries: the profile's removed     --sent_headers--> rejected records: as sent
     --occurrence_of--> what a recurring timer delivers next
"""

from collections.abc import Callable, Iterable, Sequence

from bridge.ports import Record, UndecodableRecord
from kafka_timer.headers import (
    BARE,
    DELIVER_MS,
    ID,
    OCCURRENCE,
    ORIGIN,
    PARTITION,
    ROLLS,
    SCHEDULED_MS,
    TIMES,
    TOPIC,
    Asked,
    ByOrigin,
    Cancel,
    Claim,
    Headers,
    Move,
    Refusal,
    Schedule,
    recurrence_of,
)
from schemas.profiles import RECURRING, as_sent, as_stored, has_profile, has_time, read, without_profile
from schemas.recurrence import Occurrence
from schemas.rules import Rules
from timer.format.body import Body, pack_headers, unpack_headers

_OF_COPIES = frozenset({ORIGIN, ROLLS, OCCURRENCE, SCHEDULED_MS})
_RECURS = tuple(name.encode() for name in RECURRING)
_WITH_ID = (Schedule, Cancel, Move)
_UNDECODABLE = Refusal("undecodable", f"the Kafka client cannot decode it, and an operator skipped it{BARE.decode()}")
MAX_HEADERS = 1024
"""Of a request (case 31 has 1,000). A copy or a delivery has a few more; Kafka's clients read up to 100,000."""
LOOK_EACH = 16
"""Requests between two looks at the clock."""
_PARSING_SHARE = 1 / 3
"""Share of a partition's time for parsing. A request that this turn parses and does not decide is parsed again."""
_COPY_EXTRA_BYTES = 512
"""Upper bound of what a copy has in addition to its request: an absolute time, its origin, its number."""


def requests_of(
    records: Iterable[Record], rules: Rules, is_over: Callable[[float], bool]
) -> list[tuple[Record, Asked]]:
    """Parse records up to the first move, with it, or until `is_over(_PARSING_SHARE)`, at least the first few.

    A request by origin is a batch of its own, so that its timer is in the store, overdue, or a copy in flight.
    """
    asked: list[tuple[Record, Asked]] = []
    for record in records:
        ask = bounded_ask_of(record, rules)
        if asked and type(ask) is ByOrigin:
            break
        asked.append((record, ask))
        if type(ask) in (Move, ByOrigin) or (not len(asked) % LOOK_EACH and is_over(_PARSING_SHARE)):
            break
    return asked


def ids_in(asked: Iterable[tuple[Record, Asked]]) -> list[bytes]:
    """Return all ids that the requests name, each once."""
    ids = {ask.id: None for _, ask in asked if isinstance(ask, _WITH_ID) and ask.id is not None}
    ids |= {ask.fallback[1]: None for _, ask in asked if isinstance(ask, Cancel) and ask.fallback is not None}
    return list(ids)


def bounded_ask_of(record: Record, rules: Rules) -> Asked:
    """Return what a new record asks for, without parsing too many headers."""
    headers = record.headers
    if len(headers) <= MAX_HEADERS or headers[-1][0] == ROLLS:  # a copy of a request of an earlier version
        return ask_of(record, rules)
    return Refusal("too-many-headers", f"it has {len(headers)} headers, the most is {MAX_HEADERS}: send fewer")


def ask_of(record: Record, rules: Rules) -> Asked:
    """Return what a record asks for, in native headers or those of a profile."""
    if type(record) is UndecodableRecord:
        return _UNDECODABLE
    return read(record.headers, record.timestamp_ms, rules, record.key, record.value)


def needing_no_room(records: Sequence[Record], rules: Rules) -> int:
    """Return how many of the first `records` store no body: cancels, and refused ones.

    A move takes a timer out of the store, and its copy would wait for room: the timer could leave later than unmoved.
    """
    for at, record in enumerate(records):
        ask = ask_of(record, rules)
        if isinstance(ask, Schedule | Claim | Move) or (isinstance(ask, ByOrigin) and ask.due_ms is not None):
            return at
    return len(records)


def body_of(record: Record, schedule: Schedule, origin_offset: int, rolls: int) -> Body:
    """Return the timer as it is stored. Raises LongNameError."""
    offset, timestamp_ms, key, value, headers = record
    target, due_ms, partition, id_, _, profile, _ = schedule
    encoded, plain = pack_headers(as_stored(headers, profile) if profile else headers)
    # As Body(...), but that is a Python function, which takes twice as long.
    return tuple.__new__(
        Body, (target, partition, offset, timestamp_ms, due_ms, key, value, encoded, plain, origin_offset, rolls, id_)
    )


def sent_headers(body: Body) -> list[tuple[str, bytes | None]]:
    """Return the headers of a stored request as its sender wrote them."""
    return as_sent(unpack_headers(body.headers))


def headers_without_profile(body: Body) -> list[tuple[str, bytes | None]]:
    return without_profile(unpack_headers(body.headers))


def native_headers(body: Body) -> list[tuple[str, bytes | None]]:
    """Return the stored request in native headers, so that no setting decides how a copy of it is read."""
    stored = unpack_headers(body.headers)
    if not has_profile(stored):
        return stored
    ours: list[tuple[str, bytes | None]] = [(TOPIC, body.target.encode())]
    if has_time(stored):
        ours.append((DELIVER_MS, b"%d" % body.due_ms))
    if body.id is not None:
        ours.append((ID, body.id))
    if body.partition >= 0:
        ours.append((PARTITION, b"%d" % body.partition))
    return [*ours, *without_profile(stored)]


def absolute_headers(body: Body, due_ms: int) -> list[tuple[str, bytes | None]]:
    """Return the native headers with `due_ms` for the time, and without those that the bridge writes on copies."""
    absolute = (DELIVER_MS, b"%d" % due_ms)
    native = [header for header in native_headers(body) if header[0] not in _OF_COPIES]
    headers = [absolute if name in TIMES else (name, value) for name, value in native]
    return headers if absolute in headers else [*headers, absolute]


def occurrence_of(body: Body) -> Occurrence | None:
    """Return what a recurring timer delivers next; None for any other timer."""
    if body.plain or not any(name in body.headers for name in _RECURS):
        return None
    headers = dict(native_headers(body))
    rule = recurrence_of(headers)
    if rule is None:
        return None
    number, scheduled = (int(headers.get(name) or -1) for name in (OCCURRENCE, SCHEDULED_MS))
    if number < 0:
        number = 0 if rule.needs_first else 1
    return Occurrence(rule, number, body.due_ms, scheduled if scheduled >= 0 else body.due_ms)


def next_due_ms(body: Body) -> int:
    """Return the due time of a timer; of a recurring one, that of its next occurrence."""
    occurrence = occurrence_of(body)
    return body.due_ms if occurrence is None else occurrence.started().due_ms


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return a lower bound of the size of a record at the broker, without the batch around it."""
    payload = len(key or b"") + len(value or b"")
    return payload + sum(len(name.encode()) + len(content or b"") + 8 for name, content in headers)


def first_copy_size(record: Record, schedule: Schedule) -> int:
    """Return an upper bound of the size of the first copy of a request."""
    return _copy_size(record.key, record.value, record.headers, schedule.id if schedule.profile else None)


def moved_copy_size(body: Body) -> int:
    """Return an upper bound of the size of the first copy of a stored request."""
    stored = unpack_headers(body.headers)
    return _copy_size(body.key, body.value, as_sent(stored), body.id if has_profile(stored) else None)


def _copy_size(key: bytes | None, value: bytes | None, sent: Headers, profile_id: bytes | None) -> int:
    """profile_id: the id of a request with a profile. It may have been the key, and its copy has it as a header."""
    return size_of(key, value, sent) + len(profile_id or b"") + _COPY_EXTRA_BYTES
