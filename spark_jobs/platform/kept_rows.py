"""Rows that are read more than once, kept in files, so that memory does not grow with them.

Files end the plan of a query, which Spark's cache does not. Spark analyses the whole plan for each step that is added
to it, so a plan that grows soon takes longer than the work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Protocol

from pyspark.sql import DataFrame

from spark_jobs.platform import files
from spark_jobs.platform.files import Location


class Keep(Protocol):
    """Writes rows to files and returns these. `apart`: a column; rows with different values are in different files."""

    def __call__(self, rows: DataFrame, *, apart: str | None = None) -> DataFrame: ...


@contextmanager
def written(folder: Location) -> Iterator[Keep]:
    """Yield a function that writes rows to files below `folder`, and returns these, until the end of the block.

    Files that a killed run left are deleted first.
    """
    files.delete(folder)
    numbers = count()

    def keep(rows: DataFrame, *, apart: str | None = None) -> DataFrame:
        place = str(folder / str(next(numbers)))
        rows.write.parquet(place, partitionBy=apart)
        return rows.sparkSession.read.schema(rows.schema).parquet(place)

    try:
        yield keep
    finally:
        files.delete(folder)
