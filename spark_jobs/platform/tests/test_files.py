"""Small files on the file systems that Spark reaches. S3's client was tried by hand: docs/audit.md."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.platform import files
from spark_jobs.platform.files import Location, Uri, parse_location
from spark_jobs.platform.tables import written

pytestmark = pytest.mark.spark


def test_a_location_is_a_path_or_a_uri() -> None:
    assert parse_location("audits/orders") == Path("audits/orders")
    assert parse_location("/audits/orders") == Path("/audits/orders")
    assert str(parse_location("s3a://bucket/audits/") / "spans") == "s3a://bucket/audits/spans"
    assert parse_location("file:/audits") == Uri("file:/audits")


@pytest.mark.parametrize("scheme", ["path", "file", "viewfs"])
def test_small_files_and_folders(scheme: str, spark: SparkSession, tmp_path: Path) -> None:
    """viewfs stands for HDFS: a file is replaced by a rename."""
    mount = f"fs.viewfs.mounttable.{tmp_path.name.replace('_', '')}.link./audits"
    spark.sparkContext._jsc.hadoopConfiguration().set(mount, tmp_path.as_uri())
    places: dict[str, Location] = {
        "path": tmp_path,
        "file": Uri(tmp_path.as_uri()),
        "viewfs": Uri(f"viewfs://{mount.split('.')[3]}/audits"),
    }
    out = places[scheme]
    part = out / "spans" / "day=2026-01-31"
    files.make_folder(part)
    assert (files.exists(part), files.found(out, "*"), files.read(part / "a")) == (True, ["spans"], None)
    for data in (b"first", bytes(range(256)) * 1_000):
        files.write(part / "a", data)
        assert files.read(part / "a") == data
    assert files.create(part / "b", b"mine")
    assert not files.create(part / "b", b"yours")
    assert files.read(part / "b") == b"mine"
    assert files.found(out / "spans", "day=*/[ab]") == ["day=2026-01-31/a", "day=2026-01-31/b"]
    assert files.changed_ms(out, "spans").keys() == {"spans"}
    assert sorted(path.name for path in (tmp_path / "spans" / "day=2026-01-31").glob("[!.]*")) == ["a", "b"]
    files.delete(part / "a", part / "none", out / "spans")
    assert (files.exists(part), files.found(out, "*"), files.found(out / "none", "*")) == (False, [], [])


def test_rows_that_are_kept_apart_are_read_from_files_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(number, "claim" if number % 10 == 0 else "request") for number in range(100)]
    with written(tmp_path / "scratch") as keep:
        kept = keep(spark.createDataFrame(rows, "number INT, record STRING"), apart="record")
        assert kept.columns == ["number", "record"]
        assert sorted(tuple(row) for row in kept.collect()) == rows
        (requests,) = (tmp_path / "scratch").glob("*/record=request")
        shutil.rmtree(requests)
        assert sorted(row.number for row in kept.where("record = 'claim'").collect()) == list(range(0, 100, 10))
        none = keep(spark.createDataFrame([], kept.schema), apart="record")
        assert (none.where("record = 'claim'").collect(), none.columns) == ([], ["number", "record"])
    assert not (tmp_path / "scratch").exists()
