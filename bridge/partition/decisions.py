"""Decisions on requests: intake makes them, a draft collects them, the journal writes them in the draft's transaction.

decide --Intake.decisions--> Draft.decisions --journal_fields--> JournalRecord --Decisions--> replay at a start

An intake finds the timers that are pending under the names of its batch, wherever they are:

    in the store         -> a delete mark
    in this batch        -> taken out of it: not stored yet, overdue, or about to be moved
    a copy in flight     -> its origin is named as ended; the copy is dropped when it is read

A name is an id, or the offset of a timer's first request (origin offset) in a batch of one request by origin. A
request with an id ends every earlier timer with that id, so at most one is pending at a time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from bridge.partition.copies import CopiesInFlight
from bridge.partition.request import next_due_ms
from bridge.ports import Record
from kafka_timer.headers import Refusal
from schemas.journal import CopyInFlight
from schemas.receipts import Kind
from timer.format.batch import Batch
from timer.format.body import Body, frame_size
from timer.format.unit import Rows
from timer.store import StoreQueries


class ReceiptDraft(NamedTuple):
    """A receipt to be written. request, origin_offset: offsets (-1: no timer). id: empty if there is none."""

    kind: Kind
    request: int
    origin_offset: int
    id: bytes
    due_ms: int | None = None
    code: str | None = None


@dataclass(slots=True)
class NewDecisions:
    """Decisions that are not written yet: the lists of schemas.journal. Numbers are origins; `dropped` are copies."""

    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    rolled: list[CopyInFlight] = field(default_factory=list)
    landed: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    receipts: list[ReceiptDraft] = field(default_factory=list)
    """Receipts of requests. Those of timers that leave are made when the draft is published."""

    def __bool__(self) -> bool:
        return self.count() > 0

    def add(self, later: "NewDecisions") -> None:
        """Add later decisions. A moved copy may be read before the draft is frozen: the journal says `landed` alone."""
        if landed := set(later.landed):
            self.forget_rolled(lambda flight: (flight.origin_offset, flight.rolls) in landed)
        for each in fields(self):
            getattr(self, each.name).extend(getattr(later, each.name))

    def forget_rolled(self, is_forgotten: Callable[[CopyInFlight], bool]) -> None:
        self.rolled = [flight for flight in self.rolled if not is_forgotten(flight)]

    def count(self) -> int:
        return sum(len(getattr(self, each.name)) for each in fields(self))

    def count_of_requests(self) -> int:
        """Return how many numbers the journal record needs for requests that were taken in."""
        return len(self.landed) + len(self.dropped) + len(self.held) + len(self.ended)

    def journal_fields(self) -> dict[str, Any]:
        """Return the fields of the same names of a JournalRecord."""
        refused = tuple(record.offset for record, _ in self.refused)
        same = ("ended", "rolled", "landed", "dropped", "held", "released")
        return {"refused": refused} | {name: tuple(getattr(self, name)) for name in same}


Name: TypeAlias = bytes | int
"""An id, or an origin offset."""


class Place(Enum):
    """The place of a timer of this batch. Its number `at`: the index in `batch`, the offset, the new due time."""

    STORED = auto()
    OVERDUE = auto()
    MOVED = auto()


class _InBatch(NamedTuple):
    place: Place
    at: int
    body: Body


class Intake:
    """The outcome of one batch of requests, and what is pending under its names, with what the batch has changed."""

    def __init__(
        self, queries: StoreQueries, flights: CopiesInFlight, names: Sequence[Name], overdue: Mapping[int, Body]
    ) -> None:
        """names: ids, or one origin offset. overdue: timers of earlier batches that leave at once."""
        self.batch = Batch()
        self.count = 0
        """Number of requests of its batch that are decided, from the first one on."""
        self.overdue = dict(overdue)
        """By offset: timers that are due and whose key has passed. They are not stored."""
        self.leaving: Counter[str] = Counter()
        """Overdue timers of this batch that use the rate of their target."""
        self.moved: dict[int, tuple[Body, int]] = {}
        """By origin offset: timers that leave the store as a copy with this new due time (ms)."""
        self.ended_ids: set[bytes] = set()
        self.decisions = NewDecisions()
        self._queries = queries
        self._flights = flights
        ids = [name for name in names if isinstance(name, bytes)]
        self._stored: dict[Name, Rows] = dict(queries.find(ids).items()) if ids else {}
        self._origin_offset = next((name for name in names if isinstance(name, int)), None)
        if self._origin_offset is not None and len(row := queries.find_origin(self._origin_offset)):
            self._stored[self._origin_offset] = row
        self._in_batch: dict[Name, _InBatch] = {}
        self._landed: set[int] = set()
        self._ended: set[int] = set()
        for offset, body in overdue.items():
            self._put(body, Place.OVERDUE, offset)

    # -- changes

    def store(self, body: Body, visit_ms: int) -> None:
        self._put(body, Place.STORED, self.batch.add(body, visit_ms))

    def hold(self, body: Body, visit_ms: int) -> None:
        """Store a timer out of order."""
        self.decisions.held.append(body.origin_offset)
        self._put(body, Place.STORED, self.batch.hold(body, visit_ms))

    def leave(self, body: Body) -> None:
        """Let the timer leave at once."""
        self.overdue[body.offset] = body
        self._put(body, Place.OVERDUE, body.offset)

    def roll(self, body: Body, due_ms: int) -> None:
        """Let the timer leave the store, whatever K says, as a copy that is due at `due_ms`."""
        self.moved[body.origin_offset] = (body, due_ms)
        self.decisions.released.append(body.origin_offset)
        self._put(body, Place.MOVED, due_ms)

    def land(self, flight: CopyInFlight) -> None:
        """Note that the copy was read."""
        self._landed.add(flight.origin_offset)
        self.decisions.landed.append((flight.origin_offset, flight.rolls))

    def end(self, name: Name) -> list[tuple[int, int | None]]:
        """End the timers under `name`. Return their origin offsets and, if known, due times."""
        body = None if isinstance(name, bytes) else self.body(name)
        id_ = name if isinstance(name, bytes) else body and body.id
        copies = self.copies_in_flight(name)
        ended = self.take_out(name) + [(flight.origin_offset, flight.due_ms) for flight in copies]
        if ended and id_:
            self.ended_ids.add(id_)
        origins = [origin_offset for origin_offset, _ in ended]
        self._ended.update(origins)
        self.decisions.ended.extend(origins)
        return ended

    def take_out(self, name: Name) -> list[tuple[int, int | None]]:
        """Take the timer out of the store or of this batch. Return its origin offset and, if known, its due time."""
        taken_out: list[tuple[int, int | None]] = []
        if (row := self._stored.pop(name, None)) is not None:
            self.batch.end(row)
            taken_out.append((int(row["origin"][0]), None))
        if (found := self._in_batch.pop(name, None)) is not None:
            self._drop(found)
            due_ms = found.at if found.place is Place.MOVED else next_due_ms(found.body)
            taken_out.append((found.body.origin_offset, due_ms))
        return taken_out

    def _put(self, body: Body, place: Place, at: int) -> None:
        name = body.origin_offset if body.origin_offset == self._origin_offset else body.id
        if name is not None:
            self._in_batch[name] = _InBatch(place, at, body)

    def _drop(self, found: _InBatch) -> None:
        match found.place:
            case Place.STORED:
                self.batch.drop(found.at)
            case Place.OVERDUE:
                del self.overdue[found.at]
            case Place.MOVED:
                del self.moved[found.body.origin_offset]

    # -- what is pending

    def is_pending(self, id_: bytes | None) -> bool:
        return id_ is not None and (id_ in self._in_batch or id_ in self._stored or bool(self.copies_in_flight(id_)))

    def copies_in_flight(self, name: Name) -> list[CopyInFlight]:
        """Return the copies that were not received or ended by this batch."""
        found = self._flights.with_id(name) if isinstance(name, bytes) else self._flights.with_origin(name)
        return [
            flight
            for flight in found
            if flight.origin_offset not in self._landed and flight.origin_offset not in self._ended
        ]

    def has_landed(self, flight: CopyInFlight) -> bool:
        return flight.origin_offset in self._landed

    def has_ended(self, origin_offset: int) -> bool:
        """True if the timer has ended while its copy was in flight."""
        return origin_offset in self._flights.ended or origin_offset in self._ended

    def body(self, name: Name) -> Body | None:
        """Return the timer; None if none is in the store or in this batch."""
        if name in self._in_batch:
            return self._in_batch[name].body
        return self._queries.bodies(self._stored[name])[0] if name in self._stored else None

    def due_ms(self, name: Name) -> int:
        """Return when the timer that is pending under `name` is due; of a recurring one, its next occurrence."""
        found, body = self._in_batch.get(name), self.body(name)
        if found is not None and found.place is Place.MOVED:
            return found.at
        return self.copies_in_flight(name)[0].due_ms if body is None else next_due_ms(body)

    def is_for(self, id_: bytes, target: str) -> bool:
        """True if a timer for this target is pending under the id."""
        if (body := self.body(id_)) is not None:
            return body.target == target
        return any(flight.target == target for flight in self.copies_in_flight(id_))

    def stored_bytes(self, name: Name | None) -> int:
        """Return the bytes that the store will hold of the timer; 0 if none, or if it is a copy."""
        if name is None:
            return 0
        found = self._in_batch.get(name)
        in_batch = 0 if found is None or found.place is Place.MOVED else frame_size(found.body)
        return in_batch + (int(self._stored[name]["body_size"][0]) if name in self._stored else 0)
