"""Which of several exports has a partition's newest store."""

import pytest

from kafka_timer.origin import TimerPartition
from schemas.pending_table import PENDING, STORES, format_stores
from spark_jobs.errors import UsageError
from spark_jobs.importer.rows import is_export, older_partitions


def metadata_of(stores: dict[int, tuple[int, ...]]) -> dict[bytes, bytes]:
    """The metadata of an export of these partitions."""
    told = {TimerPartition("timers", partition): age for partition, age in stores.items()}
    return {STORES.encode(): format_stores(told).encode()}


def test_each_partition_counts_in_the_file_that_has_it_from_latest() -> None:
    """Also where the newest has nothing of it any more: what the older one has was delivered since."""
    exports = {
        "first": metadata_of({0: (9, 5, 1, 3), 1: (4, -1, -1, 0), 2: (1, 0, 0, 0)}),
        "second": metadata_of({0: (9, 5, 1, 2), 1: (4, 7, 2, 1)}),
        "third": metadata_of({1: (4, 7, 2, 1), 3: (0, -1, -1, 0)}),
    }
    assert older_partitions(exports) == {
        "first": [TimerPartition("timers", 1)],
        "second": [TimerPartition("timers", 0)],
        "third": [TimerPartition("timers", 1)],
    }


def test_a_file_without_stores_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="old: an older version wrote it"):
        older_partitions({"new": metadata_of({}), "old": {}})


def test_an_export_is_known_by_its_columns() -> None:
    assert is_export([*PENDING.names, "more"])
    assert is_export([name for name in PENDING.names if name != "is_paused"]), "of a version without pauses of timers"
    assert not is_export(PENDING.names[1:])
