"""Members of the consumer group, and our own member id and generation, which a transaction carries.

    b"CGMDv2:" | generation int32, native byte order | group \0 | member \0 | ...

A generation of -1 means "no member". A broker does not check it and accepts such offsets from any client, even while
the group has members (tested with Kafka 4.3). An expelled member could then publish for partitions it no longer owns.
"""

import struct
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bridge.config.kafka_config import Connection
from bridge.errors import BridgeError, MembershipLostError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import REPLACED_AFTER_S, make
from bridge.kafka.errors import answered, error_of, explained
from bridge.kafka.retry import CALL_S, Retrier, serve_idle
from bridge.ports import Member
from kafka_timer.origin import TimerPartition


class ConfluentGroup:
    """Thread-safe."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._group = connection.group
        self._make_admin: Callable[[], Any] = lambda: make(AdminClient, clients.admin(connection), retrier)
        self._admin = self._make_admin()

    def members(self) -> list[Member]:
        """Return the members of the group. Raises BridgeError."""
        serve_idle(self._admin)
        try:
            answer = self._admin.describe_consumer_groups([self._group], request_timeout=CALL_S)
            members = answered(answer[self._group]).members
        except KafkaException as failure:
            raise self._failed(f"looking at group {self._group}", failure) from failure
        return [
            Member(
                f"{each.client_id} ({each.host.lstrip('/')})",
                clients.address_in(each.client_id),
                _partitions(each),
                clients.instance_in(each.client_id),
            )
            for each in members
        ]

    def partitions(self, topics: Iterable[str]) -> set[TimerPartition]:
        """Return all partitions of the topics. Raises BridgeError."""
        serve_idle(self._admin)
        try:
            found = self._admin.list_topics(timeout=CALL_S).topics
        except KafkaException as failure:
            raise self._failed("looking at the timer topics", failure) from failure
        return {
            TimerPartition(topic, number) for topic in topics if topic in found for number in found[topic].partitions
        }

    def _failed(self, what: str, failure: KafkaException) -> BridgeError:
        if error_of(failure).code() < 0:  # no broker has answered: the client may have lost all brokers for good
            self._admin = self._make_admin()
        return explained(what, error_of(failure))


def _partitions(member: Any) -> frozenset[TimerPartition]:
    return frozenset(TimerPartition(each.topic, each.partition) for each in member.assignment.topic_partitions)


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
