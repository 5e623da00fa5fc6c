"""Names of timers, and the timers that are pending under the names of a batch.

A name is an id, or the offset of a timer's first request (origin offset) in a batch of one request by origin. At most
one timer is pending under a name. If a request ends it, BatchChanges does this:

    in the store         -> a delete mark
    in this batch        -> taken out of it: not stored yet, overdue, or about to be moved
    a copy in flight     -> its origin is named as ended; the copy is dropped when it is read

RecentlyDelivered has the ids of timers that were delivered within the last hour: their cancel is `too-late`.

A cancel from one kind of client misses the timer of another kind. Sources: murmur2 as in kafka_timer.murmur2;
librdkafka's default `consistent_random` takes CRC32 of the key, modulo the number of partitions (rdkafka_msg.c; see
integration_tests/bridge/test_client.py).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias
from zlib import crc32

from bridge.partition.copies import CopiesInFlight
from bridge.partition.journal import NewDecisions
from bridge.partition.request import next_due_ms
from kafka_timer.murmur2 import partition_of
from schemas.journal import CopyInFlight
from timer.format.batch import Batch
from timer.format.body import Body, frame_size
from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS
from timer.store import StoreQueries

MOST_IDS = 100_000
_MAX_ID_BYTES = 64
"""Longer ids get no hint: murmur2 of 1 KB takes 0.14 ms, and a sender may cancel thousands in a turn."""

Name: TypeAlias = bytes | int
"""An id, or an origin offset."""


class _InBatch(NamedTuple):
    """A timer of this batch. `drop(at)` takes it out: of `BatchChanges.batch`, `overdue` or `moved`."""

    body: Body
    drop: Callable[[int], object]
    at: int


class BatchChanges:
    """Changes of a batch to the store, and the timers that are pending under its names."""

    def __init__(
        self, queries: StoreQueries, flights: CopiesInFlight, overdue: Mapping[int, Body], origin_offset: int | None
    ) -> None:
        """Begin with the overdue timers of earlier batches.

        origin_offset: the name of a request by origin; None: the batch has none.
        """
        self.queries, self.flights = queries, flights
        self.batch = Batch()
        self.overdue = dict(overdue)
        """By offset: timers that are due and whose key has passed. They are not stored."""
        self.moved: dict[int, tuple[Body, int]] = {}
        """By origin offset: timers that leave the store as a copy with this new due time (ms)."""
        self.decisions = NewDecisions()
        self.landed: set[int] = set()
        self.ended: set[int] = set()
        """Origin offsets of copies that this batch received, and of timers that it ended."""
        self._origin_offset = origin_offset
        self._stored: dict[Name, Rows] = {}
        self._in_batch: dict[Name, _InBatch] = {}
        for offset, body in overdue.items():
            self._put(body, self.overdue.pop, offset)

    def find(self, ids: list[bytes]) -> None:
        """Find the timers that the store has under the names of the batch."""
        if ids:
            self._stored = dict(self.queries.find(ids).items())
        if self._origin_offset is not None and len(row := self.queries.find_origin(self._origin_offset)):
            self._stored[self._origin_offset] = row

    def store(self, body: Body, visit_ms: int) -> None:
        self._put(body, self.batch.drop, self.batch.add(body, visit_ms))

    def hold(self, body: Body, visit_ms: int) -> None:
        """Store a timer out of order."""
        self.decisions.held.append(body.origin_offset)
        self._put(body, self.batch.drop, self.batch.hold(body, visit_ms))

    def leave(self, body: Body) -> None:
        """Let the timer leave at once."""
        self.overdue[body.offset] = body
        self._put(body, self.overdue.pop, body.offset)

    def roll(self, body: Body, due_ms: int) -> None:
        """Let the timer leave the store, whatever K says, as a copy that is due at `due_ms`."""
        self.moved[body.origin_offset] = (body, due_ms)
        self.decisions.released.append(body.origin_offset)
        self._put(body, self.moved.pop, body.origin_offset)

    def take_out(self, name: Name) -> list[tuple[int, int | None]]:
        """Take the timer out of the store or of this batch. Return its origin offset and, if known, its due time."""
        taken_out: list[tuple[int, int | None]] = []
        if (row := self._stored.pop(name, None)) is not None:
            self.batch.end(row)
            taken_out.append((int(row["origin"][0]), None))
        if name in self._in_batch:
            due_ms, found = self.due_ms(name), self._in_batch.pop(name)
            found.drop(found.at)
            taken_out.append((found.body.origin_offset, due_ms))
        return taken_out

    def _put(self, body: Body, drop: Callable[[int], object], at: int) -> None:
        name = body.origin_offset if body.origin_offset == self._origin_offset else body.id
        if name is not None:
            self._in_batch[name] = _InBatch(body, drop, at)

    # -- what is pending

    def is_pending(self, id_: bytes | None) -> bool:
        return id_ is not None and (id_ in self._in_batch or id_ in self._stored or bool(self.copies_in_flight(id_)))

    def copies_in_flight(self, name: Name) -> list[CopyInFlight]:
        """Return the copies that were not received or ended by this batch."""
        found = self.flights.with_id(name) if isinstance(name, bytes) else self.flights.with_origin(name)
        return [
            each for each in found if each.origin_offset not in self.landed and each.origin_offset not in self.ended
        ]

    def body(self, name: Name) -> Body | None:
        """Return the timer; None if none is in the store or in this batch."""
        if name in self._in_batch:
            return self._in_batch[name].body
        return self.queries.bodies(self._stored[name])[0] if name in self._stored else None

    def due_ms(self, name: Name) -> int:
        """Return the due time (ms) of the timer that is pending under `name`, or of its next occurrence."""
        body = self.body(name)
        if body is None:
            return self.copies_in_flight(name)[0].due_ms
        return self.moved[body.origin_offset][1] if body.origin_offset in self.moved else next_due_ms(body)

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
        in_batch = 0 if found is None or found.body.origin_offset in self.moved else frame_size(found.body)
        return in_batch + (int(self._stored[name]["body_size"][0]) if name in self._stored else 0)


class RecentlyDelivered:
    """The newest 100,000 ids, in the order of delivery. Kept in memory as long as the store is open.

    Each id is kept as a hash of 8 bytes: at most 17 MB in all, for ids of any length. If two hashes are equal, the
    cancel of an unknown id is `too-late` instead of `not-found`.
    """

    def __init__(self) -> None:
        self._at_ms: dict[int, int] = {}

    def add(self, ids: Iterable[bytes], now_ms: int) -> None:
        for id_ in ids:
            key = hash(id_)
            self._at_ms.pop(key, None)
            self._at_ms[key] = now_ms
        while len(self._at_ms) > MOST_IDS:
            del self._at_ms[next(iter(self._at_ms))]

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove ids whose later timer has ended, or could not be delivered."""
        for id_ in ids:
            self._at_ms.pop(hash(id_), None)

    def has(self, id_: bytes, now_ms: int) -> bool:
        at_ms = self._at_ms.get(hash(id_))
        return at_ms is not None and now_ms - at_ms <= HOUR_MS


def other_place(id_: bytes, partition: int, partitions: int) -> str | None:
    """Return where the timer of `id_` may be if `partition` lacks it; None if no client's rule puts it elsewhere."""
    if len(id_) > _MAX_ID_BYTES:
        return None
    by_murmur2, by_crc32 = partition_of(id_, partitions), crc32(id_) % partitions
    if by_murmur2 == by_crc32 or partition not in (by_murmur2, by_crc32):  # the sender chose the partition itself
        return None
    return (
        f"this is partition {partition}; the id goes to partition {by_murmur2} by murmur2 (Java, kafka_timer) and to"
        f" {by_crc32} by CRC32 (librdkafka's default): give all senders partitioner=murmur2_random"
    )


def is_by_crc32(id_: bytes, partition: int, partitions: int) -> bool:
    """True if CRC32 puts `id_` into `partition`, and murmur2 does not."""
    return len(id_) <= _MAX_ID_BYTES and crc32(id_) % partitions == partition != partition_of(id_, partitions)
