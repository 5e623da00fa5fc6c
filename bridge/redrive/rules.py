"""Rules of a redrive: the rejected records that are sent again, their order, and how that is recorded.

    rejected record    request headers | timer-error | timer-error-detail | timer-origin
    sent again         request headers                        same key, value and partition of its timer topic
    marker             {"parked": "timer.rejected/3/17", ...} in the same transaction: a marked record is not sent again

1. By default, undeliverable requests are sent again. A request with a mistake of its sender would be refused again, so
   it has to be selected by its code.
2. Requests with the same id are sent in their original order, so that the last one wins; all others in the order in
   which they were parked.
3. A marker names the record's offset and its content, so markers of a deleted topic do not match its successor.
"""

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from bridge.ports import Record
from kafka_timer import headers as names
from kafka_timer.headers import Cancel, Claim, Schedule
from kafka_timer.origin import TimerPartition
from schemas.profiles import read
from schemas.rules import Rules

UNDELIVERABLE = frozenset({"unknown-topic", "unknown-partition", "not-authorized", "too-large"})
"""Codes that are about the target: once the target is fixed, the same request succeeds."""

KeyAndHeaders: TypeAlias = tuple[bytes | None, list[tuple[str, bytes | None]]]
_REASON = (names.ERROR, names.ERROR_DETAIL, names.ORIGIN)


class Parked(NamedTuple):
    """A rejected record. `place`: its partition on the rejected topic. `size`: bytes of key, value and headers."""

    place: TimerPartition
    offset: int
    parked_ms: int
    code: str
    partition: TimerPartition
    """The partition of the request, which it is sent to again."""
    origin: int
    target: str
    """The target topic, empty if the request names none."""
    id: bytes | None
    size: int
    is_bare: bool = False
    """True if it was too large for the rejected topic: key, value and headers are only in the request."""

    @property
    def name(self) -> str:
        return f"{self.place}/{self.offset}"

    @property
    def origin_text(self) -> str:
        return f"{self.partition}/{self.origin}"


def parked(place: TimerPartition, record: Record, rules: Mapping[str, Rules]) -> Parked | None:
    """Parse a rejected record; None if no bridge wrote it. `rules`: by timer topic, the first is for all others."""
    reason = record.headers[-len(_REASON) :]
    if tuple(name for name, _ in reason) != _REASON:
        return None
    code, _, origin_text = ((value or b"").decode(errors="replace") for _, value in reason)
    topic, _, rest = origin_text.partition("/")
    partition, _, offset = rest.partition("/")
    if not (code and topic and is_number(partition) and is_number(offset)):
        return None
    key, headers = request_of(record, code)
    own_rules = rules.get(topic, next(iter(rules.values())))
    parsed = read(headers, record.timestamp_ms, own_rules, key, record.value)
    schedule = parsed.schedule if isinstance(parsed, Claim) else parsed
    asked = (dict(headers).get(names.TOPIC) or b"").decode("latin-1")
    return Parked(
        place,
        record.offset,
        record.timestamp_ms,
        code,
        TimerPartition(topic, int(partition)),
        int(offset),
        schedule.target if isinstance(schedule, Schedule) else asked,
        schedule.id if isinstance(schedule, Schedule | Cancel) else None,
        _size(record),
        (dict(reason)[names.ERROR_DETAIL] or b"").endswith(names.LEFT),
    )


def request_of(record: Record, code: str) -> KeyAndHeaders:
    """Return key and headers of the parked request, without the reason and without the headers of a rolled copy.

    A copy that the journal does not know (progress was adopted since, or it is forged) would be refused again, so it is
    sent as a request. On a `bad-header` these headers are the sender's, so they stay. The number of an occurrence is
    removed too, and its id: its request is for this one alone, and by the id it would replace the others.
    """
    kept = list(record.headers[: -len(_REASON)])
    if code == "bad-header":
        return record.key, kept
    if kept and kept[-1][0] == names.OCCURRENCE:
        kept = [header for header in kept[:-1] if header[0] != names.ID]
    if [name for name, _ in kept[-2:]] == [names.ORIGIN, names.ROLLS]:
        del kept[-2:]
    return sendable(record.key, kept)


