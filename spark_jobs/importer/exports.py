"""Several exports of pending timers: find the newest store of each partition (schemas.pending_table).

    a.parquet: timers/0 at C = 900, timers/1 at C = 40       a: timers/1 is left out
    b.parquet: timers/1 at C = 70                            b: all of it

When a partition moves to another instance, the former owner keeps its old store. Timers in it were delivered or ended
since, or are in the newer store too.
"""

from collections.abc import Mapping, Sequence

from schemas.origin import TimerPartition
from schemas.pending_table import PENDING, parse_stores
from schemas.progress import Age
from spark_jobs.errors import UsageError


def is_export(columns: Sequence[str]) -> bool:
    """Return True if a file with these columns is an export."""
    return set(columns) >= set(PENDING.names)


def older_partitions(exports: Mapping[str, Mapping[bytes, bytes]]) -> dict[str, list[TimerPartition]]:
    """Return for each export the partitions that another export has newer. If two are equal, the first counts.

    exports: the metadata of each file. Raises UsageError if a file does not say how new it is.
    """
    found = {file: _stores(file, metadata) for file, metadata in exports.items()}
    newest: dict[TimerPartition, tuple[Age, str]] = {}
    for file, stores in found.items():
        for partition, age in stores.items():
            if partition not in newest or age > newest[partition][0]:
                newest[partition] = age, file
    return {file: [partition for partition in stores if newest[partition][1] != file] for file, stores in found.items()}


def _stores(file: str, metadata: Mapping[bytes, bytes]) -> dict[TimerPartition, Age]:
    try:
        stores = parse_stores(metadata)
    except ValueError as wrong:
        raise UsageError(f"{file}: {wrong}") from wrong
    if stores is None:
        raise UsageError(f"{file}: an older version wrote it, and it does not say how new it is: export it again")
    return stores
