"""The group's generation as a transaction carries it: librdkafka's bytes, of which we read one number.

    b"CGMDv2:" | generation int32, the machine's order | group \\0 | member \\0 | ...

A generation of -1 means "no member". A broker takes such an offset from anybody, unchecked, even while the group has
members (tried on Kafka 4.3): so a member that was just put out would publish what is no longer its to publish.
"""

import struct

_GENERATION = struct.Struct("=i")
_AT = len(b"CGMDv2:")


def is_member(fence: object) -> bool:
    """Whether the coordinator will check this fence."""
    assert isinstance(fence, bytes)
    generation: int = _GENERATION.unpack_from(fence, _AT)[0]
    return generation >= 0
