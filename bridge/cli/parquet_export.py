"""Write pending timers of stopped stores to one Parquet file. Memory is bounded by one batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_timer.origin import TimerPartition
from schemas.pending_table import PENDING, STORES, format_stores
from schemas.progress import Age, age_of
from timer.format.body import unpack_headers
from timer.format.unit import TIMER_ROW, Rows
from timer.stopped_store import StoppedStore, StoredTimer

_MAX_ROWS = 16_384
_MAX_BYTES = 16 << 20


@contextmanager
def pending_file(out: Path) -> Iterator[Callable[[TimerPartition, StoppedStore], int]]:
    """Yield a function that writes one store and returns its rows. `out` appears at the end, complete or not at all."""
    partial = out.with_name(f"{out.name}.partial")
    ages: dict[TimerPartition, Age] = {}
    try:
        with pq.ParquetWriter(partial, PENDING, compression="zstd") as writer:

            def write(partition: TimerPartition, store: StoppedStore) -> int:
                ages[partition] = age_of(store.checkpoint.progress)
                rows = 0
                for piece in _pieces(store.live()):
                    writer.write_batch(_batch(partition, store.timers(piece)))
                    rows += len(piece)
                return rows

            yield write
            writer.add_key_value_metadata({STORES: format_stores(ages)})
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _pieces(blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Cut the rows into pieces of bounded size; a large body is a piece of its own."""
    kept = np.empty(0, TIMER_ROW)
    for rows in blocks:
        kept = np.concatenate([kept, rows])
        while (count := _fitting(kept)) < len(kept):
            yield kept[:count]
            kept = kept[count:]
    if len(kept):
        yield kept


def _fitting(rows: Rows) -> int:
    """Return how many rows fit into a batch, at least one."""
    fits = int(np.searchsorted(np.cumsum(rows["body_size"], dtype=np.int64), _MAX_BYTES, side="right"))
    return max(1, min(_MAX_ROWS, fits))


def _batch(partition: TimerPartition, timers: list[StoredTimer]) -> pa.RecordBatch:
    bodies = [timer.body for timer in timers]
    columns: dict[str, list[Any]] = {
        name: [getattr(body, name) for body in bodies]
        for name in ("origin_offset", "target", "due_ms", "timestamp_ms", "rolls", "id", "key", "value")
    }
    columns |= {
        "topic": [partition.topic] * len(timers),
        "partition": [partition.partition] * len(timers),
        "target_partition": [None if body.partition < 0 else body.partition for body in bodies],
        "visit_ms": [timer.visit_ms for timer in timers],
        "headers": [
            [{"name": name, "value": value} for name, value in unpack_headers(body.headers)] for body in bodies
        ],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in PENDING], schema=PENDING)
