"""The ports over a real broker, with a timer topic of their own, and helpers that use them."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from uuid import uuid4

from bridge.config.kafka_config import Connection
from bridge.kafka import ConfluentHistory, ConfluentSink, ConfluentSource, Retrier
from bridge.ports import Aborted, Committed, Outgoing, Ownership, Polled, Record, Transaction
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.progress import Key, Progress


class World:
    """A timer topic with its journal, a group of its own, and ports on them."""

    def __init__(self, bootstrap_servers: str, partitions: int = 1) -> None:
        self.cluster = Cluster(bootstrap_servers)
        self.requests = self.cluster.topic("requests", partitions, message_timestamp_type="LogAppendTime")
        self.journal = self.cluster.topic("journal", partitions, message_timestamp_type="LogAppendTime")
        self.group = f"group-{uuid4().hex[:8]}"
        self.retrier = Retrier()
        self._open = ExitStack()

    def connection(self, instance: str = "one") -> Connection:
        return Connection(self.cluster.bootstrap_servers, self.group, instance)

    def source(self) -> ConfluentSource:
        source = ConfluentSource(self.connection(), [self.requests], self.retrier)
        self._open.callback(source.close)
        return source

    def history(self, on_open_transactions: Callable[[], None] | None = None) -> ConfluentHistory:
        journals = {self.requests: self.journal}
        history = ConfluentHistory(self.connection(), journals, self.retrier, None, on_open_transactions)
        self._open.callback(history.close)
        return history

    def sink(self, instance: str = "one", compression: str = "none") -> ConfluentSink:
        journals = {self.requests: self.journal}
        connection = replace(self.connection(instance), published={"compression.type": compression})
        sink = ConfluentSink(connection, journals, self.retrier)
        self._open.callback(sink.close)
        return sink

    def member(self) -> "Member":
        return Member(self.source())

    def partition(self, partition: int = 0) -> TimerPartition:
        return TimerPartition(self.requests, partition)

    def request(self, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self.cluster.send(self.requests, value, partition=partition)
        self.cluster.flush()

    def close(self) -> None:
        self.retrier.give_up_in(5)
        self._open.close()


class Member:
    """A source whose partitions are tracked, as the turn tracks them."""

    def __init__(self, source: ConfluentSource) -> None:
        self.source = source
        self.partitions: set[TimerPartition] = set()
        self.group_metadata: object = None
        self.paused: set[TimerPartition] = set()
        self.records: list[Record] = []

    def poll(self, timeout_ms: int = 100, max_records: int = 1000) -> Polled:
        polled = self.source.poll(timeout_ms, max_records, self.paused)
        self.note(polled.ownership)
        self.group_metadata = self.source.membership.group_metadata
        for records in polled.records.values():
            self.records += records
        return polled

    def note(self, ownership: Ownership) -> None:
        self.partitions.difference_update(ownership.lost, ownership.revoked)
        self.partitions.update(ownership.assigned)

    def poll_until(self, done: Callable[[], bool], *others: "Member") -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end_s, "it did not come to be"
            for member in (self, *others):
                member.poll(50)

    def own(self, count: int) -> None:
        self.poll_until(lambda: len(self.partitions) == count)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


def progress(next_offset: int) -> Progress:
    return Progress(next_offset, Key(12, 3), 1)


def out(
    topic: str, value: bytes | None = b"v", key: bytes | None = None, partition: int = -1, headers: Headers = ()
) -> Outgoing:
    return Outgoing(topic, partition, key, value, list(headers), 1_700_000_000_000)


def group_metadata_of(world: World) -> object:
    """Return the group metadata of a member that stays in the group as long as the world."""
    member = world.member()
    member.own(1)
    return member.group_metadata


def publish(sink: ConfluentSink, transaction: Transaction) -> None:
    """Submit until it is committed, as a turn does. No record may be refused."""
    codes, _ = publish_without_refused(sink, transaction)
    assert codes == {}


def publish_without_refused(sink: ConfluentSink, transaction: Transaction) -> tuple[dict[int, str], int]:
    """Submit without refused records until it is committed. Return codes by first index, and the number of aborts."""
    codes: dict[int, str] = {}
    left = outgoing = transaction.outgoing
    for aborted in range(40):
        match sink.submit(replace(transaction, outgoing=left, tries=aborted)).wait():
            case Committed():
                return codes, aborted
            case Aborted(refused):
                codes |= {index: refused[record] for index, record in enumerate(outgoing) if record in refused}
                left = [record for record in left if record not in refused]
    raise AssertionError("never committed")
