"""Pending timers as a table: what `timer-bridge export` writes, and what a later import can read again.

One row for each timer that lived at the store's checkpoint, in the order in which the store keeps them. Identity is
(topic, partition, origin_offset); the rest is what a new request for the same delivery needs. `headers` are the
request's as it came, in order, the bridge's own (`timer-topic`, ...) too, doubles too. Times are epoch ms.
"""

import pyarrow as pa

HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])


def _field(name: str, kind: pa.DataType, meaning: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"comment": meaning})


PENDING = pa.schema(
    [
        _field("topic", pa.string(), "the timer topic"),
        _field("partition", pa.int32(), "its partition"),
        _field(
            "origin_offset", pa.int64(), "offset of the first request: timer-origin is topic/partition/origin_offset"
        ),
        _field("target", pa.string(), "the real topic"),
        _field("target_partition", pa.int32(), "null: the partitioner's choice", nullable=True),
        _field("due_ms", pa.int64(), "when it is to be delivered"),
        _field("visit_ms", pa.int64(), "when the bridge looks at it next: below due_ms, to roll it"),
        _field("timestamp_ms", pa.int64(), "timestamp of the request, or of its latest copy"),
        _field("rolls", pa.int32(), "how often it was copied to the end of the timer topic"),
        _field("id", pa.binary(), "for cancel and replace; null: none", nullable=True),
        _field("key", pa.binary(), "the request's key", nullable=True),
        _field("value", pa.binary(), "null: a tombstone", nullable=True),
        _field("headers", pa.list_(pa.field("element", HEADER, nullable=False)), "the request's, in order"),
    ]
)
