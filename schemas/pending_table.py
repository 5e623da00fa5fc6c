"""Pending timers as a table: `timer-bridge export` writes it, `timer-bridge import` reads it.

One row for each timer that was pending at the store's checkpoint, in the store's order. The identity is (topic,
partition, origin_offset); the other columns are for a new request with the same delivery. `headers` are the request's,
in order, with the bridge's own (`timer-topic`, ...) and with duplicates. Times are epoch ms.

When a partition moves to another instance, its old store stays behind, so of several files with stores of one partition
only the newest counts. The file's metadata has the progress of each store, also if nothing was pending in it:

    timer-bridge.stores: {"v": 1, "stores": [["timer.requests", 0, [era, C, K's visit_ms, K's origin, number]], ...]}
"""

import json
from collections.abc import Mapping

import pyarrow as pa

from kafka_timer.origin import TimerPartition
from schemas.progress import Age

STORES = "timer-bridge.stores"

HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])


def _field(name: str, kind: pa.DataType, meaning: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"comment": meaning})


PENDING = pa.schema(
    [
        _field("topic", pa.string(), "the timer topic"),
        _field("partition", pa.int32(), "its partition"),
        _field("origin_offset", pa.int64(), "of the first request: timer-origin is topic/partition/origin_offset"),
        _field("target", pa.string(), "the real topic"),
        _field("target_partition", pa.int32(), "null: the partitioner's choice", nullable=True),
        _field("due_ms", pa.int64(), "when it is to be delivered"),
        _field("visit_ms", pa.int64(), "when the bridge looks at it next: below due_ms if it rolls then"),
        _field("timestamp_ms", pa.int64(), "timestamp of the request, or of its latest copy"),
        _field("rolls", pa.int32(), "how often it was copied to the end of the timer topic"),
        _field("id", pa.binary(), "for cancel and replace; null: none", nullable=True),
        _field("key", pa.binary(), "the request's key", nullable=True),
        _field("value", pa.binary(), "null: a tombstone", nullable=True),
        _field("is_paused", pa.bool_(), "it waits until it is resumed; exports of older versions lack the column"),
        _field("headers", pa.list_(pa.field("element", HEADER, nullable=False)), "the request's, in order"),
    ]
)


def format_stores(stores: Mapping[TimerPartition, Age]) -> str:
    """Return the metadata text under STORES."""
    return json.dumps({"v": 1, "stores": [[*timer_partition, age] for timer_partition, age in sorted(stores.items())]})


def parse_stores(metadata: Mapping[bytes, bytes] | None) -> dict[TimerPartition, Age] | None:
    """Return the stores in a file's metadata; None if absent. Raises ValueError if this version cannot read them."""
    text = (metadata or {}).get(STORES.encode())
    if text is None:
        return None
    try:
        fields = json.loads(text)
        if fields["v"] == 1:
            return {TimerPartition(topic, partition): tuple(age) for topic, partition, age in fields["stores"]}
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{STORES} is {text[:100]!r}, which this version cannot read: use the one that wrote the file")
