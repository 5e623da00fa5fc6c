"""Copies in flight: rolled or moved timers whose copy was written to the timer topic and is not read yet.

    roll -> CopyInFlight(origin offset, rolls, due, id hash, digest) in the journal -> the copy is read: a timer again
                                      \\-> a request with its id meanwhile: ended; the copy is dropped when it is read

A record that claims to be a copy is taken only if a copy of its origin with an equal digest is in flight.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.partition.request import absolute_headers, occurrence_of
from bridge.ports import Outgoing, Record
from kafka_timer.headers import OCCURRENCE, ORIGIN, ROLLS, SAFE_DIGITS, SCHEDULED_MS, Claim
from kafka_timer.origin import TimerPartition, origin
from schemas.journal import CopyInFlight
from schemas.recurrence import Occurrence
from timer.format.body import Body, LongNameError, pack_headers
from timer.index.due_counts import HOUR_MS, DueRange, joined_hours, joined_ranges


def id_hash(id_: bytes | None) -> str:
    """Return 128 bits in hex; empty without an id."""
    return "" if id_ is None else hashlib.blake2b(id_, digest_size=16).hexdigest()


def digest(key: bytes | None, value: bytes | None, encoded_headers: bytes) -> str:
    """Return 128 bits in hex, over all that a copy carries."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in (key, value, encoded_headers):
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    return hashed.hexdigest()


@dataclass(slots=True, eq=False)
class RolledCopy(Outgoing):
    """The record of a copy, with what the journal says of it."""

    flight: CopyInFlight


def copy_of(
    partition: TimerPartition, body: Body, now_ms: int, moved_ms: int | None = None, following: Occurrence | None = None
) -> RolledCopy:
    """Return the next copy of a timer: the request in native headers, with an absolute due time and its origin.

    moved_ms: its new due time. following: the next occurrence of a recurring timer, if the copy is for that one.
    """
    if (occurrence := following) is None and (occurrence := occurrence_of(body)) is not None:
        occurrence = occurrence.started()
    due_ms = body.due_ms if occurrence is None else occurrence.due_ms
    if moved_ms is not None:
        due_ms = moved_ms
    headers = absolute_headers(body, due_ms)
    if occurrence is not None:
        headers.append((OCCURRENCE, b"%d" % occurrence.number))
        if occurrence.scheduled_ms != due_ms:
            headers.append((SCHEDULED_MS, b"%d" % occurrence.scheduled_ms))
    rolls = body.rolls + 1
    headers += ((ORIGIN, origin(partition, body.origin_offset)), (ROLLS, b"%d" % rolls))
    digest_ = digest(body.key, body.value, pack_headers(headers)[0])
    flight = CopyInFlight(body.origin_offset, rolls, due_ms, body.target, id_hash(body.id), digest_)
    return RolledCopy(*partition, body.key, body.value, headers, now_ms, flight)


def ranges_of(flights: Iterable[CopyInFlight]) -> dict[str, DueRange]:
    """Return, by target topic of `flights`, their number and the first and last due time."""
    return joined_ranges({flight.target: DueRange(1, flight.due_ms, flight.due_ms)} for flight in flights)


