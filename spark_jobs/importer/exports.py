"""Several exports of pending timers: which file has the newest store of a partition (schemas.pending_table).

    a.parquet: timers/0 at C = 900, timers/1 at C = 40       a: timers/1 is left out
    b.parquet: timers/1 at C = 70                            b: all of it

When a partition moves to another instance its former one keeps a store of it, as it was: what that holds was delivered
or ended since, or is in the newer one too.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from schemas.origin import Shard
from schemas.pending_table import PENDING, Age, stores_in
from spark_jobs.errors import UsageError


def is_export(columns: Sequence[str]) -> bool:
    """Whether a file with these is one."""
    return set(columns) >= set(PENDING.names)


def left_out(files: Sequence[str]) -> dict[str, list[Shard]]:
    """Of each of several exports the partitions that another one has from later. Of two alike the first one counts.

    Raises UsageError where a file does not tell.
    """
    if len({*files}) < len(files):
        raise UsageError("a file is given twice: give each once")
    found = {file: _stores(file) for file in files}
    newest: dict[Shard, tuple[Age, str]] = {}
    for file, stores in found.items():
        for shard, age in stores.items():
            if shard not in newest or age > newest[shard][0]:
                newest[shard] = age, file
    return {file: [shard for shard in stores if newest[shard][1] != file] for file, stores in found.items()}


def _stores(file: str) -> dict[Shard, Age]:
    if not Path(file).is_file():
        raise UsageError(f"{file}: give exports as files of this machine, one by one: each tells how new it is")
    try:
        stores = stores_in(pq.read_metadata(file).metadata)
    except ValueError as wrong:
        raise UsageError(f"{file}: {wrong}") from wrong
    if stores is None:
        raise UsageError(f"{file} does not tell how new it is, as an older version wrote it: export it anew")
    return stores
