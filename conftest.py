"""Settings of property tests, and which tests stay together when several processes share them.

Property tests have no deadline, as no test asserts a time. A failure prints how to repeat it.
"""

from pathlib import Path

import pytest
from hypothesis import settings

SPARK_JOBS = Path(__file__).parent / "spark_jobs"

settings.register_profile("timer-bridge", deadline=None, print_blob=True)
settings.load_profile("timer-bridge")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a module's tests in one process, for its brokers, and all tests of `spark_jobs`, for one Spark."""
    for item in items:
        is_spark = item.path.is_relative_to(SPARK_JOBS) and item.get_closest_marker("spark") is not None
        item.add_marker(pytest.mark.xdist_group("spark_jobs" if is_spark else str(item.path)))
