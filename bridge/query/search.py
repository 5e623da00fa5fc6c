"""List pending timers in due order, or the latest first, searched in short steps so that deliveries do not wait.

    search = Search(filter_)
    is_done = search.step(bridge, now_ms, should_stop)    one step after each turn, as long as not should_stop()
    search.listing()                                      after the last one: the first `limit`, and the count of all

The log is not in due order, so all of it is scanned: rows of 60 bytes, and bodies only to match key or header. A timer
that is rolled meanwhile may be counted twice or not at all, but is never listed twice.

One timer in full is found by its id, or by the offset of its request. Bytes that are not UTF-8 are given in base64.
"""

import base64
import hashlib
import json
from codecs import utf_8_decode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from bridge.loop.loop import Bridge
from bridge.partition.options import parse_instant_ms
from bridge.partition.partition import Partition
from bridge.partition.request import occurrence_of
from bridge.query.summary import Bucket, Timer, merge_buckets, named_bodies, state_in
from kafka_timer import Sent
from kafka_timer.durations import duration_text, parse_duration_ms
from kafka_timer.headers import MAX_INT64, PAUSED_MS
from kafka_timer.instants import SECONDS_BELOW
from kafka_timer.origin import TimerPartition
from schemas.journal import CopyInFlight
from schemas.recurrence import described, due_times
from timer.format.body import Body, Peek, unpack_headers
from timer.format.unit import NO_ROWS, TIMER_ROW, Rows, topic_hash

_BODIES_AT_ONCE = 64
MAX_LISTED = 20_000
_MAX_BUCKETS = 1000
MAX_SHOWN_BYTES = 64 << 10
"""Most bytes of a value that are shown."""
_PREVIEW_BYTES = 200
ANY_RULE = "any"
_IN_FLIGHT = -1
"""The unit of a timer whose copy is in flight."""


class SearchPosition(NamedTuple):
    """A position in due order; a list goes on after it."""

    due_ms: int
    partition: TimerPartition
    origin_offset: int

    def __str__(self) -> str:
        return f"{self.due_ms},{self.partition.topic},{self.partition.partition},{self.origin_offset}"

    @classmethod
    def parse(cls, text: str) -> "SearchPosition":
        """Parse the text of a position. Raises ValueError."""
        try:
            due_ms, topic, partition, origin_offset = text.split(",")
            return cls(int(due_ms), TimerPartition(topic, int(partition)), int(origin_offset))
        except ValueError:
            raise ValueError("give `after` of the previous page") from None


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _instant(value: object) -> object:
    # An earlier ISO text finds the same timers. Peers get the number, and would refuse a smaller one.
    return max(parse_instant_ms(str(value)), SECONDS_BELOW) if value else None


