"""Members of the consumer group, those that died, and our own member id, which a transaction carries.

    b"CGMDv2:" | generation int32, native byte order | group \0 | member \0 | ...

A generation of -1 means "no member". A broker does not check it and accepts such offsets from any client, even while
the group has members (tested with Kafka 4.3). An expelled member could then publish for partitions it no longer owns.
"""

import struct
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock, Thread
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, MembershipLostError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import REPLACED_AFTER_S, make
from bridge.kafka.errors import answered, error_of, explained, is_passing
from bridge.kafka.retry import CALL_S, Retrier, log, serve_idle
from bridge.ports import MAX_IN_FLIGHT, Member
from kafka_timer.origin import TimerPartition


class ConfluentGroup:
    """Thread-safe."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._group = connection.group
        self._make_admin: Callable[[], Any] = lambda: make(AdminClient, clients.admin(connection), retrier)
        self._admin = self._make_admin()

    def members(self) -> list[Member]:
        """Return the members of the group. Raises BridgeError."""

        def ask() -> Any:
            answer = self._admin.describe_consumer_groups([self._group], request_timeout=CALL_S)
            return answered(answer[self._group]).members

        return [
            Member(
                f"{each.client_id} ({each.host.lstrip('/')})",
                clients.address_in(each.client_id),
                frozenset(TimerPartition(at.topic, at.partition) for at in each.assignment.topic_partitions),
                clients.instance_in(each.client_id),
            )
            for each in self._ask(f"looking at group {self._group}", ask)
        ]

    def partitions(self, topics: Iterable[str]) -> set[TimerPartition]:
        """Return all partitions of the topics. Raises BridgeError."""
        found = self._ask("looking at the timer topics", lambda: self._admin.list_topics(timeout=CALL_S).topics)
        return {
            TimerPartition(topic, number) for topic in topics if topic in found for number in found[topic].partitions
        }

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        serve_idle(self._admin)
        try:
            return call()
        except KafkaException as failure:
            if error_of(failure).code() < 0:  # no broker has answered: the client may have lost all brokers for good
                self._admin = self._make_admin()
            raise explained(what, error_of(failure)) from failure


_FENCE_S = 10.0
"""Seconds for the fence of a producer. Kafka aborts its transactions after 10 to 20 s itself."""


class Takeover:
    """Ends the open transactions of dynamic members that died, so that their partitions open at once. Thread-safe.

    member a is killed --> its session ends --> we get its partitions --> a's offsets and journal are not stable
                                                --> fence a's producers --> Kafka aborts its transactions

    Otherwise Kafka aborts them after the transaction time-out, which it checks every 10 s. An instance that only seemed
    dead is fenced too. It joins again with new producers, as its membership has ended before.
    """

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._group = ConfluentGroup(connection, retrier)
        self._known: set[str] = set()
        """Instances that were members at an earlier look."""
        self._running = Lock()

    def look(self) -> None:
        """Learn who is a member. Raises BridgeError."""
        self._known |= self._members()

    def has_owner(self) -> bool:
        """Return True if another instance owns partitions. Raises BridgeError."""
        return any(each.partitions for each in self._group.members() if each.instance != self._connection.instance)

    def start(self) -> None:
        """Fence the producers of all instances that have left, in a thread of its own."""
        if self._running.acquire(blocking=False):
            Thread(target=self._run, name="takeover", daemon=True).start()

    def _run(self) -> None:
        try:
            gone = self._known - self._members() - {self._connection.instance}
            with ThreadPoolExecutor(MAX_IN_FLIGHT) as fencing:
                for instance in gone:
                    log.warning("instance %s has left the group: its open transactions are aborted", instance)
                    list(fencing.map(self._fence, [instance] * MAX_IN_FLIGHT, range(MAX_IN_FLIGHT)))
            self._known -= gone
        except BridgeError as error:
            log.warning("open transactions of an instance that died end by their time-out: %s", error)
        finally:
            self._running.release()

    def _members(self) -> set[str]:
        return {each.instance for each in self._group.members() if each.instance}

    def _fence(self, instance: str, number: int) -> None:
        config = clients.producer(replace(self._connection, instance=instance), number)
        producer: Any = make(Producer, config, self._retrier)
        what, retrier = f"fencing producer {number} of instance {instance}", Retrier(self._retrier)
        retrier.give_up_in(_FENCE_S)
        try:
            retrier.retry_until_success(what, lambda: producer.init_transactions(CALL_S), is_passing)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure


_GENERATION = struct.Struct("=i")
_AT = len(b"CGMDv2:")


class MemberId(NamedTuple):
    """`id`: the coordinator's name for us; empty before the first join, another one after each new join."""

    generation: int
    id: bytes

    @property
    def is_known(self) -> bool:
        """True if we are a member. After a lost session librdkafka keeps the generation and drops the id."""
        return self.generation >= 0 and bool(self.id)


def member_id(group_metadata: object) -> MemberId:
    assert isinstance(group_metadata, bytes)
    generation: int = _GENERATION.unpack_from(group_metadata, _AT)[0]
    return MemberId(generation, group_metadata[_AT + _GENERATION.size :].split(b"\0", 2)[1])


def is_member(group_metadata: object) -> bool:
    """Return True if the coordinator will check this group metadata."""
    return member_id(group_metadata).generation >= 0


class MembershipGuard:
    """Notices that the group has expelled us without a report by librdkafka."""

    def __init__(self) -> None:
        self._owner = MemberId(-1, b"")
        """The member to which our partitions were assigned."""
        self._member_s = time.monotonic()
        """When the group last had us as a member, or this client was made."""

    def note_first_assignment(self, group_metadata: object) -> None:
        self._owner = member_id(group_metadata)

    def require_membership(self, now: MemberId, owned: Collection[TimerPartition]) -> None:
        """Raise MembershipLostError if a new run of the bridge has to begin.

        Usually a loss is reported before we rejoin. But if a static member wakes up with an unread answer that the
        group is rebalancing, librdkafka 2.16 finds out during the join that it is unknown, and joins with another id.
        It then keeps partitions without a callback, even if another member owned them meanwhile.

        Without partitions a new run is cheap, so it begins if we are no member for REPLACED_AFTER_S.
        """
        if not owned or now.id == self._owner.id:
            self._owner = now
        elif now.generation not in (-1, self._owner.generation):
            held = ", ".join(map(str, sorted(owned)))
            raise MembershipLostError(
                f"the group removed this member and added it again: another member may have owned {held} in between"
            )
        if owned or now.is_known:
            self._member_s = time.monotonic()
        elif time.monotonic() - self._member_s >= REPLACED_AFTER_S:
            told = f"no member of the group for {REPLACED_AFTER_S:.0f} s"
            raise MembershipLostError(f"{told}: the Kafka client may have lost all brokers; going on with new clients")
