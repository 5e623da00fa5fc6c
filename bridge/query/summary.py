"""What is pending, told from outside: counts by real topic, when the first and the last are due, and how many when.

    running bridge (its own thread) -> of_bridge, named_in_bridge        what /pending answers
    store of a stopped one          -> of_store, named_in_store          as of its checkpoint
    several of either               -> joined

A timer that is on its way round through Kafka (rolling) is counted too. Times are epoch ms.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Self

from pydantic import BaseModel, Field

from bridge.config.durations import parse_duration_ms
from bridge.intake.copies_in_flight import hours_of, id_hash, ranges_of
from bridge.loop.loop import Bridge
from bridge.release.partition import OwnedPartition
from schemas.journal import CopyInFlight
from schemas.origin import Shard
from timer.format.body import Body, Peek
from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS, DueRange, joined_hours, joined_ranges
from timer.inspect.offline_store import StoppedStore

State = Literal["pending", "due", "held", "leaving", "rolling"]
"""Waits for its time; or its time has come; its place in the order has passed (a clock went back, it
rests, or its target has to wait); in a transaction
that is under way; or a copy of it is on its way back to the timer topic."""


class Bucket(BaseModel):
    """So many timers are due from then on, up to the next bucket."""

    from_ms: int
    timers: int


class TopicPending(BaseModel):
    """None is due before `first_due_ms`, none behind `last_due_ms`: exact, or to the hour where to search took long."""

    pending: int
    first_due_ms: int
    last_due_ms: int
    histogram: list[Bucket]
    """Those that hold any, by due time."""


class TimerTopicBytes(BaseModel):
    """Of a timer topic: bytes of its pending timers' bodies in the stores, and of the stores' files."""

    pending_bytes: int
    store_bytes: int


class Pending(BaseModel):
    """Of the shards named in `shards`, each with its number of timers."""

    at_ms: int
    pending: int
    topics: dict[str, TopicPending]
    shards: dict[str, int]
    timer_topics: dict[str, TimerTopicBytes] = Field(default_factory=dict)
    """By timer topic, whichever real topics were asked for; empty for a stopped store."""

    def histogram(self) -> list[Bucket]:
        """Of all topics."""
        return joined_buckets(bucket for own in self.topics.values() for bucket in own.histogram)


class Timer(BaseModel):
    """`offset` is that of the request or of its latest copy; unknown while `rolling`, as that is not read yet."""

    state: State
    shard: str
    origin: int
    offset: int | None
    topic: str
    partition: int | None
    """The real topic's; None: the partitioner's choice."""
    due_ms: int
    rolls: int

    @classmethod
    def stored(
        cls, shard: Shard, origin: int, due_ms: int, state: State, seen: Body | Peek, **more: str | None
    ) -> Self:
        """One that lives in the store; `more`: what a kind of its own adds."""
        return cls(
            state=state,
            shard=str(shard),
            origin=origin,
            offset=seen.offset,
            topic=seen.target,
            partition=None if seen.partition < 0 else seen.partition,
            due_ms=due_ms,
            rolls=seen.rolls,
            **more,
        )

    @classmethod
    def rolling(cls, shard: Shard, flight: CopyInFlight) -> Self:
        """One whose copy is on its way."""
        return cls(
            state="rolling",
            shard=str(shard),
            origin=flight.origin,
            offset=None,
            topic=flight.target,
            partition=None,
            due_ms=flight.due_ms,
            rolls=flight.rolls,
        )


class Named(BaseModel):
    """What lives under an id; one timer for each shard at the most."""

    at_ms: int
    id: str
    timers: list[Timer]


class OfInstance(BaseModel):
    """`recovering`: partitions of an instance that are being rebuilt, so nobody knows yet what is pending there."""

    recovering: list[str] = Field(default_factory=list)


class InstancePending(Pending, OfInstance):
    """What an instance answers."""


class InstanceNamed(Named, OfInstance):
    """What an instance answers."""


def parse_bucket_ms(text: str) -> int:
    """Width of a bucket. Raises ValueError with what would be right."""
    bucket_ms = parse_duration_ms(text)
    if bucket_ms == 0 or bucket_ms % HOUR_MS:
        raise ValueError(f"{text!r} is not to be had, as counts are kept by the hour: write 1h, 6h, 1d")
    return bucket_ms


def of_bridge(
    bridge: Bridge,
    at_ms: int,
    bucket_ms: int = HOUR_MS,
    topic: str | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> Pending:
    """All shards that are ours and open. `bucket_ms`: whole hours. `is_over` ends the search for first and last."""
    told = _told(at_ms, bridge.due_ranges(is_over), bridge.due_hours(), bridge.pending, bucket_ms, topic)
    return told.model_copy(update={"timer_topics": _joined_bytes(map(_bytes_of, bridge.shards.values()))})


def _bytes_of(owned: OwnedPartition) -> dict[str, TimerTopicBytes]:
    store = owned.store
    return {owned.shard.topic: TimerTopicBytes(pending_bytes=store.pending_bytes, store_bytes=store.size_bytes)}


def _joined_bytes(parts: Iterable[Mapping[str, TimerTopicBytes]]) -> dict[str, TimerTopicBytes]:
    sums: dict[str, TimerTopicBytes] = {}
    for part in parts:
        for topic, own in part.items():
            other = sums.get(topic, TimerTopicBytes(pending_bytes=0, store_bytes=0))
            sums[topic] = TimerTopicBytes(
                pending_bytes=own.pending_bytes + other.pending_bytes, store_bytes=own.store_bytes + other.store_bytes
            )
    return dict(sorted(sums.items()))


def of_store(
    shard: Shard, store: StoppedStore, at_ms: int, bucket_ms: int = HOUR_MS, topic: str | None = None
) -> Pending:
    """One stopped store."""
    counts, flights = store.dues(), _alive(store)
    ranges = joined_ranges((counts.ranges(), ranges_of(flights)))
    hours = joined_hours((counts.hours(), hours_of(flights)))
    pending = sum(each.pending for each in ranges.values())
    return _told(at_ms, ranges, hours, {shard: pending}, bucket_ms, topic)


def _told(
    at_ms: int,
    ranges: Mapping[str, DueRange],
    hours: Mapping[str, Mapping[int, int]],
    shards: Mapping[Shard, int],
    bucket_ms: int,
    topic: str | None,
) -> Pending:
    topics = {
        target: TopicPending(
            pending=own.pending,
            first_due_ms=own.first_ms,
            last_due_ms=own.last_ms,
            histogram=_histogram(hours[target], bucket_ms),
        )
        for target, own in sorted(ranges.items())
        if topic in (None, target)
    }
    total = sum(each.pending for each in topics.values())
    return Pending(at_ms=at_ms, pending=total, topics=topics, shards={str(s): n for s, n in sorted(shards.items())})


def _histogram(counts: Mapping[int, int], bucket_ms: int) -> list[Bucket]:
    return joined_buckets(
        Bucket(from_ms=at_ms // bucket_ms * bucket_ms, timers=count) for at_ms, count in counts.items()
    )


def joined(parts: Iterable[Pending]) -> Pending:
    """Of all of them, at least one, with buckets of one width."""
    first, *others = all_ = list(parts)
    topics, shards = dict(first.topics), dict(first.shards)
    for part in others:
        shards |= part.shards
        for target, own in part.topics.items():
            topics[target] = _both(topics[target], own) if target in topics else own
    total = sum(each.pending for each in topics.values())
    return Pending(
        at_ms=first.at_ms,
        pending=total,
        topics=dict(sorted(topics.items())),
        shards=shards,
        timer_topics=_joined_bytes(part.timer_topics for part in all_),
    )


def _both(one: TopicPending, other: TopicPending) -> TopicPending:
    return TopicPending(
        pending=one.pending + other.pending,
        first_due_ms=min(one.first_due_ms, other.first_due_ms),
        last_due_ms=max(one.last_due_ms, other.last_due_ms),
        histogram=joined_buckets(one.histogram + other.histogram),
    )


def joined_buckets(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Those of one beginning are one."""
    counts: Counter[int] = Counter()
    for bucket in buckets:
        counts[bucket.from_ms] += bucket.timers
    return [Bucket(from_ms=at_ms, timers=count) for at_ms, count in sorted(counts.items())]


