"""One Spark for all tests here; an audit that runs meanwhile uses it too."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves the sockets of `collect` to the garbage collector, which may come in anybody's test."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


SMALL_DATA = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session("tests", master="local[2]") as started:
        # For a few rows, planning and compiling take longer than the work.
        for name, value in SMALL_DATA.items():
            started.conf.set(name, value)
        yield started
