"""Rows that are read more than once, kept in files, so that memory does not grow with them.

Files end the plan of a query, which Spark's cache does not. Spark analyses the whole plan for each step that is added
to it, so a plan that grows soon takes longer than the work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

from pyspark.sql import DataFrame

from spark_jobs.platform import files
from spark_jobs.platform.files import Location

Keep: TypeAlias = Callable[[DataFrame], DataFrame]


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
