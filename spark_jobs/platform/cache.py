"""Rows that are read more than once, kept on disk, so that memory does not grow with them.

Two ways: Spark's cache, which computes lost rows again and keeps their plan; and files, which end the plan. A plan that
grows with each step is analysed again for each later query, and soon takes longer than the work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from spark_jobs.platform import files
from spark_jobs.platform.files import Location

Keep: TypeAlias = Callable[[DataFrame], DataFrame]


@contextmanager
def cached() -> Iterator[Keep]:
    """Yield a function that caches rows until the end of the block."""
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist(StorageLevel.DISK_ONLY))
        return kept[-1]

    try:
        yield keep
    finally:
        for rows in kept:
            rows.unpersist()


@contextmanager
def written(folder: Location) -> Iterator[Keep]:
    """Yield a function that writes rows to files below `folder`, and returns these, until the end of the block.

    Files that a killed run left are deleted first.
    """
    files.delete(folder)
    numbers = count()

    def keep(rows: DataFrame) -> DataFrame:
        place = str(folder / str(next(numbers)))
        rows.write.parquet(place)
        return rows.sparkSession.read.schema(rows.schema).parquet(place)

    try:
        yield keep
    finally:
        files.delete(folder)
