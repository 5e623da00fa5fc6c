"""Rows that are kept apart: the same rows, and those of one value are read from files of their own."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.platform.tables import written

pytestmark = pytest.mark.spark


def test_rows_that_are_kept_apart_are_read_from_files_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(number, "claim" if number % 10 == 0 else "request") for number in range(100)]
    with written(tmp_path / "scratch") as keep:
        kept = keep(spark.createDataFrame(rows, "number INT, record STRING"), apart="record")
        assert kept.columns == ["number", "record"]
        assert sorted(tuple(row) for row in kept.collect()) == rows
        (requests,) = (tmp_path / "scratch").glob("*/record=request")
        shutil.rmtree(requests)
        assert sorted(row.number for row in kept.where("record = 'claim'").collect()) == list(range(0, 100, 10))
        none = keep(kept.limit(0), apart="record")
        assert (none.where("record = 'claim'").collect(), none.columns) == ([], ["number", "record"])
    assert not (tmp_path / "scratch").exists()
