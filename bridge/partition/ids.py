"""One batch of requests: its outcome, and the timers that are pending under its names, wherever they are.

    in the store         -> a delete mark
    in this batch        -> taken out of it: not stored yet, overdue, or about to be moved
    a copy in flight     -> its origin is named as ended; the copy is dropped when it is read

A name is an id, or the offset of a timer's first request (origin offset) in a batch of one request by origin. A
request with an id ends every earlier timer with that id, so at most one is pending at a time.

RecentlyDelivered: ids whose last timer was delivered within the last hour. A cancel of one is `too-late`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from bridge.partition.copies import CopiesInFlight
from bridge.partition.decisions import NewDecisions
from bridge.partition.request import next_due_ms
from schemas.journal import CopyInFlight
from timer.format.batch import Batch
from timer.format.body import Body, frame_size
from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS

_MOST = 100_000


class RecentlyDelivered:
    """The newest 100,000 ids, in the order of delivery. Kept in memory as long as the store is open.

    A hash of 8 bytes stands for each id: 17 MB in all, however long the ids are. If two hashes are equal, the cancel of
    an unknown id is `too-late` instead of `not-found`.
    """

    def __init__(self) -> None:
        self._at_ms: dict[int, int] = {}

    def add(self, ids: Iterable[bytes], now_ms: int) -> None:
        for id_ in ids:
            key = hash(id_)
            self._at_ms.pop(key, None)
            self._at_ms[key] = now_ms
        while len(self._at_ms) > _MOST:
            del self._at_ms[next(iter(self._at_ms))]

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove ids whose later timer has ended, or could not be delivered."""
        for id_ in ids:
            self._at_ms.pop(hash(id_), None)

    def has(self, id_: bytes, now_ms: int) -> bool:
        at_ms = self._at_ms.get(hash(id_))
        return at_ms is not None and now_ms - at_ms <= HOUR_MS


Name: TypeAlias = bytes | int
"""An id, or an origin offset."""


class PendingTimers(Protocol):
    """The part of the store's queries that intake needs."""

    def find(self, ids: list[bytes]) -> Mapping[bytes, Rows]: ...

    def find_origin(self, origin_offset: int) -> Rows: ...

    def bodies(self, rows: Rows) -> list[Body]: ...

    @property
    def targets(self) -> int: ...

    def has_target(self, target: str) -> bool: ...


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
    """The outcome of one batch of requests, and the timers that are pending under its names, with what it has changed.

    names: ids, or one origin offset.
    """

    def __init__(
        self, queries: PendingTimers, flights: CopiesInFlight, names: Sequence[Name], overdue: Mapping[int, Body]
    ) -> None:
        """overdue: timers of earlier batches that leave at once."""
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
        self._landed: set[tuple[int, int]] = set()
        self._ended: set[int] = set()
        for offset, body in overdue.items():
            self._put(body, Place.OVERDUE, offset)

    # -- changes

    def note_decided(self, count: int) -> None:
        """Note how many requests of its batch are decided."""
        self.count = count

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
        self._landed.add((flight.origin_offset, flight.rolls))
        self.decisions.landed.append((flight.origin_offset, flight.rolls))

    def end(self, name: Name) -> list[tuple[int, int | None]]:
        """End the timers under `name`. Return their origin offsets and, if known, due times."""
        body = None if isinstance(name, bytes) else self.body(name)
        id_ = name if isinstance(name, bytes) else body and body.id
        copies = self.copies_in_flight(name)
        ended = self.take_out(name) + [(flight.origin_offset, flight.due_ms) for flight in copies]
        if ended and id_:
            self.ended_ids.add(id_)
        for origin_offset, _ in ended:
            self._ended.add(origin_offset)
            self.decisions.ended.append(origin_offset)
        return ended

    def take_out(self, name: Name) -> list[tuple[int, int | None]]:
        """Take the timer out of the store or of this batch. Return its origin offset and, if known, its due time."""
        taken_out: list[tuple[int, int | None]] = []
        row = self._stored.pop(name, None)
        if row is not None:
            self.batch.end(row)
            taken_out.append((int(row["origin"][0]), None))
        found = self._in_batch.pop(name, None)
        if found is not None:
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
        return [flight for flight in found if not self.has_landed(flight) and flight.origin_offset not in self._ended]

    def has_landed(self, flight: CopyInFlight) -> bool:
        return (flight.origin_offset, flight.rolls) in self._landed

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
        if body is None:
            return self.copies_in_flight(name)[0].due_ms
        if found is not None and found.place is Place.MOVED:
            return found.at
        return next_due_ms(body)

    def is_for(self, id_: bytes, target: str) -> bool:
        """True if a timer for this target is pending under the id."""
        body = self.body(id_)
        if body is not None:
            return body.target == target
        return any(flight.target == target for flight in self.copies_in_flight(id_))

    def stored_bytes(self, name: Name | None) -> int:
        """Return the bytes that the store will hold of the timer; 0 if none, or if it is a copy."""
        if name is None:
            return 0
        found = self._in_batch.get(name)
        in_batch = 0 if found is None or found.place is Place.MOVED else frame_size(found.body)
        return in_batch + (int(self._stored[name]["body_size"][0]) if name in self._stored else 0)
