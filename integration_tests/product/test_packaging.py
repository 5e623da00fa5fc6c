"""The wheels hold what is shipped and need no Spark without its extra; the client stands alone; locks are complete."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import Distribution, version
from pathlib import Path

import confluent_kafka
import pytest
from packaging.requirements import Requirement

from integration_tests.conftest import ROOT, missing
from integration_tests.support.patience import PATIENCE_S
from scripts.release.build import build_packages

pytestmark = pytest.mark.thorough

PACKAGES = ("bridge", "timer", "schemas", "spark_jobs")
CLIENT = "kafka_timer"
OLDEST_SETUPTOOLS = 77

MAKEFILE = (ROOT / "Makefile").read_text()

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
IMPORT_ALL = (
    NO_SPARK
    + """
from importlib import import_module
from pkgutil import walk_packages

import bridge.cli.app, kafka_timer, schemas, timer

REFUSED = ("bridge.client", "bridge.fake_kafka", "bridge.timer_world", "bridge.testing.fakes")
for package in (bridge, timer, schemas, kafka_timer):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if module.name not in REFUSED:
            import_module(module.name)
print(bridge.__path__[0])
print(kafka_timer.__path__[0])
"""
)


ALONE = """
import asyncio, sys
sys.path[1:1] = sys.argv[1:]
import schemas, timer

assert (schemas.MINE, timer.MINE) == (1, 1)
from kafka_timer import TimerProducer, cancel_headers, headers_for, partition_for

print(headers_for("orders", delay="2h", id="7"), cancel_headers("7"), partition_for("7", 4))
TimerProducer({"bootstrap.servers": "127.0.0.1:1"}).close()
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(foreign - {"__main__", "schemas", "timer"}))
"""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the content of the client's wheel and of the bridge's, as a release builds and an install leaves it."""
    if int(version("setuptools").partition(".")[0]) < OLDEST_SETUPTOOLS:
        missing(f"setuptools {version('setuptools')} is too old to build: make setup")
    wheels = build_packages(tmp_path_factory.mktemp("release"))
    client, bridge = (tmp_path_factory.mktemp(wheel.name.partition("-")[0]) for wheel in wheels)
    for wheel, site in zip(wheels, (client, bridge), strict=True):
        shutil.unpack_archive(wheel, site, "zip")
    return client, bridge


def call(site: Path, client: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run code with both wheels, in an environment without Java."""
    path = os.pathsep.join(map(str, (site, client)))
    environment = {**os.environ, "PYTHONPATH": path, "PATH": str(site), "JAVA_HOME": "", "COLUMNS": "120"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=site, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def files_in(folder: Path, *packages: str) -> set[str]:
    paths = (path for name in packages for path in (folder / name).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix() for path in paths if path.suffix != ".pyc"}


def test_the_wheel_has_the_shipped_files_and_no_others(sites: tuple[Path, Path]) -> None:
    _, unpacked = sites
    shipped = files_in(unpacked, *PACKAGES)
    assert shipped == {name for name in files_in(ROOT, *PACKAGES) if "tests" not in Path(name).parts}
    assert {"bridge/page/templates/overview.html", "bridge/page/static/page.css", "bridge/py.typed"} <= shipped
    (about,) = unpacked.glob("*.dist-info")
    assert {path.name for path in unpacked.iterdir()} == {*PACKAGES, about.name}
    assert (about / "licenses" / "LICENSE").is_file()


def test_the_client_has_the_shipped_files_and_needs_confluent_kafka_alone(sites: tuple[Path, Path]) -> None:
    client, unpacked = sites
    (about,) = client.glob("*.dist-info")
    assert {path.name for path in client.iterdir()} == {CLIENT, about.name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / CLIENT).glob("*.py")}
    assert files_in(client, CLIENT) == {*modules, f"{CLIENT}/py.typed"}
    assert (about / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    told, own = Distribution.at(about), Distribution.at(next(unpacked.glob("*.dist-info")))
    needed = [each.partition(">")[0] for each in told.requires or () if "extra ==" not in each]
    assert needed == ["confluent-kafka"]
    assert f"kafka-timer-client=={told.version}" in (own.requires or ())


def test_the_client_works_beside_packages_with_our_names_and_imports_nothing_else(
    sites: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("schemas", "timer"):
        (tmp_path / f"{name}.py").write_text("MINE = 1\n")
    kafka = Path(confluent_kafka.__path__[0])
    (tmp_path / "only").mkdir()
    for folder in (kafka, *kafka.parent.glob("confluent_kafka.libs")):
        (tmp_path / "only" / folder.name).symlink_to(folder)
    command = [sys.executable, "-E", "-S", "-W", "error", "-c", ALONE, str(sites[0]), str(tmp_path / "only")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[('timer-topic', b'orders'), ('timer-delay-ms', b'7200000'), ('timer-id', b'7')]"
        " [('timer-action', b'cancel'), ('timer-id', b'7')] 3",
        "['confluent_kafka', 'kafka_timer']",
    ]


def test_without_the_extra_everything_but_the_spark_jobs_is_imported(sites: tuple[Path, Path]) -> None:
    client, unpacked = sites
    done = call(unpacked, client, IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(unpacked / "bridge"), str(client / CLIENT)]
    lacking = call(unpacked, client, CALL, "audit", "--help")
    assert (lacking.returncode, "pip install 'kafka-timer-bridge[spark]'" in lacking.stderr) == (1, True)
    assert "Traceback" not in lacking.stderr


def locked(file: str) -> list[str]:
    return re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / f"{file}.lock").read_text(), re.MULTILINE)


@pytest.mark.parametrize("extra", re.findall(r"^EXTRAS := (.*)$", MAKEFILE, re.MULTILINE)[0].split())
def test_the_locks_of_an_extra_have_all_that_it_needs(extra: str) -> None:
    """A lock lists what the ones before it lack: if it fails, correct NEEDS_* in the Makefile."""
    needed = " ".join(re.findall(rf"^NEEDS_{extra} := (.*)$", MAKEFILE, re.MULTILINE)).split()
    there = {name for file in ("run", extra, *needed) for name in locked(file)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(each) for each in project["dependencies"] + project["optional-dependencies"][extra]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        each = waiting.pop()
        name = re.sub(r"[-_.]+", "-", each.name).lower()
        assert name in there | {"kafka-timer-client"}, f"make setup-{extra} lacks {name}"
        for own in {(name, extra_of_it) for extra_of_it in {*each.extras, ""}} - seen:
            seen.add(own)
            requires = map(Requirement, Distribution.from_name(name).requires or ())
            waiting += [more for more in requires if more.marker is None or more.marker.evaluate({"extra": own[1]})]
