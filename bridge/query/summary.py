"""Summary of the pending timers: counts by target topic, first and last due time, and a histogram.

    running bridge (loop's thread) -> pending_in_bridge, named_in_bridge        what /pending answers
    store of a stopped bridge      -> pending_in_store, named_in_store          as of its checkpoint
    several of either              -> merge_pending

A timer whose copy is in flight (rolling) is counted too. Times are epoch ms.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal, Self

from pydantic import BaseModel, Field

from bridge.loop.loop import Bridge
from bridge.partition.copies import hours_of, id_hash, ranges_of
from bridge.partition.partition import Partition
from kafka_timer import Sent
from kafka_timer.durations import parse_duration_ms
from kafka_timer.headers import PAUSED_MS
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight
from timer.format.body import Body, Peek
from timer.format.unit import Rows
from timer.index.due_counts import HOUR_MS, DueRange, joined_hours, joined_ranges
from timer.stopped_store import StoppedStore

State = Literal["pending", "due", "held", "leaving", "rolling"]
"""State of a timer.

pending: not due yet. due: due, not released yet. leaving: in an uncommitted transaction. rolling: its copy is in
flight. held: its key has passed (a clock went back, its roll cooldown lasts, or its target waits).
"""


class Bucket(BaseModel):
    """Number of timers that are due from `from_ms` on, up to the next bucket."""

    from_ms: int
    timers: int


class TopicPending(BaseModel):
    """First and last due time are exact, or rounded outward to the hour if the exact search took too long.

    They and the histogram are without paused timers; null: all are paused.
    """

    pending: int
    paused: int = Field(default=0, description="How many of them are paused.")
    first_due_ms: int | None
    last_due_ms: int | None
    histogram: list[Bucket]
    """The buckets that are not empty, by due time."""


class TimerTopicBytes(BaseModel):
    """Bytes of a timer topic: bodies of its pending timers, and files of its stores."""

    pending_bytes: int
    store_bytes: int


class Pending(BaseModel):
    """Pending timers of the partitions in `partitions`, which has the number of timers of each."""

    at_ms: int
    pending: int
    topics: dict[str, TopicPending]
    shards: dict[str, int]
    timer_topics: dict[str, TimerTopicBytes] = Field(default_factory=dict)
    """By timer topic, for all target topics; empty for a stopped store."""
    recovering: list[str] = Field(default_factory=list)
    """Partitions that are still recovering, so their timers are unknown."""

    def histogram(self) -> list[Bucket]:
        return merge_buckets(bucket for own in self.topics.values() for bucket in own.histogram)

    def next_due(self, but: Container[str] = ()) -> int | None:
        """Return the first due time (ms) of all topics `but` these; None if there is none."""
        return _least(own.first_due_ms for topic, own in self.topics.items() if topic not in but)


class Timer(BaseModel):
    """`offset`: that of the request or its latest copy, None while `rolling`, because the copy is not read yet."""

    state: State
    shard: str
    origin: int
    offset: int | None
    topic: str
    partition: int | None
    """Partition of the target topic; None if the partitioner chooses it."""
    due_ms: int
    is_paused: bool = False
    rolls: int

    @classmethod
    def stored(
        cls, timer_partition: TimerPartition, stored: Body | Peek, due_ms: int, state: State, **more: str | None
    ) -> Self:
        """Return a timer of the store. `more`: fields of a subclass."""
        return cls(
            state=state,
            shard=str(timer_partition),
            origin=stored.origin_offset,
            offset=None if stored.offset < 0 else stored.offset,
            topic=stored.target,
            partition=None if stored.partition < 0 else stored.partition,
            due_ms=due_ms % PAUSED_MS,
            is_paused=due_ms >= PAUSED_MS,
            rolls=stored.rolls,
            **more,
        )

    @classmethod
    def rolling(cls, timer_partition: TimerPartition, flight: CopyInFlight) -> Self:
        known = Peek(0, flight.origin_offset, -1, flight.target, None, -1, flight.rolls)
        return cls.stored(timer_partition, known, flight.due_ms, "rolling")


class Named(BaseModel):
    """Pending timers under an id, at most one for each partition."""

    at_ms: int
    id: str
    timers: list[Timer]
    recovering: list[str] = Field(default_factory=list)
    """As of `Pending`."""


def parse_bucket_ms(text: str) -> int:
    """Parse the width of a bucket. Raises ValueError with valid examples."""
    bucket_ms = parse_duration_ms(text)
    if bucket_ms == 0 or bucket_ms % HOUR_MS:
        raise ValueError(f"{text!r} is not a number of whole hours, by which counts are kept: write 1h, 6h, 1d")
    return bucket_ms


def pending_in_bridge(
    bridge: Bridge,
    at_ms: int,
    bucket_ms: int = HOUR_MS,
    topic: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Pending:
    """Return the summary of all partitions that are open here.

    bucket_ms: whole hours. should_stop: ends the search for the exact first and last due time.
    """
    pending = _pending(at_ms, bridge.due_ranges(should_stop), bridge.due_hours(), bridge.pending, bucket_ms, topic)
    stores = ((each.topic, owned.store.queries) for each, owned in bridge.partitions.items())
    pending.timer_topics = _add_up_bytes((name, store.pending_bytes, store.size_bytes) for name, store in stores)
    return pending


def _add_up_bytes(parts: Iterable[tuple[str, int, int]]) -> dict[str, TimerTopicBytes]:
    """Add up timer topic, pending bytes and store bytes of each part."""
    pending, stores = Counter[str](), Counter[str]()
    for topic, pending_bytes, store_bytes in parts:
        pending[topic] += pending_bytes
        stores[topic] += store_bytes
    return {each: TimerTopicBytes(pending_bytes=pending[each], store_bytes=stores[each]) for each in sorted(stores)}


def pending_in_store(
    timer_partition: TimerPartition, store: StoppedStore, at_ms: int, bucket_ms: int = HOUR_MS, topic: str | None = None
) -> Pending:
    """Return the summary of a stopped store."""
    counts, flights = store.dues(), _copies_in_flight(store)
    ranges = joined_ranges((counts.ranges(), ranges_of(flights)))
    hours = joined_hours((counts.hours(), hours_of(flights)))
    partitions = {timer_partition: sum(each.pending for each in ranges.values())}
    return _pending(at_ms, ranges, hours, partitions, bucket_ms, topic)


def _pending(
    at_ms: int,
    ranges: Mapping[str, DueRange],
    hours: Mapping[str, Mapping[int, int]],
    partitions: Mapping[TimerPartition, int],
    bucket_ms: int,
    topic: str | None,
) -> Pending:
    chosen = sorted(target for target in ranges if topic in (None, target))
    topics = {target: _of_topic(ranges[target], hours[target], bucket_ms) for target in chosen}
    total = sum(each.pending for each in topics.values())
    return Pending(at_ms=at_ms, pending=total, topics=topics, shards={str(s): n for s, n in sorted(partitions.items())})


def _of_topic(own: DueRange, hours: Mapping[int, int], bucket_ms: int) -> TopicPending:
    """Return the summary of one topic. The range and the hours have paused timers at PAUSED_MS and later."""
    due = {hour_ms: count for hour_ms, count in hours.items() if hour_ms < PAUSED_MS - HOUR_MS}
    paused = own.pending - sum(due.values())
    return TopicPending(
        pending=own.pending,
        paused=paused,
        first_due_ms=own.first_ms if due else None,
        last_due_ms=None if not due else max(due) + HOUR_MS - 1 if paused else own.last_ms,
        histogram=merge_buckets(
            Bucket(from_ms=hour_ms // bucket_ms * bucket_ms, timers=count) for hour_ms, count in due.items()
        ),
    )


def _least(times_ms: Iterable[int | None]) -> int | None:
    return min((each for each in times_ms if each is not None), default=None)


def merge_pending(parts: Sequence[Pending]) -> Pending:
    """Merge at least one summary; all have the same bucket width."""
    targets = sorted({target for part in parts for target in part.topics})
    sizes = [(topic, own.pending_bytes, own.store_bytes) for part in parts for topic, own in part.timer_topics.items()]
    return Pending(
        at_ms=parts[0].at_ms,
        pending=sum(part.pending for part in parts),
        topics={target: _sum([part.topics[target] for part in parts if target in part.topics]) for target in targets},
        shards={name: count for part in parts for name, count in part.shards.items()},
        timer_topics=_add_up_bytes(sizes),
        recovering=sorted({name for part in parts for name in part.recovering}),
    )


def _sum(parts: list[TopicPending]) -> TopicPending:
    return TopicPending(
        pending=sum(own.pending for own in parts),
        paused=sum(own.paused for own in parts),
        first_due_ms=_least(own.first_due_ms for own in parts),
        last_due_ms=max((own.last_due_ms for own in parts if own.last_due_ms is not None), default=None),
        histogram=merge_buckets(bucket for own in parts for bucket in own.histogram),
    )


def merge_buckets(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Add up the buckets with the same beginning."""
    counts: Counter[int] = Counter()
    for bucket in buckets:
        counts[bucket.from_ms] += bucket.timers
    return [Bucket(from_ms=at_ms, timers=count) for at_ms, count in sorted(counts.items())]


