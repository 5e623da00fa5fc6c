"""Checks of the Spark session before a JVM starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.maven_jars import JarsError
from spark_jobs.errors import JobFailedError
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.platform.flags import JobArguments
from spark_jobs.platform.session import connector_jars, fit_plans, jar_list, job_session, operator_settings


def test_no_jvm_starts_with_a_jar_that_is_not_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("spark_jobs.platform.session.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr(
        "spark_jobs.platform.session.SparkSession.builder.getOrCreate", lambda: pytest.fail("a JVM was started")
    )
    folder = jar_list().folder(tmp_path / "timer-bridge" / "spark-jars")
    folder.mkdir(parents=True)
    for jar in jar_list().sha512:
        _, name, version = jar.split(":")
        (folder / f"{name}-{version}.jar").write_bytes(b"something else")
    with (
        pytest.raises(JobFailedError, match=r"its Kafka connector: .*\.jar: SHA-512 is "),
        job_session("audit", tmp_path, JobArguments(access=KafkaAccess("localhost:9092"), master="local[1]")),
    ):
        pass


def test_a_folder_of_jars_is_used_as_it_is_or_says_what_is_missing(tmp_path: Path) -> None:
    release = jar_list().version
    others = ("kafka-clients-3.9.0.jar", "commons-pool2-2.12.0.jar", "spark-sql-kafka-0-10_2.13-0.0.1.jar")
    for name in (*others, f"spark-token-provider-kafka-0-10_2.13-{release}.jar"):
        (tmp_path / name).touch()
    told = rf"--jars .*: spark-sql-kafka-0-10_\*-{release}\.jar missing; `python -m spark_jobs.fetch`"
    with pytest.raises(JarsError, match=told):
        connector_jars(tmp_path)
    (tmp_path / f"spark-sql-kafka-0-10_2.13-{release}.jar").touch()
    assert len(connector_jars(tmp_path)) == 5


def test_another_pyspark_is_told_which_ones_have_their_connector_listed() -> None:
    with pytest.raises(JarsError, match=r"no jars are listed for PySpark 3\.5\.9, only for 4\.0\.0, .* --jars"):
        jar_list("3.5.9")


def test_settings_of_an_operator_win_over_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.sql.shuffle.partitions=7 --conf 'spark.ui.enabled=true' x")
    text = "# spark.comment 1\nspark.driver.memory   4g\nspark.sql.ansi.enabled=false\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    given = {"spark.sql.shuffle.partitions", "spark.ui.enabled", "spark.driver.memory", "spark.sql.ansi.enabled"}
    assert operator_settings(submitted=False) == given


@pytest.mark.spark
def test_queries_for_few_records_are_neither_compiled_nor_planned_again(spark: SparkSession) -> None:
    names = ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage", "spark.sql.shuffle.partitions")
    told = {}
    for records in (10_000_000, 9_999):
        fit_plans(records)
        told[records] = [spark.conf.get(name) for name in names]
    assert told == {10_000_000: ["true", "true", "200"], 9_999: ["false", "false", "2"]}


START = """
from spark_jobs.errors import JobFailedError
from spark_jobs.platform.session import session
try:
    with session("test", master="local[1]"):
        pass
except JobFailedError as wrong:
    print(wrong)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("SPARK_HOME", "/no/spark", "SPARK_HOME is /no/spark, and PySpark .* has a Spark of its own: unset it"),
        ("PYSPARK_SUBMIT_ARGS", "--conf a=b", "PYSPARK_SUBMIT_ARGS lacks its last word: add pyspark-shell"),
        ("PYSPARK_PYTHON", "/no/python", "PYSPARK_PYTHON is /no/python, and there is no such program: correct or"),
    ],
)
def test_a_start_that_fails_by_the_environment_names_the_variable(name: str, value: str, remedy: str) -> None:
    given, environment = [sys.executable, "-c", START], os.environ | {name: value}
    done = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=100, check=True)
    assert re.search(remedy, done.stdout), done.stdout + done.stderr
