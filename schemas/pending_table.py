"""Pending timers as a table: what `timer-bridge export` writes, and what a later import can read again.

One row for each timer that lived at the store's checkpoint, in the order in which the store keeps them. Identity is
(topic, partition, origin_offset); the rest is what a new request for the same delivery needs. `headers` are the
request's as it came, in order, the bridge's own (`timer-topic`, ...) too, doubles too. Times are epoch ms.

A partition's store stays where it was when the partition moves to another instance, so of several files with stores of
one partition only the newest is true. The file's metadata tell how far each of its stores had come, also of those in
which nothing was pending:

    timer-bridge.stores: {"v": 1, "stores": [["timer.requests", 0, [era, C, K's visit_ms, K's origin, number]], ...]}
"""

import json
from collections.abc import Mapping

import pyarrow as pa

from schemas.origin import Shard
from schemas.progress import Progress

STORES = "timer-bridge.stores"
Age = tuple[int, ...]
"""How far a store had come, as (era, C, K, number): the greatest of several of one partition is the newest."""

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


def age_of(progress: Progress) -> Age:
    return (progress.era, progress.next_offset, *progress.settled, progress.number)


def told_stores(stores: Mapping[Shard, Age]) -> str:
    """The text under STORES."""
    return json.dumps({"v": 1, "stores": [[*shard, age] for shard, age in sorted(stores.items())]})


def stores_in(metadata: Mapping[bytes, bytes] | None) -> dict[Shard, Age] | None:
    """Of a file's metadata; None where they do not tell. Raises ValueError where they tell it in another way."""
    text = (metadata or {}).get(STORES.encode())
    if text is None:
        return None
    try:
        told = json.loads(text)
        if told["v"] == 1:
            return {Shard(topic, partition): tuple(age) for topic, partition, age in told["stores"]}
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{STORES} is {text[:100]!r}, which this version cannot read: use the one that wrote the file")
