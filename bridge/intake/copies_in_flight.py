"""Rolled copies between two readings: published to the end of the timer topic, not read again yet.

    roll -> Flight(origin, rolls, due, id hash, digest) in the journal -> the copy is read: landed, a timer again
                                                     \\-> a request with its id meanwhile: ended; landed, dropped

A record that says it is a copy is taken only when one of its origin is on its way with an equal digest.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

from bridge.ports import Outgoing, Record
from schemas.headers import CONTROL, DELIVER_MS, ID, ORIGIN, PARTITION, ROLLS, TIMES, TOPIC, Claim, Headers
from schemas.journal import CopyInFlight
from schemas.origin import Shard, origin
from schemas.profiles import as_native, has_profile
from timer.format.body import Body, LongNameError, pack_headers, unpack_headers
from timer.index.due_counts import HOUR_MS, DueRange, joined_hours, joined_ranges

_TIMES = frozenset(TIMES)
assert _TIMES < CONTROL


def id_hash(id_: bytes | None) -> str:
    """128 bits, hex; empty without an id."""
    return "" if id_ is None else hashlib.blake2b(id_, digest_size=16).hexdigest()


def digest(key: bytes | None, value: bytes | None, encoded_headers: bytes) -> str:
    """128 bits, hex, over all that a copy carries."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in (key, value, encoded_headers):
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    return hashed.hexdigest()


def copy_of(shard: Shard, body: Body, now_ms: int) -> tuple[Outgoing, CopyInFlight]:
    """The next copy of a timer: the request with its time made absolute and its first origin told, in our headers."""
    rolls = body.rolls + 1
    headers: list[tuple[str, bytes | None]] = []
    for name, value in _in_ours(body):
        if name in _TIMES:
            headers.append((DELIVER_MS, b"%d" % body.due_ms))
        elif name not in (ORIGIN, ROLLS):
            headers.append((name, value))
    headers += ((ORIGIN, origin(shard, body.origin)), (ROLLS, b"%d" % rolls))
    encoded, _ = pack_headers(headers)
    flight = CopyInFlight(
        body.origin, rolls, body.due_ms, body.target, id_hash(body.id), digest(body.key, body.value, encoded)
    )
    return Outgoing(shard.topic, shard.partition, body.key, body.value, headers, now_ms), flight


def _in_ours(body: Body) -> list[tuple[str, bytes | None]]:
    """The request in native headers, whatever its spelling was: no setting decides how a copy is read."""
    stored = unpack_headers(body.headers)
    if not has_profile(stored):
        return stored
    ours: list[tuple[str, bytes | None]] = [(TOPIC, body.target.encode()), (DELIVER_MS, b"%d" % body.due_ms)]
    if body.id is not None:
        ours.append((ID, body.id))
    if body.partition >= 0:
        ours.append((PARTITION, b"%d" % body.partition))
    return [*ours, *as_native(stored)]


def size_of(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """At least what the broker counts of a record, without what a batch adds."""
    payload = len(key or b"") + len(value or b"")
    return payload + sum(_bytes(name) + len(content or b"") + 8 for name, content in headers)


def _bytes(name: str) -> int:
    return len(name) if name.isascii() else len(name.encode())


def ranges_of(flights: Iterable[CopyInFlight]) -> dict[str, DueRange]:
    """For each real topic of `flights`: how many, first and last due time."""
    return joined_ranges({flight.target: DueRange(1, flight.due_ms, flight.due_ms)} for flight in flights)


def hours_of(flights: Iterable[CopyInFlight]) -> dict[str, Counter[int]]:
    """For each real topic of `flights`: start of the hour (epoch ms) to how many are due in it."""
    return joined_hours({flight.target: {flight.due_ms // HOUR_MS * HOUR_MS: 1}} for flight in flights)


class CopiesInFlight:
    """The copies of one shard that are on their way, as committed."""

    def __init__(self, shard: Shard, flights: Iterable[CopyInFlight], ended: Iterable[int]) -> None:
        self._shard = shard
        self._flights: dict[tuple[int, int], CopyInFlight] = {}
        self._origins: set[int] = set()
        self._by_id: dict[str, set[tuple[int, int]]] = {}
        self._rolled_ms: dict[tuple[int, int], int] = {}
        self._staged: set[tuple[int, int]] = set()
        """Not published yet: whatever says that it is one of these cannot be."""
        self.ended: set[int] = set()
        """Origins of those whose timer has ended."""
        self.depart(flights)
        self.end(ended)

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._flights

    @property
    def alive_count(self) -> int:
        """How many `alive` tells: an origin has one copy on its way at most."""
        return len(self._flights) - len(self.ended)

    def alive(self) -> list[CopyInFlight]:
        """Those whose timer has not ended."""
        return [flight for flight in self._flights.values() if flight.origin not in self.ended]

    def all(self) -> list[CopyInFlight]:
        return list(self._flights.values())

    def claimed(self, record: Record, claim: Claim) -> CopyInFlight | None:
        """The copy that `record` is, None where it is not ours."""
        prefix = origin(self._shard, 0)[:-1]
        number = claim.origin.removeprefix(prefix)
        if not claim.origin.startswith(prefix) or not number.isdigit() or len(number) > 19:
            return None
        flight = self._flights.get((int(number), claim.rolls))
        if (
            flight is None
            or (flight.origin, flight.rolls) in self._staged
            or origin(self._shard, flight.origin) != claim.origin
        ):
            return None
        try:
            encoded, _ = pack_headers(record.headers)
        except LongNameError:  # what is stored has none
            return None
        return flight if digest(record.key, record.value, encoded) == flight.digest else None

    def was_rolled_within(self, flight: CopyInFlight, span_ms: int, now_ms: int) -> bool:
        """Whether this life rolled it, by its clock within the last `span_ms`."""
        rolled_ms = self._rolled_ms.get((flight.origin, flight.rolls))
        return rolled_ms is not None and rolled_ms <= now_ms < rolled_ms + span_ms

    def with_id(self, id_: bytes) -> list[CopyInFlight]:
        """Those under `id_` whose timer has not ended."""
        if not self._by_id:  # nearly always, and the hash is dear
            return []
        found = (self._flights[key] for key in self._by_id.get(id_hash(id_), ()))
        return [flight for flight in found if flight.origin not in self.ended]

    def stage(self, flight: CopyInFlight) -> None:
        """It is to be published with the next transaction, and can be ended from now on."""
        self.depart([flight])
        self._staged.add((flight.origin, flight.rolls))

    def depart(self, flights: Iterable[CopyInFlight], now_ms: int | None = None) -> None:
        """`now_ms`: by the bridge's clock, where this life rolls them."""
        for flight in flights:
            if now_ms is not None:
                self._rolled_ms[flight.origin, flight.rolls] = now_ms
                self._staged.discard((flight.origin, flight.rolls))
            self._flights[flight.origin, flight.rolls] = flight
            self._origins.add(flight.origin)
            if flight.id_hash:
                self._by_id.setdefault(flight.id_hash, set()).add((flight.origin, flight.rolls))

    def land(self, landed: Iterable[tuple[int, int]]) -> None:
        for key in landed:
            flight = self._flights.pop(key)
            self._rolled_ms.pop(key, None)
            self._origins.discard(flight.origin)
            self.ended.discard(flight.origin)
            if flight.id_hash:
                self._by_id[flight.id_hash].discard(key)
                if not self._by_id[flight.id_hash]:
                    del self._by_id[flight.id_hash]

    def end(self, origins: Iterable[int]) -> None:
        """Those of the timers `origins` that are on their way have ended."""
        self.ended.update(self._origins.intersection(origins))
