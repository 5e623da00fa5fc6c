"""Pending timers one by one, in due order: looked for bit by bit, so that no timer that leaves waits for who asks.

    search = Search(wanted)
    until search.go_on(bridge, now_ms, is_over): ...     behind a turn each, at least one step, as long as not is_over()
    search.listing()                                     the first `limit` of them, and how many there are

All of the log is looked through, as nothing in it is in due order: rows of 56 bytes, and bodies only where key or
header are asked for. Of what is rolled meanwhile, one may be counted twice or not at all; none is listed twice.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from bridge.loop.loop import Bridge
from bridge.query.summary import Bucket, Timer, joined_buckets, state_of
from bridge.release.partition import OwnedPartition
from schemas.headers import MAX_INT64
from schemas.journal import CopyInFlight
from schemas.origin import Shard
from timer.format.body import Body, unpack_headers
from timer.format.unit import TIMER_ROW, Rows, topic_hash

_BODIES_AT_ONCE = 64


class SearchPosition(NamedTuple):
    """Where a list goes on: behind this timer in due order."""

    due_ms: int
    shard: Shard
    origin: int

    def __str__(self) -> str:
        return f"{self.due_ms},{self.shard.topic},{self.shard.partition},{self.origin}"

    @classmethod
    def parse(cls, text: str) -> "SearchPosition":
        """Raises ValueError."""
        due_ms, topic, partition, origin = text.split(",")
        return cls(int(due_ms), Shard(topic, int(partition)), int(origin))


class Wanted(NamedTuple):
    """Which timers. None and empty: all of them. `due_to_ms` itself is not among them."""

    topic: str | None = None
    key_prefix: bytes = b""
    header: tuple[str, bytes | None] | None = None
    """One that the request carries; None for its value: any."""
    due_from_ms: int = 0
    due_to_ms: int = MAX_INT64
    after: SearchPosition | None = None
    limit: int = 100
    bucket_ms: int | None = None
    """Counts them by due time too, in buckets so wide."""

    @property
    def needs_bodies(self) -> bool:
        return bool(self.key_prefix) or self.header is not None

    def takes(self, body: Body) -> bool:
        """By what only the body tells."""
        if self.topic not in (None, body.target) or not (body.key or b"").startswith(self.key_prefix):
            return False
        if self.header is None:
            return True
        name, value = self.header
        return any(own == name and value in (None, given) for own, given in unpack_headers(body.headers))


class NamedTimer(Timer):
    """A timer with its id: as text, or in base64 where it is no UTF-8."""

    id: str | None = None
    id_base64: str | None = None

    @property
    def raw_id(self) -> bytes | None:
        """The id as it was sent."""
        if self.id_base64 is not None:
            return base64.b64decode(self.id_base64)
        return None if self.id is None else self.id.encode()

    @property
    def place(self) -> SearchPosition:
        topic, _, partition = self.shard.rpartition("/")
        return SearchPosition(self.due_ms, Shard(topic, int(partition)), self.origin)


class Listing(BaseModel):
    """In the order of due time, then of partition and origin."""

    at_ms: int
    matching: int = Field(description="How many there are from there on, those that are listed among them.")
    timers: list[NamedTimer]
    after: str | None = Field(default=None, description="Give it as `after` to go on; null: these are the last ones.")
    histogram: list[Bucket] = Field(default_factory=list, description="By due time, where `bucket` was given.")


def id_fields(raw: bytes | None) -> dict[str, str | None]:
    """`id` and `id_base64` of a NamedTimer."""
    if raw is None:
        return {}
    try:
        return {"id": raw.decode()}
    except UnicodeDecodeError:
        return {"id_base64": base64.b64encode(raw).decode()}


def joined_listings(parts: Iterable[Listing], at_ms: int, limit: int) -> Listing:
    """The first `limit` of all of them, no further than each of `parts` has looked: one may have more behind its last.

    What a part found and what left before it could be told is in its `matching`, but not among its timers.
    """
    listings = list(parts)
    looked_to = min((SearchPosition.parse(each.after) for each in listings if each.after is not None), default=None)
    places = ((timer.place, timer) for each in listings for timer in each.timers)
    found = sorted((each for each in places if looked_to is None or each[0] <= looked_to), key=lambda each: each[0])
    if len(found) > limit:
        found = found[:limit]
        looked_to = found[-1][0]
    return Listing(
        at_ms=at_ms,
        matching=sum(each.matching for each in listings),
        timers=[timer for _, timer in found],
        after=None if looked_to is None else str(looked_to),
        histogram=joined_buckets(bucket for each in listings for bucket in each.histogram),
    )


class Search:
    """Of the shards that are open here as it begins."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self.shards: list[Shard] = []
        """Those that it is about: they stayed here until it was done, and were not opened anew."""
        self._opened: dict[Shard, OwnedPartition] = {}
        self._left: list[tuple[Shard, int]] | None = None
        self._rows: dict[Shard, Rows] = {}
        self._flights: list[tuple[SearchPosition, CopyInFlight]] = []
        self._matching = 0
        self._buckets: Counter[int] = Counter()
        self._to_tell: list[tuple[SearchPosition, int | CopyInFlight]] | None = None
        self._timers: list[NamedTimer] = []
        self._at_ms = 0
        self._told = 0

    def go_on(self, bridge: Bridge, now_ms: int, is_over: Callable[[], bool] = lambda: False) -> bool:
        """True: it is done. Raises CorruptStoreError."""
        self._at_ms = now_ms
        if self._left is None:
            self._opened = dict(bridge.shards)
            self.shards = sorted(self._opened)
            self._left = [(shard, 0) for shard in self.shards]
        while self._left:
            self._look(bridge.shards, is_over)
            if is_over():
                return False
        if self._to_tell is None:
            self._to_tell = self._first_ones()
        while self._told < len(self._to_tell):
            self._tell(bridge.shards, *self._to_tell[self._told], now_ms)
            self._told += 1
            if is_over():
                return False
        self.shards = [shard for shard in self.shards if self._still(shard, bridge.shards) is not None]
        return True

    def listing(self) -> Listing:
        """Once it is done."""
        places = self._to_tell or []
        after = str(places[-1][0]) if places and self._matching > len(places) else None
        histogram = [Bucket(from_ms=at_ms, timers=count) for at_ms, count in sorted(self._buckets.items())]
        return Listing(
            at_ms=self._at_ms, matching=self._matching, timers=self._timers, after=after, histogram=histogram
        )

    def _still(self, shard: Shard, shards: Mapping[Shard, OwnedPartition]) -> OwnedPartition | None:
        """None where it was given up, or opened anew: its units are others then."""
        owned = shards.get(shard)
        return owned if owned is self._opened[shard] else None

    # -- looking

    def _look(self, shards: Mapping[Shard, OwnedPartition], is_over: Callable[[], bool]) -> None:
        """One stretch of the log of the first shard that is left, or a part of it."""
        assert self._left
        shard, first = self._left.pop(0)
        owned = self._still(shard, shards)
        if owned is None:  # what it held is told by its next owner
            return
        run, following = owned.store.list_pending(first)
        run = run[run["unit"] >= first]
        run = run[self._fits(shard, run)]
        if self._wanted.needs_bodies:
            run, stopped_at = self._fitting_bodies(owned, run, is_over)
            following = following if stopped_at is None else stopped_at
        self._keep(shard, run)
        if following is not None:
            self._left.insert(0, (shard, following))
            return
        self._look_at_flights(shard, owned)

    def _fits(self, shard: Shard, run: Rows) -> NDArray[np.bool_]:
        """By what stands in the row. Of topics with equal hashes, the name is looked at when it is told."""
        wanted, due = self._wanted, run["due_ms"]
        fits: NDArray[np.bool_] = (due >= wanted.due_from_ms) & (due < wanted.due_to_ms)
        if wanted.topic is not None:
            fits &= run["topic_hash"] == topic_hash(wanted.topic)
        if wanted.after is not None:
            due_ms, at, origin = wanted.after
            behind = run["origin"] > origin if shard == at else np.full(len(run), shard > at)
            fits &= (due > due_ms) | ((due == due_ms) & behind)
        return fits

    def _fitting_bodies(self, owned: OwnedPartition, run: Rows, is_over: Callable[[], bool]) -> tuple[Rows, int | None]:
        """Those whose bodies fit, and the unit at which it stopped, as it is over."""
        found = [np.empty(0, TIMER_ROW)]
        for at in range(0, len(run), _BODIES_AT_ONCE):
            if at and is_over():
                return np.concatenate(found), int(run["unit"][at])
            part = run[at : at + _BODIES_AT_ONCE]
            found.append(part[[self._wanted.takes(body) for body in owned.store.bodies(part)]])
        return np.concatenate(found), None

    def _keep(self, shard: Shard, run: Rows) -> None:
        """Counts them, and keeps the first ones."""
        self._matching += len(run)
        if self._wanted.bucket_ms is not None:
            width_ms = self._wanted.bucket_ms
            starts, counts = np.unique(run["due_ms"] // width_ms * width_ms, return_counts=True)
            self._buckets.update(dict(zip(starts.tolist(), counts.tolist(), strict=True)))
        limit, kept = self._wanted.limit, self._rows.get(shard, np.empty(0, TIMER_ROW))
        if limit == len(kept):  # nearly always, and to sort is dear
            run = run[run["due_ms"] <= kept["due_ms"].max(initial=-1)]
        if len(run) == 0:
            return
        kept = np.concatenate([kept, run])
        if len(kept) > limit:
            kept = kept[np.lexsort((kept["origin"], kept["due_ms"]))]
            _, first = np.unique(kept["origin"], return_index=True)
            kept = kept[np.sort(first)][:limit]
        self._rows[shard] = kept

    def _look_at_flights(self, shard: Shard, owned: OwnedPartition) -> None:
        """Copies on their way: of these, key and headers are not here."""
        wanted = self._wanted
        if wanted.needs_bodies:
            return
        for flight in owned.flights.alive():
            place = SearchPosition(flight.due_ms, shard, flight.origin)
            if (
                wanted.topic in (None, flight.target)
                and wanted.due_from_ms <= flight.due_ms < wanted.due_to_ms
                and (wanted.after is None or place > wanted.after)
            ):
                self._matching += 1
                if wanted.bucket_ms is not None:
                    self._buckets[flight.due_ms // wanted.bucket_ms * wanted.bucket_ms] += 1
                self._flights.append((place, flight))

    # -- telling

    def _first_ones(self) -> list[tuple[SearchPosition, int | CopyInFlight]]:
        found: dict[tuple[Shard, int], tuple[SearchPosition, int | CopyInFlight]] = {}
        for shard, rows in self._rows.items():
            for unit, due_ms, origin in rows[["unit", "due_ms", "origin"]].tolist():
                found[shard, origin] = SearchPosition(due_ms, shard, origin), unit
        for place, flight in self._flights:
            found.setdefault((place.shard, place.origin), (place, flight))
        return sorted(found.values(), key=lambda each: each[0])[: self._wanted.limit]

    def _tell(
        self, shards: Mapping[Shard, OwnedPartition], place: SearchPosition, at: int | CopyInFlight, now_ms: int
    ) -> None:
        """What has left or ended meanwhile is left out."""
        if isinstance(at, CopyInFlight):
            self._timers.append(NamedTimer.rolling(place.shard, at))
            return
        owned = self._still(place.shard, shards)
        if owned is None:
            return
        row = owned.store.pending_at(at)
        if len(row) == 0:  # it has left, or is on its way round
            rolling = (flight for flight in owned.flights.alive() if flight.origin == place.origin)
            told = (flight._replace(due_ms=place.due_ms) for flight in rolling)
            self._timers += [NamedTimer.rolling(place.shard, flight) for flight in told]
            return
        seen = owned.store.peek(row)
        if self._wanted.topic in (None, seen.target):
            is_held = not owned.store.is_unreleased(seen.target, (int(row["visit_ms"][0]), place.origin))
            state = state_of(place.due_ms, now_ms, is_held=is_held)
            more = id_fields(seen.id)
            self._timers.append(NamedTimer.stored(place.shard, place.origin, place.due_ms, state, seen, **more))
