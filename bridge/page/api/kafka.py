"""The Kafka operations that the API needs. Each call may wait for a broker, so it is made from a thread (`in_thread`).

Clients are created on first use, and a broker has 10 s to answer. Tests put a Kafka in memory in their place.
"""

import asyncio
import threading
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence, Set
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from bridge.config.settings import Settings
from bridge.errors import BridgeError
from bridge.kafka import ConfluentGroup, Retrier
from bridge.ports import Member
from bridge.redrive.marks import MarkIndex
from bridge.redrive.rules import Parked, RedriveFilter, TopicReader
from bridge.redrive.sender import ConfluentRedrive, RedriveResult, TopicHistory
from kafka_timer import TimerOperator
from kafka_timer.origin import TimerPartition

P = ParamSpec("P")
T = TypeVar("T")

_WAIT_S = 10.0
_SEND_TIMEOUT_MS = 15_000


def in_thread(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let `work` run in a thread, not in FastAPI's: those serve metrics too."""

    @wraps(work)
    async def run(*arguments: P.args, **more: P.kwargs) -> T:
        return await asyncio.to_thread(work, *arguments, **more)

    return run


class GroupView(NamedTuple):
    """All partitions of the timer topics, and the members that own them."""

    partitions: frozenset[TimerPartition]
    members: Sequence[Member]


class ConfluentKafkaPort:
    """Thread-safe. Raises BridgeError with the remedy."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ending = Retrier()
        """Ends all waits on close. `_retrier`, for readers, starts again with each read."""
        self._retrier = Retrier(self._ending)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._redriving = threading.Lock()
        self._group: ConfluentGroup | None = None
        self._reader: TopicHistory | None = None
        self._producers: dict[str, TimerOperator] = {}
        self._marks = MarkIndex(settings.redrive_marks)

    def group(self) -> GroupView:
        with self._lock:
            if self._group is None:
                self._group = ConfluentGroup(self._settings.connection(), self._retrier)
        members = self._group.members()
        return GroupView(frozenset(self._group.partitions(self._settings.timer_topics())), members)

    @contextmanager
    def reader(self) -> Iterator[TopicReader]:
        """Yield the reader; one caller at a time has it, others wait."""
        if not self._reading.acquire(timeout=_WAIT_S):
            raise BridgeError("other requests read from Kafka, and it takes long: ask again")
        try:
            if self._reader is None:
                self._reader = TopicHistory(self._settings.connection(), self._retrier)
            self._retrier.give_up_in(_WAIT_S)
            yield self._reader
        finally:
            self._reading.release()

    def producer(self, timer_topic: str) -> TimerOperator:
        with self._lock:
            known = self._producers.get(timer_topic)
            if known is not None and not known.is_broken:
                return known
            servers = {"bootstrap.servers": self._settings.bootstrap_servers}
            config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **self._settings.kafka, **servers}
            made = self._producers[timer_topic] = TimerOperator(
                config, timer_topic=timer_topic, control_topic=self._settings.control_topic
            )
        if known is not None:
            known.close()
        return made

    def redriven(self) -> Container[bytes]:
        """Return the markers of all records that were sent again."""
        with self.reader() as reader:
            return self._marks.update(reader)

    def redrive(
        self, places: Set[tuple[TimerPartition, int]], on_sent: Callable[[Sequence[Parked]], None]
    ) -> RedriveResult:
        """Send the records at `places` again: those that are there, are whole and were not sent before.

        `on_sent` gets the records that were committed, also if a later one fails.
        """
        selection = RedriveFilter(frozenset(self._settings.timer_topics()), places=frozenset(places))
        if not self._redriving.acquire(blocking=False):
            raise BridgeError("records are being sent again already: wait for that to end, then do it again")
        try:
            with closing(ConfluentRedrive(self._settings, self._ending)) as work:
                if not work.look(selection).selected:  # a session would end a `redrive --apply` that is running
                    return RedriveResult()
                work.begin()
                found = work.look(selection)
                found.limit_to(None)
                return work.apply(found.selected, on_sent)
        finally:
            self._redriving.release()

    def close(self) -> None:
        self._ending.give_up_in(0)
        for producer in self._producers.values():
            producer.close()
        if self._reader is not None:
            self._reader.close()
