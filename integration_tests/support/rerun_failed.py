"""A plugin of pytest: each test that failed is run once more, alone, after all others.

    passes then    -> the run is green, and its last lines are `flaky: NAME`, one for each such test
    fails again    -> the run is red

`make test` loads it for tests with a broker or Spark. An interruption or an error of collection ends the run at once.
"""

import subprocess
import sys

import pytest

MOST = 10
"""More failures than this have one cause, as a missing broker: they are not run again."""


class Rerun:
    def __init__(self) -> None:
        self.flaky: list[str] = []

    @pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its processes
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert terminal is not None
        stats = terminal.stats
        reports = [each for kind in ("failed", "error") for each in stats.get(kind, ())]
        failed = dict.fromkeys(each.nodeid for each in reports)
        if len(failed) > MOST or any(isinstance(each, pytest.CollectReport) for each in reports):
            return
        terminal.write_line("")
        for name in failed:
            terminal.write_line(f"{name}: runs once more, alone")
            terminal.flush()
            if passes_alone(name, session.config):
                self.flaky.append(name)
        for kind in ("failed", "error"):
            if still := [each for each in stats.pop(kind, ()) if each.nodeid not in self.flaky]:
                stats[kind] = still
        stats["passed"] = stats.get("passed", []) + [each for each in reports if each.nodeid in self.flaky]
        if len(self.flaky) == len(failed):
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)  # below the summary
    def pytest_unconfigure(self) -> None:
        for name in self.flaky:
            sys.stdout.write(f"flaky: {name}\n")


def passes_alone(name: str, config: pytest.Config) -> bool:
    command = [sys.executable, "-m", "pytest", name]
    return subprocess.run(command, cwd=config.rootpath, check=False).returncode == pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rerun())
