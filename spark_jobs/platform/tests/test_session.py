"""Checks of the Spark session before a JVM starts."""

from pathlib import Path

import pytest

from spark_jobs.errors import JobFailedError
from spark_jobs.platform.session import JARS, job_session


def test_no_jvm_starts_with_a_jar_that_is_not_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("spark_jobs.platform.session.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr(
        "spark_jobs.platform.session.SparkSession.builder.getOrCreate", lambda: pytest.fail("a JVM was started")
    )
    folder = JARS.folder(tmp_path / "timer-bridge" / "spark-jars")
    folder.mkdir(parents=True)
    for jar in JARS.sha512:
        _, name, version = jar.split(":")
        (folder / f"{name}-{version}.jar").write_bytes(b"something else")
    with (
        pytest.raises(JobFailedError, match=r"its Kafka connector: .*\.jar: SHA-512 is "),
        job_session("audit", tmp_path, "local[1]"),
    ):
        pass
