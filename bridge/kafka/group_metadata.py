"""The group's generation as a transaction carries it: librdkafka's bytes, of which we read who we are to the group.

    b"CGMDv2:" | generation int32, the machine's order | group \\0 | member \\0 | ...

A generation of -1 means "no member". A broker takes such an offset from anybody, unchecked, even while the group has
members (tried on Kafka 4.3): so a member that was just put out would publish what is no longer its to publish.
"""

import struct
from typing import NamedTuple

_GENERATION = struct.Struct("=i")
_AT = len(b"CGMDv2:")


class Membership(NamedTuple):
    """`id`: the coordinator's name for us, empty before it has given one, another when it has taken us in anew."""

    generation: int
    id: bytes

    @property
    def is_known(self) -> bool:
        """True if the group has us. After a lost session librdkafka keeps the generation, and drops the id."""
        return self.generation >= 0 and bool(self.id)


def membership(fence: object) -> Membership:
    assert isinstance(fence, bytes)
    generation: int = _GENERATION.unpack_from(fence, _AT)[0]
    return Membership(generation, fence[_AT + _GENERATION.size :].split(b"\0", 2)[1])


def is_member(fence: object) -> bool:
    """Whether the coordinator will check this fence."""
    return membership(fence).generation >= 0
