"""Read member id and generation from librdkafka's group metadata, which a transaction carries.

    b"CGMDv2:" | generation int32, native byte order | group \\0 | member \\0 | ...

A generation of -1 means "no member". A broker does not check it and accepts such offsets from any client, even while
the group has members (tested with Kafka 4.3). An expelled member could then publish for partitions it no longer owns.
"""

import struct
from typing import NamedTuple

_GENERATION = struct.Struct("=i")
_AT = len(b"CGMDv2:")


class Membership(NamedTuple):
    """`id`: the coordinator's name for us; empty before the first join, another one after each new join."""

    generation: int
    id: bytes

    @property
    def is_known(self) -> bool:
        """True if we are a member. After a lost session librdkafka keeps the generation and drops the id."""
        return self.generation >= 0 and bool(self.id)


def membership(group_metadata: object) -> Membership:
    assert isinstance(group_metadata, bytes)
    generation: int = _GENERATION.unpack_from(group_metadata, _AT)[0]
    return Membership(generation, group_metadata[_AT + _GENERATION.size :].split(b"\0", 2)[1])


def is_member(group_metadata: object) -> bool:
    """Return True if the coordinator will check this group metadata."""
    return membership(group_metadata).generation >= 0