# -- one id


def named_in_bridge(bridge: Bridge, id_: str, at_ms: int) -> Named:
    """In the shards that are ours and open; each is asked by its index of ids."""
    return Named(at_ms=at_ms, id=id_, timers=[timer for timer, _ in named_bodies(bridge, id_.encode(), at_ms)])


def named_bodies(bridge: Bridge, id_: bytes, at_ms: int) -> list[tuple[Timer, Body | None]]:
    """The same, each with its body; None: it is rolling."""
    return [found for shard, owned in bridge.shards.items() for found in _in_shard(shard, owned, id_, at_ms)]


def _in_shard(shard: Shard, owned: OwnedPartition, id_: bytes, at_ms: int) -> list[tuple[Timer, Body | None]]:
    leaving = (body for body in owned.leaving() if body.id == id_)
    return told_of(shard, owned, at_ms, leaving, owned.store.find([id_]).values(), owned.flights.with_id(id_))


def told_of(
    shard: Shard,
    owned: OwnedPartition,
    at_ms: int,
    leaving: Iterable[Body],
    rows: Iterable[Rows],
    flights: Iterable[CopyInFlight],
) -> list[tuple[Timer, Body | None]]:
    """Each with its body, wherever it is; `rows` are of one timer each."""
    store = owned.store
    found: list[tuple[Timer, Body | None]] = [(_stored(shard, body, "leaving"), body) for body in leaving]
    for row in rows:
        (body,) = store.bodies(row)
        is_held = not store.is_unreleased(body.target, (int(row["visit_ms"][0]), body.origin))
        found.append((_stored(shard, body, state_of(body.due_ms, at_ms, is_held=is_held)), body))
    return found + [(Timer.rolling(shard, flight), None) for flight in flights]


def named_in_store(shard: Shard, store: StoppedStore, id_: str, at_ms: int) -> Named:
    """In one stopped store."""
    held = store.checkpoint.held
    found = [
        _stored(shard, timer.body, state_of(timer.body.due_ms, at_ms, is_held=timer.body.origin in held))
        for timer in store.with_id(id_.encode())
    ]
    hash_ = id_hash(id_.encode())
    found += [Timer.rolling(shard, flight) for flight in _alive(store) if flight.id_hash == hash_]
    return Named(at_ms=at_ms, id=id_, timers=found)


def _alive(store: StoppedStore) -> list[CopyInFlight]:
    told = store.checkpoint
    return [flight for flight in told.flights if flight.origin not in told.ended_flights]


def state_of(due_ms: int, at_ms: int, *, is_held: bool) -> State:
    """Of a timer in the store."""
    if is_held:
        return "held"
    return "due" if due_ms <= at_ms else "pending"


def _stored(shard: Shard, body: Body, state: State) -> Timer:
    return Timer.stored(shard, body.origin, body.due_ms, state, body)
