"""What a wheel leaves out: tests, and what only proves or documents the bridge. All else stands in pyproject.toml.

`bridge.testing`, `fake_kafka`, `timer_world` and `timer.testing` are in it: they are for the tests of users.
"""

from fnmatch import fnmatch

from setuptools import setup
from setuptools.command.build_py import build_py

LEFT_OUT = (
    "*.test_*",
    "*.conftest",
    "bridge.metric_docs",
    "bridge.mutations",
    "bridge.oracle",
    "bridge.page.testing",
    "bridge.random_requests",
    "bridge.raw_requests",
    "bridge.simulation",
    "bridge.timeliness",
    "spark_jobs.testing",
)


class Shipped(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [each for each in found if not any(fnmatch(f"{each[0]}.{each[1]}", pattern) for pattern in LEFT_OUT)]


setup(cmdclass={"build_py": Shipped})
