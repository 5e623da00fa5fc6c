"""Write pending timers of stopped stores to one Parquet file. Memory is bounded by one batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import BridgeError
from kafka_timer.headers import PAUSED_MS
from kafka_timer.origin import TimerPartition
from schemas.chunks import chunks
from schemas.pending_table import PENDING, STORES, format_stores
from schemas.progress import Age, age_of
from timer.format.body import unpack_headers
from timer.format.unit import TIMER_ROW
from timer.stopped_store import StoppedStore, StoredTimer

_MAX_ROWS = 16_384
_MAX_BYTES = 16 << 20


@contextmanager
def pending_file(out: Path) -> Iterator[Callable[[TimerPartition, StoppedStore], int]]:
    """Yield a function that writes one store and returns its rows. `out` appears at the end, complete or not at all.

    Raises BridgeError if it cannot be written.
    """
    partial = out.with_name(f"{out.name}.partial")
    ages: dict[TimerPartition, Age] = {}
    try:
        with pq.ParquetWriter(partial, PENDING, compression="zstd") as writer:

            def write(partition: TimerPartition, store: StoppedStore) -> int:
                ages[partition] = age_of(store.checkpoint.progress)
                rows, live = 0, chain.from_iterable(store.live())
                for piece in chunks(live, itemgetter("body_size"), most_bytes=_MAX_BYTES, most=_MAX_ROWS):
                    timers = store.timers(np.array(piece, TIMER_ROW))
                    writer.write_batch(pa.RecordBatch.from_pylist([_row(partition, each) for each in timers], PENDING))
                    rows += len(piece)
                return rows

            yield write
            writer.add_key_value_metadata({STORES: format_stores(ages)})
        partial.replace(out)
    except OSError as error:
        raise BridgeError(f"{out}: {error.strerror or error}: give a file that can be written") from error
    finally:
        partial.unlink(missing_ok=True)


def _row(partition: TimerPartition, timer: StoredTimer) -> dict[str, Any]:
    body = timer.body
    names = ("origin_offset", "target", "timestamp_ms", "rolls", "id", "key", "value")
    return {name: getattr(body, name) for name in names} | {
        "due_ms": body.due_ms % PAUSED_MS,
        "is_paused": body.due_ms >= PAUSED_MS,
        "topic": partition.topic,
        "partition": partition.partition,
        "target_partition": None if body.partition < 0 else body.partition,
        "visit_ms": timer.visit_ms,
        "headers": [{"name": name, "value": value} for name, value in unpack_headers(body.headers)],
    }
