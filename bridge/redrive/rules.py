"""Which records of the rejected topic are sent again, in which order, and how it is remembered.

    rejected record    request headers | timer-error | timer-error-detail | timer-origin
    sent again         request headers                        same key, value and partition of its timer topic
    mark               {"parked": "timer.rejected/3/17", ...} in the same transaction: what is marked is not sent again

1. What was undeliverable is sent again unless `codes` say otherwise. What its sender did wrong would only be refused
   again, so it has to be asked for by its code.
2. Requests with one id leave in the order in which they were sent, so that the last one stands; all others in the order
   in which they were parked.
3. A mark names the record's place, and what stood there: a topic that was deleted and made anew is a new one.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.ports import Record
from schemas.headers import (
    BARE,
    ERROR,
    ERROR_DETAIL,
    KEY,
    ORIGIN,
    ROLLS,
    TOPIC,
    Cancel,
    Claim,
    Headers,
    Rules,
    Schedule,
)
from schemas.origin import Shard
from schemas.profiles import read

UNDELIVERABLE = frozenset({"unknown-topic", "unknown-partition", "not-authorized", "too-large"})
"""Codes that speak about the target: once that is mended, the same request does well."""

_REASON = (ERROR, ERROR_DETAIL, ORIGIN)


class Parked(NamedTuple):
    """What is to be known of a rejected record. `place` is its partition there; `size` is of key, value and headers."""

    place: Shard
    offset: int
    parked_ms: int
    code: str
    shard: Shard
    """Where it was a request: what it is sent to again."""
    origin: int
    target: str
    """The real topic, empty where the request does not tell."""
    id: bytes | None
    size: int
    is_bare: bool = False
    """Too large for the rejected topic: key, value and headers stand where it was a request."""

    @property
    def told_origin(self) -> str:
        return f"{self.shard}/{self.origin}"


def parked(place: Shard, record: Record, rules: Mapping[str, Rules]) -> Parked | None:
    """None where no bridge has put it there. `rules`: by timer topic, the first for all others."""
    reason = record.headers[-len(_REASON) :]
    if tuple(name for name, _ in reason) != _REASON:
        return None
    code, _, told = ((value or b"").decode(errors="replace") for _, value in reason)
    topic, _, rest = told.partition("/")
    partition, _, offset = rest.partition("/")
    if not (code and topic and is_number(partition) and is_number(offset)):
        return None
    key, headers = request_of(record, code)
    own_rules = rules.get(topic, next(iter(rules.values())))
    asked = read(headers, record.timestamp_ms, own_rules, key, record.value)
    schedule = asked.schedule if isinstance(asked, Claim) else asked
    target = schedule.target if isinstance(schedule, Schedule) else (dict(headers).get(TOPIC) or b"").decode("latin-1")
    return Parked(
        place,
        record.offset,
        record.timestamp_ms,
        code,
        Shard(topic, int(partition)),
        int(offset),
        target,
        schedule.id if isinstance(schedule, Schedule | Cancel) else None,
        _size(record),
        (dict(reason)[ERROR_DETAIL] or b"").endswith(BARE),
    )


def request_of(record: Record, code: str) -> tuple[bytes | None, list[tuple[str, bytes | None]]]:
    """Key and headers to be sent again.

    The copy of a request in another product's words says by a null `timer-key` that it leaves without a key, which no
    request of ours may say: it has none then.
    """
    headers = request_headers(record.headers, code)
    if code == "bad-header" or (KEY, None) not in headers:
        return record.key, headers
    return None, [header for header in headers if header != (KEY, None)]


def request_headers(headers: Headers, code: str) -> list[tuple[str, bytes | None]]:
    """Those of the request that was parked: without the reason, and without what a rolled copy told of itself.

    Nor what one told that no journal knows, as progress was adopted since, or a forger: as a copy it would be refused
    again. What is on a `bad-header` is its sender's.
    """
    kept = list(headers[: -len(_REASON)])
    if code != "bad-header" and [name for name, _ in kept[-2:]] == [ORIGIN, ROLLS]:
        del kept[-2:]
    return kept


@dataclass(frozen=True, slots=True)
class Selection:
    """Which ones. Empty sets and None: all; but without `codes`, only what is `UNDELIVERABLE`. Times are of parking."""

    timer_topics: frozenset[str]
    codes: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    from_ms: int | None = None
    to_ms: int | None = None

    def takes(self, record: Parked) -> bool:
        return (
            record.shard.topic in self.timer_topics
            and record.code in (self.codes or UNDELIVERABLE)
            and (not self.targets or record.target in self.targets)
            and (not self.origins or record.told_origin in self.origins)
            and (self.from_ms is None or record.parked_ms >= self.from_ms)
            and (self.to_ms is None or record.parked_ms < self.to_ms)
        )


class PlanRow(NamedTuple):
    """How many records of one code and real topic: all, those sent again before, those to be sent now."""

    code: str
    topic: str
    parked: int
    redriven: int
    selected: int


class RejectedLog(Protocol):
    """What stands in topics, read_committed."""

    def bounds(self, shard: Shard) -> tuple[int, int]: ...

    def requests(self, shard: Shard, from_offset: int, to_offset: int) -> Iterator[list[Record]]: ...


def marks_on(topic: str, partitions: int | None, log: RejectedLog) -> frozenset[bytes]:
    """Of all that was sent again. `partitions`: None where there is no such topic, so nothing was."""
    places = [Shard(topic, number) for number in range(partitions or 0)]
    return frozenset(mark for place in places for mark in marks_in(log, place, *log.bounds(place)))


def marks_in(log: RejectedLog, place: Shard, from_offset: int, to_offset: int) -> Iterator[bytes]:
    for records in log.requests(place, from_offset, to_offset):
        yield from (record.value for record in records if record.value is not None)


class RedrivePlan:
    """What a look at the rejected topic comes to; `marks` are those of what was sent again before."""

    def __init__(self, selection: Selection, marks: Container[bytes]) -> None:
        self._selection = selection
        self._marks = marks
        self._parked: Counter[tuple[str, str]] = Counter()
        self._redriven: Counter[tuple[str, str]] = Counter()
        self.selected: list[Parked] = []
        self.other_topics: Counter[str] = Counter()
        """Records of timer topics that were not asked for."""
        self.foreign = 0
        """Records that no bridge has put there."""
        self.bare: list[Parked] = []
        """Those that cannot be sent from there."""

    def add(self, record: Parked | None) -> None:
        if record is None:
            self.foreign += 1
            return
        if record.shard.topic not in self._selection.timer_topics:
            self.other_topics[record.shard.topic] += 1
            return
        kind = (record.code, record.target)
        self._parked[kind] += 1
        if mark_of(record) in self._marks:
            self._redriven[kind] += 1
        elif self._selection.takes(record):
            (self.bare if record.is_bare else self.selected).append(record)

    def cut(self, limit: int | None) -> None:
        """At most `limit` of them, in the order in which they leave."""
        self.selected = in_order(self.selected)[:limit]

    def rows(self) -> list[PlanRow]:
        selected = Counter((record.code, record.target) for record in self.selected)
        return [PlanRow(*kind, n, self._redriven[kind], selected[kind]) for kind, n in sorted(self._parked.items())]


def in_order(records: Iterable[Parked]) -> list[Parked]:
    """By the time of parking, but none before an older request with its id, whatever the clocks were."""
    latest_ms: dict[tuple[Shard, bytes], int] = {}
    placed: list[tuple[int, Parked]] = []
    for record in sorted(records, key=lambda each: (each.shard, each.origin)):
        at_ms = record.parked_ms
        if record.id is not None:
            at_ms = latest_ms[record.shard, record.id] = max(at_ms, latest_ms.get((record.shard, record.id), at_ms))
        placed.append((at_ms, record))
    placed.sort(key=lambda each: (each[0], each[1].shard, each[1].origin))
    return [record for _, record in placed]


def chunks(records: Iterable[Parked], *, most: int, most_bytes: int) -> Iterator[list[Parked]]:
    """In order, each no longer than `most` records and, but for a single one, no larger than `most_bytes`."""
    chunk: list[Parked] = []
    room = most_bytes
    for record in records:
        if chunk and (len(chunk) == most or record.size > room):
            yield chunk
            chunk, room = [], most_bytes
        chunk.append(record)
        room -= record.size
    if chunk:
        yield chunk


def mark_key(record: Parked) -> bytes:
    return f"{record.place}/{record.offset}".encode()


def mark_of(record: Parked) -> bytes:
    """The value of the record's mark: the same bytes for the same record."""
    mark = {"v": 1, "parked": mark_key(record).decode(), "parked_ms": record.parked_ms, "origin": record.told_origin}
    return json.dumps(mark).encode()


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