def sendable(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> KeyAndHeaders:
    """Return key and headers as a request may have them.

    In a rolled copy of a request in another product's headers, a null `timer-key` means delivery without a key. A
    request may not carry it, so the request gets a null key instead.
    """
    if (names.KEY, None) not in headers:
        return key, headers
    return None, [header for header in headers if header != (names.KEY, None)]


@dataclass(frozen=True, slots=True)
class RedriveFilter:
    """A filter. Empty sets and None match all, but without `codes` only `UNDELIVERABLE`.

    from_ms, to_ms: when the record was parked. places: partition and offset on the rejected topic: these records alone,
    whatever their code; an empty set matches none.
    """

    timer_topics: frozenset[str]
    codes: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    from_ms: int | None = None
    to_ms: int | None = None
    places: frozenset[tuple[TimerPartition, int]] | None = None

    def takes(self, record: Parked) -> bool:
        if self.places is not None:
            return (record.place, record.offset) in self.places
        return (
            record.partition.topic in self.timer_topics
            and record.code in (self.codes or UNDELIVERABLE)
            and (not self.targets or record.target in self.targets)
            and (not self.origins or record.origin_text in self.origins)
            and (self.from_ms is None or record.parked_ms >= self.from_ms)
            and (self.to_ms is None or record.parked_ms < self.to_ms)
        )


class PlanRow(NamedTuple):
    """Number of records of one code and target topic: all, already sent again, and selected."""

    code: str
    topic: str
    parked: int
    redriven: int
    selected: int


class TopicReader(Protocol):
    """Reads committed records (read_committed). `partitions` returns None if there is no such topic."""

    def partitions(self, topic: str) -> int | None: ...

    def bounds(self, timer_partition: TimerPartition) -> tuple[int, int]: ...

    def requests(self, timer_partition: TimerPartition, from_offset: int, to_offset: int) -> Iterator[list[Record]]: ...


@dataclass(eq=False)
class RedrivePlan:
    """The records to send, collected from the rejected topic. `markers`: those of records sent again before."""

    _selection: RedriveFilter
    _markers: Container[bytes]

    _parked: Counter[tuple[str, str]] = field(default_factory=Counter)
    _redriven: Counter[tuple[str, str]] = field(default_factory=Counter)
    selected: list[Parked] = field(default_factory=list)
    other_topics: Counter[str] = field(default_factory=Counter)
    """Number of records of timer topics that are not selected."""
    foreign: int = 0
    """Number of records that no bridge wrote."""
    bare: list[Parked] = field(default_factory=list)
    """Selected records that cannot be sent, as they lack their contents."""
    notes: list[str] = field(default_factory=list)

    def add(self, record: Parked | None) -> None:
        if record is None:
            self.foreign += 1
            return
        if record.partition.topic not in self._selection.timer_topics:
            self.other_topics[record.partition.topic] += 1
            return
        kind = record.code, record.target
        self._parked[kind] += 1
        if marker_of(record) in self._markers:
            self._redriven[kind] += 1
        elif self._selection.takes(record):
            (self.bare if record.is_bare else self.selected).append(record)

    def limit_to(self, limit: int | None) -> None:
        """Sort the selected records in the order of sending, and keep at most `limit`."""
        self.selected = in_send_order(self.selected)[:limit]

    def rows(self) -> list[PlanRow]:
        selected = Counter((record.code, record.target) for record in self.selected)
        return [PlanRow(*kind, n, self._redriven[kind], selected[kind]) for kind, n in sorted(self._parked.items())]


def in_send_order(records: Iterable[Parked]) -> list[Parked]:
    """Sort by time of parking, but never a request before an older one with the same id, whatever the clocks say."""
    latest_ms: dict[tuple[TimerPartition, bytes | None], int] = {}
    placed: list[tuple[int, Parked]] = []
    for record in sorted(records, key=lambda each: (each.partition, each.origin)):
        own = record.partition, record.id
        at_ms = latest_ms[own] = max(record.parked_ms, 0 if record.id is None else latest_ms.get(own, 0))
        placed.append((at_ms, record))
    placed.sort(key=lambda each: (each[0], each[1].partition, each[1].origin))
    return [record for _, record in placed]


def marker_of(record: Parked) -> bytes:
    """Return the value of the record's marker: the same bytes for the same record."""
    told = {"v": 1, "parked": record.name, "parked_ms": record.parked_ms, "origin": record.origin_text}
    return json.dumps(told).encode()


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19