# -- one id


def merge_named(parts: Sequence[Named]) -> Named:
    """Merge at least one answer about an id."""
    recovering = sorted({name for part in parts for name in part.recovering})
    timers = [timer for part in parts for timer in part.timers]
    return parts[0].model_copy(update={"timers": timers, "recovering": recovering})


def named_in_bridge(bridge: Bridge, id_: str, at_ms: int) -> Named:
    return Named(at_ms=at_ms, id=id_, timers=[timer for timer, _ in named_bodies(bridge, id_.encode(), at_ms)])


def named_bodies(bridge: Bridge, name: bytes | Sent, at_ms: int) -> list[tuple[Timer, Body | None]]:
    """Return the timers under an id, or of the request at a position, each with its body: None while it is rolling."""
    found: list[tuple[Timer, Body | None]] = []
    for timer_partition, owned in bridge.partitions.items():
        if isinstance(name, bytes):
            leaving = [body for body in owned.leaving() if body.id == name]
            rows, flights = [*owned.store.queries.find([name]).values()], owned.flights.with_id(name)
        elif timer_partition == name[:2]:
            leaving = [body for body in owned.leaving() if body.origin_offset == name.offset]
            rows, flights = [owned.store.queries.find_origin(name.offset)], owned.flights.with_origin(name.offset)
        else:
            continue
        stored: list[tuple[Body, State]] = [(body, "leaving") for body in leaving]
        for row in rows:
            stored += [(body, state_in(owned, row, body.target, at_ms)) for body in owned.store.queries.bodies(row)]
        found += [(Timer.stored(timer_partition, body, body.due_ms, state), body) for body, state in stored]
        found += [(Timer.rolling(timer_partition, flight), None) for flight in flights]
    return found


