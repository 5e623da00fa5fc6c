"""Which of several exports has a partition's newest store."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from schemas.origin import Shard
from schemas.pending_table import PENDING, STORES, format_stores
from spark_jobs.errors import UsageError
from spark_jobs.importer.exports import is_export, older_partitions


def file_of(path: Path, stores: dict[int, tuple[int, ...]] | None) -> str:
    """An export of these partitions, in none of which anything is pending."""
    with pq.ParquetWriter(path, PENDING) as writer:
        if stores is not None:
            told = {Shard("timers", partition): age for partition, age in stores.items()}
            writer.add_key_value_metadata({STORES: format_stores(told)})
    return str(path)


def test_each_partition_counts_in_the_file_that_has_it_from_latest(tmp_path: Path) -> None:
    """Also where the newest has nothing of it any more: what the older one has was delivered since."""
    first = file_of(tmp_path / "a", {0: (9, 5, 1, 3), 1: (4, -1, -1, 0), 2: (1, 0, 0, 0)})
    second = file_of(tmp_path / "b", {0: (9, 5, 1, 2), 1: (4, 7, 2, 1)})
    third = file_of(tmp_path / "c", {1: (4, 7, 2, 1), 3: (0, -1, -1, 0)})
    assert older_partitions([first, second, third]) == {
        first: [Shard("timers", 1)],
        second: [Shard("timers", 0)],
        third: [Shard("timers", 1)],
    }


def test_a_file_without_stores_is_refused_with_the_remedy(tmp_path: Path) -> None:
    new, old = file_of(tmp_path / "new", {}), file_of(tmp_path / "old", None)
    for files, told in (
        ([new, old], "old: an older version wrote it, and it does not say how new it is: export it again"),
        ([str(tmp_path / "*")], "give exports as files of this machine, one by one"),
        ([new, new], "given twice"),
    ):
        with pytest.raises(UsageError, match=told):
            older_partitions(files)


def test_an_export_is_known_by_its_columns() -> None:
    assert is_export([*PENDING.names, "more"])
    assert not is_export(PENDING.names[1:])
