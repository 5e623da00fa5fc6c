"""The timers that are pending under the names of one batch of requests, wherever they are.

    in the store         -> a delete mark
    in this batch        -> taken out of it: not stored yet, overdue, or about to be moved
    a copy in flight     -> its origin is named as ended; the copy is dropped when it is read

A name is an id, or the offset of a timer's first request (origin offset) in a batch of one request by origin. A
request with an id ends every earlier timer with that id, so at most one is pending at a time.

RecentlyDelivered: ids whose last timer was delivered within the last hour. A cancel of one is `too-late`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from bridge.partition.copies import CopiesInFlight
from bridge.partition.decisions import Intake
from schemas.journal import CopyInFlight
from timer.format.body import Body, frame_size
from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS

_MOST = 100_000


class RecentlyDelivered:
    """The newest 100,000 ids, in the order of delivery. Kept in memory as long as the store is open."""

    def __init__(self) -> None:
        self._at_ms: dict[bytes, int] = {}

    def add(self, ids: Iterable[bytes], now_ms: int) -> None:
        for id_ in ids:
            self._at_ms.pop(id_, None)
            self._at_ms[id_] = now_ms
        while len(self._at_ms) > _MOST:
            del self._at_ms[next(iter(self._at_ms))]

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove ids whose later timer has ended, or could not be delivered."""
        for id_ in ids:
            self._at_ms.pop(id_, None)

    def has(self, id_: bytes, now_ms: int) -> bool:
        at_ms = self._at_ms.get(id_)
        return at_ms is not None and now_ms - at_ms <= HOUR_MS


Name: TypeAlias = bytes | int
"""An id, or an origin offset."""


class PendingTimers(Protocol):
    """The part of the store's queries that intake needs."""

    def find(self, ids: list[bytes]) -> Mapping[bytes, Rows]: ...

    def find_origin(self, origin_offset: int) -> Rows: ...

    def bodies(self, rows: Rows) -> list[Body]: ...


class Place(Enum):
    """The place of a timer of this batch. Its number `at`: the index in `batch`, the offset, the new due time."""

    STORED = auto()
    OVERDUE = auto()
    MOVED = auto()


class _InBatch(NamedTuple):
    place: Place
    at: int
    body: Body


class PendingIds:
    """Answers for each name, and takes timers out of `intake` again. For one batch."""

    def __init__(
        self,
        queries: PendingTimers,
        flights: CopiesInFlight,
        ids: list[bytes],
        intake: Intake,
        origin_offset: int | None = None,
    ) -> None:
        self._queries = queries
        self._flights = flights
        self._intake = intake
        self._origin_offset = origin_offset
        self._stored: dict[Name, Rows] = dict(queries.find(ids).items()) if ids else {}
        if origin_offset is not None and len(row := queries.find_origin(origin_offset)):
            self._stored[origin_offset] = row
        self._in_batch: dict[Name, _InBatch] = {}
        self.landed: set[tuple[int, int]] = set()
        """(origin offset, rolls) of copies that this batch has received."""
        self.ended: set[int] = set()
        """Origin offsets that this batch has ended."""
        for offset, body in intake.overdue.items():
            self.put(body, Place.OVERDUE, offset)

    def put(self, body: Body, place: Place, at: int) -> None:
        """Note the timer, which is in this batch, under its name."""
        name = body.origin_offset if body.origin_offset == self._origin_offset else body.id
        if name is not None:
            self._in_batch[name] = _InBatch(place, at, body)

    def is_pending(self, id_: bytes | None) -> bool:
        return id_ is not None and (id_ in self._in_batch or id_ in self._stored or bool(self.copies_in_flight(id_)))

    def copies_in_flight(self, name: Name) -> list[CopyInFlight]:
        """Return the copies that were not received or ended by this batch."""
        found = self._flights.with_id(name) if isinstance(name, bytes) else self._flights.with_origin(name)
        return [
            flight
            for flight in found
            if (flight.origin_offset, flight.rolls) not in self.landed and flight.origin_offset not in self.ended
        ]

    def body(self, name: Name) -> Body | None:
        """Return the timer; None if none is in the store or in this batch."""
        if name in self._in_batch:
            return self._in_batch[name].body
        return self._queries.bodies(self._stored[name])[0] if name in self._stored else None

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

    def take_out(self, name: Name) -> list[tuple[int, int | None]]:
        """Take the timer out of the store or of this batch. Return its origin offset and, if known, its due time."""
        taken_out: list[tuple[int, int | None]] = []
        row = self._stored.pop(name, None)
        if row is not None:
            self._intake.batch.end(row)
            taken_out.append((int(row["origin"][0]), None))
        found = self._in_batch.pop(name, None)
        if found is not None:
            self._drop(found)
            taken_out.append((found.body.origin_offset, found.at if found.place is Place.MOVED else found.body.due_ms))
        return taken_out

    def _drop(self, found: _InBatch) -> None:
        match found.place:
            case Place.STORED:
                self._intake.batch.drop(found.at)
            case Place.OVERDUE:
                del self._intake.overdue[found.at]
            case Place.MOVED:
                del self._intake.moved[found.body.origin_offset]
