"""Settings of property tests and of JVMs, and which tests stay together when several processes share them.

Property tests have no deadline, as no test asserts a time. A failure prints how to repeat it.
"""

import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Brokers of tests live for seconds: only the fast compiler of the JVM. The java command reads this variable.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# A project of its own, with its own fixtures: integration_tests/product/test_testcontainers.py runs its test.
collect_ignore = ["examples/testcontainers"]

settings.register_profile("timer-bridge", deadline=None, print_blob=True)
settings.load_profile("timer-bridge")


WITH_ONE_SPARK = ("integration_tests/spark", "spark_jobs")
"""Folders whose tests share one Spark session."""


def _scope(nodeid: str) -> str:
    """Return the name of the tests that stay together: a module, or a folder whose tests share one Spark."""
    module = nodeid.partition("::")[0]
    return next((folder for folder in WITH_ONE_SPARK if module.startswith(f"{folder}/")), module)


class ByModule(LoadScopeScheduling):  # type: ignore[misc]
    """Keep the tests of a scope in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule | None:
    """Return the scheduler of `--dist loadscope`, else None."""
    return ByModule(config, log) if config.getvalue("dist") == "loadscope" else None


class ShowFailures:
    """Show each failure when it happens: a run that never ends has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.nodeid}, {report.when}: {report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ShowFailures(config))


@pytest.hookimpl(trylast=True)  # after tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start one scope with Spark at once and the other in the middle: they use the processor while others wait."""
    others = [scope for scope in dict.fromkeys(_scope(item.nodeid) for item in items) if scope not in WITH_ONE_SPARK]
    places = {scope: at / len(same) for same in (WITH_ONE_SPARK, others) for at, scope in enumerate(same)}
    items.sort(key=lambda item: (places[_scope(item.nodeid)], _scope(item.nodeid) in others))


@pytest.fixture(scope="session")
def _spark() -> "Iterator[SparkSession]":
    from spark_jobs.platform.session import fit_plans, session  # most runs do without

    with session("tests", master="local[2]", few=True) as started:
        fit_plans(0)
        yield started
    gc.collect()


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, _spark: "SparkSession") -> "SparkSession":
    """Return one session for all tests of a process.

    Histories of a few rows, in spark_jobs, have one shuffle partition; audits on a real broker have two.
    """
    is_small = request.node.nodeid.startswith("spark_jobs/")
    _spark.conf.set("spark.sql.shuffle.partitions", "1" if is_small else "2")
    return _spark
