"""KafkaPort over librdkafka: clients are created on first use, and a broker has 10 s to answer."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bridge.config.settings import Settings
from bridge.errors import BridgeError
from bridge.http.api.ports import GroupView, RedriveCount, TopicReader
from bridge.kafka import ConfluentGroup, ConfluentHistory, ConfluentTopics, Retrier
from bridge.redrive.marks import MarkIndex, MarkReader
from bridge.redrive.rules import Parked, RedriveFilter
from bridge.redrive.sender import redrive_session
from kafka_timer import TimerProducer

_WAIT_S = 10.0
_SEND_TIMEOUT_MS = 15_000


class ConfluentKafkaPort:
    """KafkaPort by the settings of a bridge."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ending = Retrier()
        """Ends all waits on close. `_retrier`, for readers, starts again with each read."""
        self._retrier = Retrier(self._ending)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._redriving = threading.Lock()
        self._group: ConfluentGroup | None = None
        self._reader: _HistoryReader | None = None
        self._producers: dict[str, TimerProducer] = {}
        self._marks = MarkReader(settings.redrive_marks)

    def group(self) -> GroupView:
        with self._lock:
            if self._group is None:
                self._group = ConfluentGroup(self._settings.connection(), self._retrier)
        members = self._group.members()
        return GroupView(frozenset(self._group.partitions(self._settings.timer_topics())), members)

    @contextmanager
    def reader(self) -> Iterator[TopicReader]:
        if not self._reading.acquire(timeout=_WAIT_S):
            raise BridgeError("other requests read from Kafka, and it takes long: ask again")
        try:
            if self._reader is None:
                self._reader = _HistoryReader(self._settings, self._retrier)
            self._retrier.give_up_in(_WAIT_S)
            yield self._reader
        finally:
            self._reading.release()

    def producer(self, timer_topic: str) -> TimerProducer:
        with self._lock:
            known = self._producers.get(timer_topic)
            if known is not None and not known.is_broken:
                return known
            servers = {"bootstrap.servers": self._settings.bootstrap_servers}
            config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **self._settings.kafka, **servers}
            made = self._producers[timer_topic] = TimerProducer(
                config, timer_topic=timer_topic, control_topic=self._settings.control_topic
            )
        if known is not None:
            known.close()
        return made

    def redriven(self) -> MarkIndex:
        with self.reader() as reader:
            return self._marks.update(reader, reader.partitions)

    def redrive(self, records: Sequence[Parked], on_sent: Callable[[Sequence[Parked]], None]) -> RedriveCount:
        chosen = {(each.place, each.offset) for each in records}
        if not chosen:
            return RedriveCount(0, ())
        selection = RedriveFilter(
            timer_topics=frozenset(self._settings.timer_topics()),
            codes=frozenset(each.code for each in records),
            origins=frozenset(each.origin_text for each in records),
            from_ms=min(each.parked_ms for each in records),
        )
        if not self._redriving.acquire(blocking=False):
            raise BridgeError("records are being sent again already: wait for that to end, then do it again")
        try:
            with redrive_session(self._settings, self._ending) as work:
                work.begin(self._settings.replication_factor)
                found = work.look(selection)
                found.limit_to(None)
                sent = work.apply([each for each in found.selected if (each.place, each.offset) in chosen], on_sent)
            return RedriveCount(sent.count, sent.refused)
        finally:
            self._redriving.release()

    def close(self) -> None:
        self._ending.give_up_in(0)
        for producer in self._producers.values():
            producer.close()
        if self._reader is not None:
            self._reader.close()


class _HistoryReader(ConfluentHistory):
    def __init__(self, settings: Settings, retrier: Retrier) -> None:
        connection = settings.connection()
        super().__init__(connection, {}, retrier)
        self.partitions = ConfluentTopics(connection, retrier).partitions
