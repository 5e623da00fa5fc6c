"""Settings of property tests, and which tests stay together when several processes share them.

Property tests have no deadline, as no test asserts a time. A failure prints how to repeat it.
"""

from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("timer-bridge", deadline=None, print_blob=True)
settings.load_profile("timer-bridge")


class ByModule(LoadScopeScheduling):
    """Keep a module's tests in one process, for its brokers, and all tests of `spark_jobs`, for one Spark."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return "spark_jobs" if module.startswith("spark_jobs/") else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule | None:
    """Used with `--dist loadscope`."""
    return ByModule(config, log) if config.getvalue("dist") == "loadscope" else None
