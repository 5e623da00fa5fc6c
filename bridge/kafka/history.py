"""History over a consumer outside the group. It returns what is committed, and waits for open transactions.

progress   OffsetFetch with require_stable: waits for offsets of open transactions
journal    up to the end as of now: after the coordinator has answered "committed", the marker may not have reached the
           journal yet, so a read up to the last stable offset could miss the last decision
a read     a new consumer with one assignment: with a consumer that had just changed its assignment, librdkafka 2.16
           once left out the first record of the journal, which is a decision. A new one takes no longer
"""

import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from bridge.config.kafka_config import Connection
from bridge.errors import PartitionUnreadableError, TopicGrownError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.consumer import MOST_HELD_BYTES, Message, record_of
from bridge.kafka.errors import answered, error_of, explained, is_passing
from bridge.kafka.readers import LIMITED_CALL_S, PartitionReader, read_together
from bridge.kafka.retry import CALL_S, Retrier, serve, serve_idle
from bridge.ports import Record, Since
from kafka_timer.kafka_client import reported
from kafka_timer.origin import TimerPartition
from schemas.journal import writer_key
from schemas.progress import Progress

T = TypeVar("T")

_Question = tuple[OffsetSpec, IsolationLevel]
_FIRST = OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]
_END = OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]
_STABLE = OffsetSpec.latest(), IsolationLevel.READ_COMMITTED  # type: ignore[no-untyped-call]
_NEWEST = OffsetSpec.max_timestamp(), IsolationLevel.READ_UNCOMMITTED  # type: ignore[no-untyped-call]
_QUICK_S = 0.5
_NAP_S = 0.02
_MARKERS_S = 0.1
"""Seconds to wait before the producers of instances that have left are fenced."""
_TAKEOVER_S = 1.5
"""Seconds to wait for the end of a dead instance's transactions. A fence of its producers takes less."""
_LITTLE = 5000
"""Most offsets of a partition that are read ahead."""
_UNSTABLE = frozenset({KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT})  # noqa: SLF001
"""librdkafka repeats the request until the timeout."""