def parsed_by(parse: Callable[[str], int]) -> BeforeValidator:
    """Parse the text of a query; pass our own numbers through."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _origins(text: str) -> str:
    """Check and join them by single spaces: a browser sends other ones."""
    return " ".join("/".join(map(str, Sent.parse(each))) for each in text.split())


WITH_UNIT = PlainSerializer(lambda ms: "-" * (ms < 0) + duration_text(abs(ms)), when_used="unless-none")
After = Annotated[str, AfterValidator(lambda text: str(SearchPosition.parse(text)))] | None
Instant = Annotated[int | None, BeforeValidator(_instant)]
"""Epoch ms, or ISO 8601 with a zone."""


class Selector(Question):
    """Selects pending timers. A field that is left out or empty matches all."""

    topic: str | None = Field(None, description="The target topic.")
    key_prefix: str | None = Field(None, description="The beginning of the request's key.")
    key: str | None = Field(None, description="Text anywhere in the request's key.")
    due_from: Instant = None
    due_to: Instant = Field(None, description="Exclusive.")
    header: str | None = Field(None, description="name=value, or name alone for any value; of the request.")
    rule: str | None = Field(
        None, description="A part of the rule of recurring timers, such as `every 1h`; any: all of them."
    )
    paused: bool | None = Field(None, description="Timers that were paused one by one: true or false.")
    origins: Annotated[str, AfterValidator(_origins)] | None = Field(
        None, description="topic/partition/offset of their first requests, separated by spaces."
    )

    def digest(self) -> str:
        text = json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def wanted_header(self) -> tuple[str, bytes | None] | None:
        """Name and value of the header, a value of None for any; None if none is wanted."""
        name, equals, value = (self.header or "").partition("=")
        return (name, value.encode() if equals else None) if name else None

    @property
    def reads_bodies(self) -> bool:
        """True if the rows of the store do not say which timers match."""
        return bool(self.key_prefix or self.key or self.rule or self.wanted_header)

    def matches_body(self, body: Body) -> bool:
        """True if topic, key, rule and header match."""
        key = body.key or b""
        if self.topic and self.topic != body.target:
            return False
        if not key.startswith((self.key_prefix or "").encode()) or (self.key or "").encode() not in key:
            return False
        if self.rule:
            occurrence = occurrence_of(body)
            if occurrence is None or (self.rule != ANY_RULE and self.rule not in described(occurrence.rule)):
                return False
        if self.wanted_header is None:
            return True
        name, value = self.wanted_header
        return any(own == name and value in (None, given) for own, given in unpack_headers(body.headers))


class TimerFilter(Selector):
    """Which timers, and what of them."""

    after: After = Field(None, description="`after` of the previous page.")
    limit: int = Field(100, ge=0, le=MAX_LISTED, description="0: only their number.")
    bucket: Annotated[int | None, parsed_by(parse_duration_ms), WITH_UNIT] = Field(
        None, gt=0, description="Counts by due time too: 1m, 1h; give due_from and due_to."
    )
    order: Literal["first", "latest"] = Field("first", description="latest: in reverse order of due times.")
    content: bool = Field(False, description="True: with key, rule, and the beginning of the value.")

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.bucket is None:
            return self
        if self.due_from is None or self.due_to is None or self.due_to - self.due_from > _MAX_BUCKETS * self.bucket:
            raise ValueError(f"bucket: give due_from and due_to, at most {_MAX_BUCKETS} buckets apart")
        return self


class Content(BaseModel):
    """Bytes of a message: `text`, or `base64` if they are not UTF-8."""

    bytes: int
    text: str | None = None
    base64: str | None = None
    is_cut: bool = Field(default=False, description="Only the beginning is shown.")


def content(raw: bytes | None, most: int = MAX_SHOWN_BYTES) -> Content | None:
    """Return the bytes as text or base64, at most the first `most`."""
    if raw is None:
        return None
    shown, is_cut = raw[:most], len(raw) > most
    try:
        text, _ = utf_8_decode(shown, "strict", not is_cut)  # the cut may be inside a character
    except UnicodeDecodeError:
        return Content(bytes=len(raw), base64=base64.b64encode(shown).decode(), is_cut=is_cut)
    return Content(bytes=len(raw), text=text, is_cut=is_cut)


class NamedTimer(Timer):
    """A timer with its id: as text, or in base64 if it is not UTF-8. The content of its request is there if asked for.

    While it is `rolling`, only the id is known.
    """

    id: str | None = None
    id_base64: str | None = None
    key: Content | None = None
    recurs: str | None = Field(default=None, description="The rule of a recurring timer.")
    value_bytes: int | None = Field(default=None, description="Null: the value is null, or unknown.")
    value: Content | None = Field(default=None, description="Only if it was asked for; in lists the beginning.")

    @property
    def raw_id(self) -> bytes | None:
        """The id in bytes, as it was sent."""
        if self.id_base64 is not None:
            return base64.b64decode(self.id_base64)
        return None if self.id is None else self.id.encode()

    @property
    def origin_text(self) -> str:
        return f"{self.shard}/{self.origin}"

    @property
    def place(self) -> SearchPosition:
        topic, _, number = self.shard.rpartition("/")
        return SearchPosition(self.due_ms, TimerPartition(topic, int(number)), self.origin)


class Header(BaseModel):
    """`value` null: the header is null."""

    name: str
    value: Content | None


class TimerDetail(NamedTimer):
    """A timer with its whole request, and its value if the question has `value`."""

    headers: list[Header] = Field(default_factory=list)
    occurrence: int | None = Field(default=None, description="Number of the occurrence that it waits for.")
    next_due_ms: list[int] = Field(default_factory=list, description="Its next times if it recurs, five at most.")
    requested_ms: int | None = Field(default=None, description="When this copy came, by the broker's clock.")


class Listing(BaseModel):
    """Timers by due time, then by partition and origin."""

    at_ms: int
    matching: int = Field(description="Number of matching timers from there on, including the listed ones.")
    timers: list[NamedTimer]
    after: str | None = Field(default=None, description="Give it as `after` to go on; null: these are the last ones.")
    histogram: list[Bucket] = Field(default_factory=list, description="By due time, if `bucket` was given.")
    topics: dict[str, list[Bucket]] = Field(
        default_factory=dict,
        description="The histogram by target topic. Topics of which nothing is left are in `histogram` only.",
    )
    partitions: list[str] = Field(description="Partitions that the answer covers.")


def id_fields(raw: bytes | None) -> dict[str, str | None]:
    """Return the fields `id` or `id_base64` of a NamedTimer."""
    if raw is None:
        return {}
    try:
        return {"id": raw.decode()}
    except UnicodeDecodeError:
        return {"id_base64": base64.b64encode(raw).decode()}


def content_fields(body: Body, most_bytes: int) -> dict[str, Any]:
    """Return the fields of a NamedTimer that come from its request. most_bytes: of the value; 0 leaves it out."""
    occurrence = occurrence_of(body)
    return {
        "key": content(body.key, most_bytes or MAX_SHOWN_BYTES),
        "recurs": None if occurrence is None else described(occurrence.rule),
        "value_bytes": None if body.value is None else len(body.value),
        "value": content(body.value, most_bytes) if most_bytes else None,
    }


def merge_listings(parts: Iterable[Listing], at_ms: int, limit: int, *, is_latest_first: bool = False) -> Listing:
    """Return the first `limit` timers of all parts, up to where every part is complete."""
    listings = list(parts)
    topics = sorted({topic for each in listings for topic in each.topics})
    ends = [SearchPosition.parse(each.after) for each in listings if each.after is not None]
    complete_to = (max if is_latest_first else min)(ends, default=None)
    places = ((timer.place, timer) for each in listings for timer in each.timers)
    found = sorted(places, key=itemgetter(0), reverse=is_latest_first)
    if complete_to is not None:
        found = [each for each in found if each[0] == complete_to or (each[0] < complete_to) != is_latest_first]
    if len(found) > limit:
        found = found[:limit]
        complete_to = found[-1][0]
    return Listing(
        at_ms=at_ms,
        matching=sum(each.matching for each in listings),
        timers=[timer for _, timer in found],
        after=None if complete_to is None else str(complete_to),
        histogram=merge_buckets(bucket for each in listings for bucket in each.histogram),
        topics={
            topic: merge_buckets(part for each in listings for part in each.topics.get(topic, ())) for topic in topics
        },
        partitions=[name for each in listings for name in each.partitions],
    )


class Search:
    """Search the partitions that are open here when it begins."""

    def __init__(self, filter_: TimerFilter) -> None:
        self._filter = filter_
        self._sign = -1 if filter_.order == "latest" else 1
        self._after = None if filter_.after is None else SearchPosition.parse(filter_.after)
        self._origins = [Sent.parse(each) for each in (filter_.origins or "").split()]
        self._rows: dict[TimerPartition, Rows] = {}
        self._matching = 0
        self._buckets: dict[int, Counter[int]] = defaultdict(Counter)
        """By the topic's hash: start of the bucket to number of timers."""
        self._topics: dict[int, str] = {}
        self._flights: dict[tuple[TimerPartition, int], CopyInFlight] = {}
        self._timers: list[NamedTimer] = []
        self._steps = self._search()

    def step(self, bridge: Bridge, now_ms: int, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Do the next part. Return True once the search is done. Raises CorruptStoreError."""
        self._bridge, self._at_ms, self._should_stop = bridge, now_ms, should_stop
        return next(self._steps, True)

    def listing(self) -> Listing:
        """Build the result. Many buckets take long: not in the loop's thread."""
        places = self._chosen
        after = str(places[-1][0]) if 0 < len(places) < self._matching else None
        of_topic = {
            hash_: [Bucket(from_ms=at_ms, timers=count) for at_ms, count in sorted(counts.items())]
            for hash_, counts in self._buckets.items()
        }
        return Listing(
            at_ms=self._at_ms,
            matching=self._matching,
            timers=self._timers,
            after=after,
            histogram=merge_buckets(bucket for buckets in of_topic.values() for bucket in buckets),
            topics={self._topics[hash_]: buckets for hash_, buckets in of_topic.items() if hash_ in self._topics},
            partitions=self._covered,
        )

    def _search(self) -> Iterator[bool]:
        """Yield False where a step ends."""
        self._partitions = dict(self._bridge.partitions)
        for timer_partition in sorted(self._partitions):
            first: int | None = 0
            while first is not None:
                first = self._scan_rows(timer_partition, first)
                if self._should_stop():
                    yield False
        self._chosen = self._choose_first()
        if self._buckets:
            self._topics = {topic_hash(topic): topic for topic in self._bridge.due_hours()}
        for place, at in self._chosen:
            self._list_timer(place, at)
            if self._should_stop():
                yield False
        self._covered = [str(each) for each in sorted(self._partitions) if self._still_open(each) is not None]

    def _still_open(self, timer_partition: TimerPartition) -> Partition | None:
        """Return the partition, or None if it was closed or opened again: then its units are others."""
        owned = self._bridge.partitions.get(timer_partition)
        return owned if owned is self._partitions[timer_partition] else None

    # -- scan

    def _scan_rows(self, timer_partition: TimerPartition, first: int) -> int | None:
        """Scan the block of the partition's log from the unit `first` on, or a part of it. Return where to go on."""
        owned = self._still_open(timer_partition)
        if owned is None:  # the next owner lists its timers
            return None
        rows, following = owned.store.queries.list_pending(first)
        rows = rows[rows["unit"] >= first]
        rows = rows[self._matches_row(timer_partition, rows)]
        if self._filter.reads_bodies:
            rows, stopped_at = self._match_bodies(owned, rows)
            following = following if stopped_at is None else stopped_at
        elif following is None:  # keys and headers of copies in flight are not here
            alive = owned.flights.alive()
            self._flights |= {(timer_partition, each.origin_offset): each for each in alive}
            cells = [(0, at.origin_offset, _IN_FLIGHT, 0, 0, topic_hash(at.target), 0, at.due_ms) for at in alive]
            flights = np.array(cells, TIMER_ROW)
            rows = np.concatenate([rows, flights[self._matches_row(timer_partition, flights)]])
        self._keep(timer_partition, rows)
        return following

    def _matches_row(self, timer_partition: TimerPartition, rows: Rows) -> NDArray[np.bool_]:
        """Match what is in the row."""
        filter_, due = self._filter, rows["due_ms"] % PAUSED_MS
        matches: NDArray[np.bool_] = due >= (filter_.due_from or 0)
        if filter_.due_to is not None:
            matches &= due < filter_.due_to
        if filter_.topic:
            matches &= rows["topic_hash"] == topic_hash(filter_.topic)
        if filter_.paused is not None:
            matches &= (rows["due_ms"] >= PAUSED_MS) == filter_.paused
        if self._after is not None:
            (due_ms, at, origin_offset), sign = self._after, self._sign
            is_after = np.full(len(rows), (timer_partition > at) == (sign > 0))
            if timer_partition == at:
                is_after = sign * (rows["origin"] - origin_offset) > 0
            matches &= (sign * (due - due_ms) > 0) | ((due == due_ms) & is_after)
        if self._origins:
            own = [each.offset for each in self._origins if each[:2] == timer_partition]
            matches &= np.isin(rows["origin"], own)
        return matches

    def _match_bodies(self, owned: Partition, rows: Rows) -> tuple[Rows, int | None]:
        """Return the rows whose bodies match, and the unit at which the end of a step cut the scan, if it did."""
        found = [NO_ROWS]
        for at in range(0, len(rows), _BODIES_AT_ONCE):
            if at and self._should_stop():
                return np.concatenate(found), int(rows["unit"][at])
            part = rows[at : at + _BODIES_AT_ONCE]
            found.append(part[[self._filter.matches_body(body) for body in owned.store.queries.bodies(part)]])
        return np.concatenate(found), None

    def _keep(self, timer_partition: TimerPartition, rows: Rows) -> None:
        """Count rows, and keep the first `limit` in due order. A paused timer counts by its own due time."""
        rows["due_ms"] %= PAUSED_MS
        self._matching += len(rows)
        if self._filter.bucket is not None:
            self._count(rows, self._filter.bucket)
        limit, kept = self._filter.limit, self._rows.get(timer_partition, NO_ROWS)
        if limit == len(kept):  # the usual case, and a sort is expensive
            due, sign = rows["due_ms"], self._sign
            rows = rows[sign * due <= (sign * kept["due_ms"]).max(initial=-MAX_INT64)]
        if len(rows) == 0:
            return
        kept = np.concatenate([kept, rows])
        if len(kept) > limit:
            kept = kept[np.lexsort((self._sign * kept["origin"], self._sign * kept["due_ms"]))]
            _, first = np.unique(kept["origin"], return_index=True)
            kept = kept[np.sort(first)][:limit]
        self._rows[timer_partition] = kept

    def _count(self, rows: Rows, width_ms: int) -> None:
        """Count rows by topic and by bucket of the due time."""
        topics, of_topic = np.unique(rows["topic_hash"], return_inverse=True)
        starts, of_start = np.unique(rows["due_ms"] // width_ms * width_ms, return_inverse=True)
        cells, counts = np.unique(of_topic * len(starts) + of_start, return_counts=True)
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            topic, start = divmod(cell, len(starts))
            self._buckets[int(topics[topic])][int(starts[start])] += count

    # -- list

    def _choose_first(self) -> list[tuple[SearchPosition, int]]:
        """Return each with its unit; _IN_FLIGHT if it has none now."""
        found: dict[tuple[TimerPartition, int], tuple[SearchPosition, int]] = {}
        for timer_partition, rows in self._rows.items():
            for unit, due_ms, origin_offset in rows[["unit", "due_ms", "origin"]].tolist():
                found[timer_partition, origin_offset] = SearchPosition(due_ms, timer_partition, origin_offset), unit
        ordered = sorted(found.values(), key=itemgetter(0), reverse=self._sign < 0)
        return ordered[: self._filter.limit]

    def _list_timer(self, place: SearchPosition, unit: int) -> None:
        """List the timer, unless it has left or ended meanwhile."""
        owned = self._still_open(place.partition)
        if owned is None:
            return
        row = NO_ROWS if unit == _IN_FLIGHT else owned.store.queries.pending_at(unit)
        if len(row) == 0:  # it has left, or its copy is in flight
            known = self._flights.get((place.partition, place.origin_offset))
            for flight in owned.flights.with_origin(place.origin_offset) if known is None else [known]:
                due_ms = flight.due_ms - flight.due_ms % PAUSED_MS + place.due_ms
                self._timers.append(NamedTimer.rolling(place.partition, flight._replace(due_ms=due_ms)))
            return
        more: dict[str, Any] = {}
        peek: Body | Peek = owned.store.queries.peek(row)
        if self._filter.content:
            (peek,) = owned.store.queries.bodies(row)
            more = content_fields(peek, _PREVIEW_BYTES)
        more |= id_fields(peek.id)
        state = state_in(owned, row, peek.target, self._at_ms)
        self._timers.append(NamedTimer.stored(place.partition, peek, int(row["due_ms"][0]), state, **more))


# -- one timer in full


def find_timers(bridge: Bridge, name: bytes | Sent, now_ms: int, *, with_value: bool) -> list[TimerDetail]:
    """Return the timers under an id, or of the request at a position, in all partitions that are open here."""
    id_ = name if isinstance(name, bytes) else None
    return [_detail(*found, id_, with_value=with_value) for found in named_bodies(bridge, name, now_ms)]


def _detail(timer: Timer, body: Body | None, id_: bytes | None, *, with_value: bool) -> TimerDetail:
    """id_: of the question, for a timer without body."""
    fields = timer.model_dump() | id_fields(id_ if body is None else body.id)
    if body is None:
        return TimerDetail(**fields)
    occurrence = occurrence_of(body._replace(due_ms=timer.due_ms))
    return TimerDetail(
        **fields,
        **content_fields(body, MAX_SHOWN_BYTES if with_value else 0),
        headers=[Header(name=name, value=content(value)) for name, value in unpack_headers(body.headers)],
        occurrence=None if occurrence is None else max(1, occurrence.number),
        next_due_ms=[] if occurrence is None else due_times(occurrence),
        requested_ms=body.timestamp_ms,
    )