def named_in_store(timer_partition: TimerPartition, store: StoppedStore, id_: str, at_ms: int) -> Named:
    """Look up an id in a stopped store."""
    held, found = store.checkpoint.held, []
    for body in (timer.body for timer in store.with_id(id_.encode())):
        state = _state_of(body.due_ms, at_ms, is_held=body.origin_offset in held)
        found.append(Timer.stored(timer_partition, body, body.due_ms, state))
    hash_ = id_hash(id_.encode())
    found += [Timer.rolling(timer_partition, flight) for flight in _copies_in_flight(store) if flight.id_hash == hash_]
    return Named(at_ms=at_ms, id=id_, timers=found)


def _copies_in_flight(store: StoppedStore) -> list[CopyInFlight]:
    checkpoint = store.checkpoint
    return [flight for flight in checkpoint.flights if flight.origin_offset not in checkpoint.ended_flights]


def state_in(owned: Partition, row: Rows, target: str, at_ms: int) -> State:
    visit_ms, origin_offset, due_ms = row[["visit_ms", "origin", "due_ms"]].tolist()[0]
    is_held = not owned.store.release_queue.is_unreleased(target, (visit_ms, origin_offset))
    return _state_of(due_ms, at_ms, is_held=is_held)


def _state_of(due_ms: int, at_ms: int, *, is_held: bool) -> State:
    if is_held:
        return "held"
    return "due" if due_ms <= at_ms else "pending"
