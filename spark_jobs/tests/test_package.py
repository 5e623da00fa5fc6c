"""What is sent to a cluster is whole: each job can be imported from it alone."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from spark_jobs import package

pytestmark = pytest.mark.spark

IMPORTED = """
import sys
from importlib import import_module
from spark_jobs.package import JOBS
for job in JOBS.values():
    print(import_module(job).__file__)
from importlib.resources import files
assert "<!doctype html>" in files("spark_jobs.report").joinpath("report.html").read_text()
"""


def test_the_jobs_are_found_in_the_zip_alone(tmp_path: Path) -> None:
    assert package.main([str(tmp_path / "jobs")]) == 0
    archive = tmp_path / "jobs" / "timer-bridge.zip"
    path = f"{archive}:{sysconfig.get_path('purelib')}"
    command = [sys.executable, "-S", "-c", IMPORTED]  # -S: without what an editable install adds
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{archive}/{name.replace('.', '/')}.py" for name in package.JOBS.values()]


@pytest.mark.parametrize("words", [[], ["audits"]])
def test_the_first_argument_must_be_a_job(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert package.job(words) == 2
    assert "one of archive, audit, backfill, import" in capsys.readouterr().err


def test_a_job_has_its_own_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert package.job(["audit", "--help"]) == 0
    assert "--tolerance-ms" in capsys.readouterr().out
