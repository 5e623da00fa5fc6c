"""The plugin of `make test` that runs failed tests once more: what a run with it ends with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.conftest import ROOT

PROJECT = """
import os
from pathlib import Path

import pytest

def fails_once(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return
    raise AssertionError(name)

def test_good(): pass
def test_once(): fails_once("once")
def test_always(): assert False
def test_crash():
    if not Path("crashed").exists():
        Path("crashed").touch()
        os._exit(3)

@pytest.fixture
def place(): fails_once("setup")
def test_setup(place): pass
"""

pytestmark = pytest.mark.thorough

COMMAND = [sys.executable, "-m", "pytest", "-p", "integration_tests.support.rerun_failed", "-p", "xdist", "-n", "1"]


@pytest.mark.parametrize(
    ("tests", "code", "ends"),
    [
        ("not always", 0, ["4 passed", *(f"flaky: test_it.py::test_{name}" for name in ("once", "crash", "setup"))]),
        ("once or always", 1, ["1 failed, 1 passed", "flaky: test_it.py::test_once"]),
    ],
)
def test_a_test_that_passes_alone_leaves_the_run_green(tests: str, code: int, ends: list[str], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-config\ncache_dir = cache")
    (tmp_path / "test_it.py").write_text(PROJECT)
    given = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*COMMAND, "-k", tests], cwd=tmp_path, env=given, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    last = [line.strip("= ")[: len(end)] for line, end in zip(lines[-len(ends) :], ends, strict=True)]
    assert (done.returncode, last) == (code, ends), lines
