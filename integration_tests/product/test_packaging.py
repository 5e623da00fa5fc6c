"""The wheel: its files, and no need of PySpark or Java without the extra `spark`."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from integration_tests.conftest import ROOT, missing
from integration_tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.thorough

PACKAGES = ("bridge", "timer", "schemas", "kafka_timer", "spark_jobs")
FOR_TESTS_OF_USERS = {"bridge/testing/fakes.py", "bridge/testing/fake_kafka.py", "timer/testing.py"}
OLDEST_SETUPTOOLS = 77

NO_SPARK = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
CALL = NO_SPARK + "from bridge.cli import main; main()"
HELP_OF_ALL = (
    NO_SPARK
    + """
from importlib import import_module
from pkgutil import walk_packages

import bridge.cli.app, schemas, timer
from typer.main import get_command
from typer.testing import CliRunner

app = bridge.cli.app.app
commands = get_command(app)
for name in commands.list_commands(None):
    command = commands.get_command(None, name)
    if "help_option_names" not in command.context_settings:  # else it is passed on to Spark's
        done = CliRunner().invoke(app, [name, "--help"])
        print(name, done.exit_code)
for package in (bridge, timer, schemas):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
print(bridge.__path__[0])
"""
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from a copy, as an install leaves it."""
    if int(version("setuptools").partition(".")[0]) < OLDEST_SETUPTOOLS:
        missing(f"setuptools {version('setuptools')} is too old to build: make setup")
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    build += ["--wheel-dir", str(place), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(place / "site")
    return place / "site"


def call(site: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """An environment without Java."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": str(site), "JAVA_HOME": "", "COLUMNS": "120"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=site, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def files_in(folder: Path, *packages: str) -> set[str]:
    paths = (path for name in packages for path in (folder / name).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths if path.suffix != ".pyc"}


def is_for_proof(name: str) -> bool:
    return "tests" in Path(name).parts


def test_the_wheel_has_the_shipped_files_and_no_others(unpacked: Path) -> None:
    shipped = files_in(unpacked, *PACKAGES)
    assert shipped == {name for name in files_in(ROOT, *PACKAGES) if not is_for_proof(name)}
    assert {
        "bridge/http/html/templates/overview.html",
        "bridge/http/html/static/page.css",
        "bridge/py.typed",
    } <= shipped
    assert shipped >= FOR_TESTS_OF_USERS
    (about,) = unpacked.glob("*.dist-info")
    assert {path.name for path in unpacked.iterdir()} == {*PACKAGES, about.name}
    assert (about / "licenses" / "LICENSE").is_file()


def test_without_the_extra_every_command_but_the_spark_jobs_works(unpacked: Path) -> None:
    done = call(unpacked, HELP_OF_ALL)
    assert done.returncode == 0, done.stderr
    *told, place = done.stdout.split("\n")[:-1]
    assert place == str(unpacked / "bridge")
    assert {"run 0", "send 0", "cancel 0", "pending 0", "redrive 0", "verify 0", "dev 0"} <= set(told)
    assert [each for each in told if not each.endswith(" 0")] == []


def test_it_tells_its_version_and_what_the_spark_jobs_lack(unpacked: Path) -> None:
    (about,) = unpacked.glob("*.dist-info")
    told = call(unpacked, CALL, "--version")
    assert (told.returncode, told.stdout) == (0, f"timer-bridge {about.name.split('-')[1].removesuffix('.dist')}\n")
    lacking = call(unpacked, CALL, "audit", "--help")
    assert (lacking.returncode, "pip install '.[spark]'" in lacking.stderr) == (1, True)
    assert "Traceback" not in lacking.stderr
