"""Read member id and generation from librdkafka's group metadata, which a transaction carries.

    b"CGMDv2:" | generation int32, native byte order | group \\0 | member \\0 | ...

A generation of -1 means "no member". A broker does not check it and accepts such offsets from any client, even while
the group has members (tested with Kafka 4.3). An expelled member could then publish for partitions it no longer owns.
"""

import struct
import time
from collections.abc import Collection
from typing import NamedTuple

from bridge.errors import MembershipLostError
from bridge.kafka.client_config import REPLACED_AFTER_S
from schemas.origin import Shard

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

    def require_membership(self, now: MemberId, owned: Collection[Shard]) -> None:
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