@dataclass(eq=False)
class ConfluentHistory:
    """journal_topics: timer topic -> its journal topic. Not thread-safe.

    limit_s: seconds after which a read raises PartitionUnreadableError; None: a read waits.
    on_open_transactions: called if partitions that are to be opened have open transactions.
    Reads of timer topics hold at most the memory that `connection.fetched` allows.
    """

    _connection: Connection
    _journal_topics: Mapping[str, str]
    _retrier: Retrier
    _limit_s: float | None = None
    _on_open_transactions: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._leaders: dict[TimerPartition, object] = {}
        """Only for the grouping of requests: the client finds the leaders of a request by itself."""
        self._committed_ahead: dict[TimerPartition, TopicPartition] = {}
        self._bounds_ahead: dict[TimerPartition, tuple[int, int]] = {}
        self._read_ahead: dict[tuple[TimerPartition, int | None], tuple[int, list[Message]]] = {}
        """By partition of a timer topic or journal and first offset: end and messages."""
        self._call_s = CALL_S if self._limit_s is None else LIMITED_CALL_S
        self._make_clients()

    def _make_clients(self) -> None:
        self._consumer: Any = self._new_consumer()
        self._admin: Any = make(AdminClient, clients.admin(self._connection), self._retrier)

    def ask_ahead(self, partitions: Sequence[TimerPartition], since: Since | None = None) -> None:
        self._committed_ahead, self._bounds_ahead, self._read_ahead = {}, {}, {}
        if not partitions:
            return
        serve_idle(self._consumer, self._admin)
        places = [*partitions, *map(self._journal_of, partitions)]
        first, stable = map(_offsets, self._in_time(places, _FIRST, _STABLE))
        self._bounds_ahead = {place: (first[place], stable[place]) for place in first.keys() & stable.keys()}
        with suppress(KafkaException):
            answers = self._consumer.committed([TopicPartition(*each) for each in partitions], timeout=_QUICK_S)
            self._committed_ahead = {
                TimerPartition(found.topic, found.partition): found for found in answers if found.error is None
            }
        serve(self._consumer)
        if since is not None:
            self._read_since({place: starts for place in self._committed_ahead if (starts := since(place)) is not None})

    def _read_since(self, starts: Mapping[TimerPartition, tuple[int, int]]) -> None:
        """Read the requests and the journal from these offsets on, with one consumer: a new one takes milliseconds."""
        (ends,) = self._in_time([*map(self._journal_of, starts)], _END)
        spans = dict[TimerPartition, range]()
        for place, (request, decision) in starts.items():
            spans[place] = range(request, self._committed_ahead[place].offset)
            if (end := ends.get(journal := self._journal_of(place))) is not None:
                spans[journal] = range(decision, end.offset)
        little = {place: span for place, span in spans.items() if 0 <= span.stop - span.start <= _LITTLE}
        make_consumer = partial(self._new_consumer, is_bounded=True)
        found = read_together(make_consumer, little, self._retrier, LIMITED_CALL_S, size_bytes=MOST_HELD_BYTES)
        self._read_ahead = {(place, little[place].start): (little[place].stop, read) for place, read in found.items()}

    def progress(self, partition: TimerPartition) -> Progress | None:
        found = self._committed_ahead.pop(partition, None)
        if found is None:
            serve_idle(self._consumer)
            found = self._retry(f"{partition}: waiting for stable progress", lambda: self._committed(partition))
        return None if found.offset < 0 else Progress.committed(found.offset, found.metadata)

    def _committed(self, partition: TimerPartition) -> TopicPartition:
        found: TopicPartition
        try:
            (found,) = self._consumer.committed([TopicPartition(*partition)], timeout=self._call_s)
        finally:
            serve(self._consumer)
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        if partition in self._bounds_ahead:
            return self._bounds_ahead.pop(partition)
        first, stable = self._ask_one(partition, _FIRST, _STABLE)
        return first, stable

    def with_open_transactions(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        # Markers follow a commit within milliseconds, so wait before a background recovery is started.
        serve_idle(self._consumer, self._admin)
        found = self._still_open(partitions, _QUICK_S if self._on_open_transactions is None else _MARKERS_S)
        if found and self._on_open_transactions is not None:
            self._on_open_transactions()
            found = self._still_open(partitions, _TAKEOVER_S)
        return found

    def _still_open(self, partitions: Sequence[TimerPartition], limit_s: float) -> set[TimerPartition]:
        """Return the partitions with open transactions as soon as there are none, at the latest after `limit_s`."""
        until_s = time.monotonic() + limit_s
        while (found := self._with_open_transactions(partitions)) and time.monotonic() < until_s:
            time.sleep(_NAP_S)
        return found

    def _with_open_transactions(self, partitions: Sequence[TimerPartition]) -> set[TimerPartition]:
        """Leave out partitions whose broker does not answer: the read that follows waits for it."""
        journals = {self._journal_of(partition): partition for partition in partitions}
        offsets = self.stable_and_end_offsets(list(journals))
        found = {journals[place] for place, (stable, end) in offsets.items() if stable < end}
        try:
            answers = self._consumer.committed([TopicPartition(*each) for each in partitions], timeout=_QUICK_S)
        except KafkaException as failure:
            return set(partitions) if error_of(failure).code() in _UNSTABLE else found
        return found | {
            TimerPartition(answer.topic, answer.partition)
            for answer in answers
            if answer.error is not None and answer.error.code() in _UNSTABLE
        }

    def newest_journal_times(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        journals = {self._journal_of(partition): partition for partition in partitions}
        (found,) = self._in_time(journals, _NEWEST)
        return {journals[place]: newest.timestamp for place, newest in found.items() if newest.timestamp >= 0}

    def first_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        return _offsets(*self._in_time(partitions, _FIRST))

    def stable_and_end_offsets(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, tuple[int, int]]:
        stable, ends = map(_offsets, self._in_time(partitions, _STABLE, _END))
        return {partition: (stable[partition], ends[partition]) for partition in stable.keys() & ends.keys()}

    def offset_at(self, partition: TimerPartition, timestamp_ms: int) -> int:
        (found,) = self._ask_one(partition, _at(timestamp_ms))
        return found if found >= 0 else self.bounds(partition)[1]

    def requests(
        self, partition: TimerPartition, from_offset: int, to_offset: int, skipped: Container[int] = ()
    ) -> Iterator[list[Record]]:
        for messages in self._read(partition, from_offset, to_offset, skipped):
            yield [record_of(message) for message in messages]

    def journal_ends(self, partitions: Sequence[TimerPartition]) -> dict[TimerPartition, int]:
        journals = {self._journal_of(partition): partition for partition in partitions}
        (ends,) = self._ask(journals, _END)
        return {journals[place]: end for place, end in ends.items()}

    def journal_bounds(self, partition: TimerPartition) -> tuple[int, int]:
        return self.bounds(self._journal_of(partition))

    def journal(self, partition: TimerPartition, *, from_offset: int | None, since_ms: int | None) -> Iterator[bytes]:
        journal = self._journal_of(partition)
        if (ahead := self._read_ahead.pop((journal, from_offset), None)) is not None:
            yield from (message.value() for message in ahead[1])
            return
        (end,) = self._ask_one(journal, _END)
        if from_offset is None:
            (from_offset,) = (0,) if since_ms is None else self._ask_one(journal, _at(since_ms))
        # The broker returns -1 if no record is that new.
        for messages in self._read(journal, end if from_offset < 0 else from_offset, end):
            yield from (message.value() for message in messages)

    def journal_tails(
        self, partitions: Sequence[TimerPartition], look_back: int
    ) -> dict[TimerPartition, list[tuple[bytes | None, bytes]]]:
        journals = {self._journal_of(partition): partition for partition in partitions}
        first, ends = self._ask(journals, _FIRST, _STABLE)
        spans = {place: range(max(first[place], end - look_back), end) for place, end in ends.items()}
        read = read_together(self._new_consumer, spans, self._retrier, self._limit_s)
        if missing := spans.keys() - read.keys():
            raise PartitionUnreadableError(f"{min(missing)}: reading the end: not in {self._limit_s} s")
        return {journals[place]: [(each.key(), each.value()) for each in messages] for place, messages in read.items()}

    def journal_key(self, partition: TimerPartition) -> bytes:
        return writer_key(self._connection.group, partition.topic)

    def close(self) -> None:
        self._consumer.close()

    def _journal_of(self, partition: TimerPartition) -> TimerPartition:
        return TimerPartition(self._journal_topics[partition.topic], partition.partition)

    # -- asking

    def _ask(self, places: Collection[TimerPartition], *questions: _Question) -> list[dict[TimerPartition, int]]:
        """Return the answers to each question. All are asked at once, and again until all are answered."""

        def ask() -> list[dict[TimerPartition, int]]:
            asked = [self._list_offsets(places, question) for question in questions]
            try:
                return [
                    {place: reported(answered(answer, 2 * self._call_s)).offset for place, answer in answers.items()}
                    for answers in asked
                ]
            except KafkaException:
                self._leaders.clear()
                # The client asks the leader that it knows: after an election it got FENCED_LEADER_EPOCH forever.
                for place in places:
                    self._require_partition(place, self._admin.list_topics(place.topic, timeout=self._call_s))
                raise

        return self._retry(f"{next(iter(places))}: asking for offsets", ask) if places else [{} for _ in questions]

    def _ask_one(self, place: TimerPartition, *questions: _Question) -> Iterator[int]:
        return (answers[place] for answers in self._ask([place], *questions))

    def _list_offsets(self, places: Collection[TimerPartition], question: _Question) -> dict[TimerPartition, Any]:
        """Return a future for each. One request for each leader, because one that hangs delays a common answer."""
        serve(self._admin)
        spec, level = question
        asked: dict[object, dict[TopicPartition, OffsetSpec]] = {}
        for place, leader in self._leaders_of(places).items():
            asked.setdefault(leader, {})[TopicPartition(*place)] = spec
        limit_s = self._call_s
        answers = [
            self._admin.list_offsets(each, isolation_level=level, request_timeout=limit_s) for each in asked.values()
        ]
        return {TimerPartition(at.topic, at.partition): answer for each in answers for at, answer in each.items()}

    def _leaders_of(self, places: Collection[TimerPartition]) -> dict[TimerPartition, object]:
        """Return the last known leader of each, the partition itself if that is unknown or there is only one."""
        for topic in {place.topic for place in places if len(places) > 1 and place not in self._leaders}:
            with suppress(KafkaException):
                found = self._admin.list_topics(topic, timeout=_QUICK_S).topics[topic].partitions
                self._leaders |= {TimerPartition(topic, number): each.leader for number, each in found.items()}
        return {place: self._leaders.get(place, place) for place in places}

    def _in_time(self, places: Collection[TimerPartition], *questions: _Question) -> list[dict[TimerPartition, Any]]:
        """Return the results that come at once: a partition without a leader must not delay the others."""
        asked = [self._list_offsets(places, question) for question in questions]
        until_s = time.monotonic() + _QUICK_S
        found: list[dict[TimerPartition, Any]] = [{} for _ in questions]
        for results, answers in zip(found, asked, strict=True):
            for place, answer in answers.items():
                with suppress(KafkaException, TimeoutError):
                    results[place] = answer.result(max(0.0, until_s - time.monotonic()))
        if sum(map(len, found)) < sum(map(len, asked)):
            self._leaders.clear()
        return found

    def _require_partition(self, place: TimerPartition, cluster: Any) -> None:
        """Raise TopicGrownError if the journal lacks the partition: waiting would not create it."""
        found = cluster.topics.get(place.topic)
        count = 0 if found is None else len(found.partitions)
        if place.topic in self._journal_topics.values() and 0 < count <= place.partition:
            raise TopicGrownError(f"{place.topic} has {count} partitions, its timer topic has more: adding them")

    def _retry(self, what: str, call: Callable[[], T]) -> T:
        """Return what `call` returns. Make new clients if no broker answers: the old ones may have lost all brokers."""
        serve_idle(self._admin)
        while True:
            until_s = time.monotonic() + (self._limit_s or clients.REPLACED_AFTER_S)

            def is_asked_again(error: KafkaError, until_s: float = until_s) -> bool:
                return is_passing(error) and time.monotonic() < until_s

            try:
                return self._retrier.retry_until_success(what, call, is_asked_again)
            except KafkaException as failure:
                error = error_of(failure)
                if not is_passing(error):
                    raise explained(what, error) from failure
                self._consumer.close()
                self._make_clients()
                if self._limit_s is not None:
                    raise PartitionUnreadableError(f"{what}: {error.str()} for {self._limit_s} s") from failure

    # -- reading

    def _new_consumer(self, *, is_bounded: bool = False) -> Any:
        return make(Consumer, clients.reader(self._connection, is_bounded=is_bounded), self._retrier)

    def _read(
        self, place: TimerPartition, start: int, end: int, skipped: Container[int] = ()
    ) -> Iterator[list[Message]]:
        """Yield committed messages of [start, end) that are still kept; end when all below `end` are decided."""
        ahead = self._read_ahead.pop((place, start), None)
        if ahead is not None and ahead[0] == end:
            yield ahead[1]
            return
        reader = PartitionReader(place, start, end, skipped, self._retrier, self._limit_s)
        # Retention goes on while we read.
        while reader.position < end and (first := next(self._ask_one(place, _FIRST))) < end:
            reader.position = max(reader.position, first)
            with closing(self._new_consumer(is_bounded=place.topic in self._journal_topics)) as consumer:
                yield from reader.read(consumer)


def _offsets(results: Mapping[TimerPartition, Any]) -> dict[TimerPartition, int]:
    """Return the offsets. A partition whose leader no broker knows has none."""
    return {place: result.offset for place, result in results.items() if result.offset != OFFSET_INVALID}


def _at(timestamp_ms: int) -> _Question:
    return OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_UNCOMMITTED