def hours_of(flights: Iterable[CopyInFlight]) -> dict[str, Counter[int]]:
    """Return, by target topic of `flights`, the start of each hour (epoch ms) and how many are due in it."""
    return joined_hours({flight.target: {flight.due_ms // HOUR_MS * HOUR_MS: 1}} for flight in flights)


class CopiesInFlight:
    """The copies in flight of one partition: those that are committed, and those of drafts that a request may end.

    An origin has at most one, so its offset names it.
    """

    def __init__(self, partition: TimerPartition, flights: Iterable[CopyInFlight], ended: Iterable[int]) -> None:
        self._partition = partition
        self._flights: dict[int, CopyInFlight] = {}
        self._by_id: dict[str, set[int]] = {}
        self._unpublished: set[int] = set()
        """Copies that are not published yet. No record can be one of them."""
        self.ended: set[int] = set()
        """Origin offsets of copies whose timer has ended."""
        self._unread: set[int] = set()
        self.depart(flights)
        self.end(ended)
        self._unread.update(self._flights)

    @property
    def alive_count(self) -> int:
        return len(self._flights) - len(self.ended)

    def alive(self) -> list[CopyInFlight]:
        """Return the copies whose timer has not ended."""
        return [flight for flight in self._flights.values() if flight.origin_offset not in self.ended]

    def all(self) -> list[CopyInFlight]:
        return list(self._flights.values())

    def unread(self) -> list[CopyInFlight]:
        """Return the copies of `alive` that were in flight at the opening and were neither read nor moved since."""
        return [flight for flight in self.alive() if flight.origin_offset in self._unread] if self._unread else []

    def claimed(self, record: Record, claim: Claim) -> CopyInFlight | None:
        """Return the copy that `record` is; None if it is not one of ours."""
        origin_offset = self.offset_of(claim.origin)
        flight = None if origin_offset is None else self._flights.get(origin_offset)
        if flight is None or flight.rolls != claim.rolls or origin_offset in self._unpublished:
            return None
        try:
            encoded, _ = pack_headers(record.headers)
        except LongNameError:  # a stored request has none
            return None
        return flight if digest(record.key, record.value, encoded) == flight.digest else None

    def offset_of(self, name: bytes) -> int | None:
        """Return the offset in topic/partition/offset; None if it is not of this partition, or not as we write it."""
        digits = name.rpartition(b"/")[2]
        number = int(digits) if digits.isdigit() and len(digits) <= SAFE_DIGITS else -1
        return number if number >= 0 and origin(self._partition, number) == name else None

    def with_id(self, id_: bytes) -> list[CopyInFlight]:
        """Return the copies under `id_` whose timer has not ended."""
        if not self._by_id:  # nearly always, and the hash is expensive
            return []
        found = (self._flights[key] for key in self._by_id.get(id_hash(id_), ()))
        return [flight for flight in found if flight.origin_offset not in self.ended]

    def with_origin(self, origin_offset: int) -> list[CopyInFlight]:
        """Return the copy with this origin offset if its timer has not ended."""
        flight = self._flights.get(origin_offset)
        return [] if flight is None or origin_offset in self.ended else [flight]

    def stage(self, flight: CopyInFlight) -> None:
        """Add a copy that the next transaction publishes. A request may end it from now on."""
        self.depart([flight])
        self._unpublished.add(flight.origin_offset)

    def publish(self, flights: Sequence[CopyInFlight]) -> None:
        """Add copies that the transaction in flight publishes, staged ones too."""
        self._unpublished.difference_update(flight.origin_offset for flight in flights)
        self.depart(flights)

    def depart(self, flights: Iterable[CopyInFlight]) -> None:
        """Add copies, or replace them by those with another due time."""
        for flight in flights:
            self._flights[flight.origin_offset] = flight
            self._unread.discard(flight.origin_offset)
            if flight.id_hash:
                self._by_id.setdefault(flight.id_hash, set()).add(flight.origin_offset)

    def land(self, landed: Iterable[tuple[int, int]]) -> None:
        """Remove copies that were read, by origin offset and rolls."""
        for origin_offset, _ in landed:
            flight = self._flights.pop(origin_offset)
            self._unread.discard(origin_offset)
            self.ended.discard(origin_offset)
            if flight.id_hash:
                self._by_id[flight.id_hash].discard(origin_offset)
                if not self._by_id[flight.id_hash]:
                    del self._by_id[flight.id_hash]

    def end(self, origins: Iterable[int]) -> None:
        """Note that these timers have ended. Those without a copy in flight are ignored."""
        self.ended.update(self._flights.keys() & origins)
