"""The programs of docs/client.md, with a real broker and a real `timer-bridge run`."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from integration_tests.conftest import ROOT, Broker, kafka_jars, missing
from integration_tests.support.bridge_command import Names, read
from integration_tests.support.patience import PATIENCE_S
from kafka_timer import partition_for
from scripts.common.processes import BridgeProcess

PARTITIONS = 4
PINNED = ROOT / "integration_tests" / "producers"
CACHE = ROOT / ".run" / "producers"
"""Packages that Go and npm fetch, and what Go compiles."""


def program(language: str, broker: Broker, names: Names) -> str:
    """Return the program of the page with the test's own broker and topics."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL | re.M)
    own = {"127.0.0.1:9092": broker.bootstrap_servers, '"timer.requests"': f'"{names.timers}"'}
    for shown, given in {**own, '"orders"': f'"{names.target}"'}.items():
        assert code.count(shown) == 1
        code = code.replace(shown, given)
    return str(code)


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    given = {"GOPATH": str(CACHE / "go"), "GOCACHE": str(CACHE / "go-build"), "GOTOOLCHAIN": "local"}
    env = {**os.environ, **given, "GOFLAGS": "-modcacherw", "npm_config_cache": str(CACHE / "npm")}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def fetch(folder: Path, *command: str) -> None:
    """Fetch pinned packages. Skip the test if the language or the network is missing, fail at a wrong checksum."""
    if shutil.which(command[0]) is None:
        missing(f"{command[0]} is not installed; on Debian: apt-get install golang nodejs npm")
    done = run(folder, *command)
    assert not re.search("checksum mismatch|EINTEGRITY", done.stderr), done.stderr
    if done.returncode != 0:
        missing(f"{' '.join(command)}: {done.stderr[-2000:]}")


def java(folder: Path, code: str) -> list[str]:
    if shutil.which("javac") is None:
        missing("no Java compiler; on Debian: apt-get install openjdk-17-jdk-headless")
    (folder / "Remind.java").write_text(code)
    return ["java", "-cp", f"{kafka_jars()}/*", "Remind.java"]


def go(folder: Path, code: str) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(PINNED / name, folder)
    fetch(folder, "go", "mod", "download")
    (folder / "main.go").write_text(code)
    return ["go", "run", "."]


def js(folder: Path, code: str) -> list[str]:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINNED / name, folder)
    fetch(folder, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    (folder / "remind.js").write_text(code)
    return ["node", "remind.js"]


@pytest.mark.broker
@pytest.mark.parametrize(
    "language", [java, pytest.param(go, marks=pytest.mark.slow), pytest.param(js, marks=pytest.mark.slow)]
)
def test_a_producer_of_the_docs_schedules_a_timer_that_cancels_find(
    language: Callable[[Path, str], list[str]], kafka: Broker, names: Names, tmp_path: Path
) -> None:
    (folder := tmp_path / "program").mkdir()
    command = language(folder, program(language.__name__, kafka, names))
    names.create_target(kafka)
    with BridgeProcess(tmp_path, kafka.bootstrap_servers, [*names.arguments, "--partitions", str(PARTITIONS)]):
        done = run(folder, *command)
        assert done.returncode == 0, done.stderr
        (delivered,) = read(kafka, names.target, 1)
    assert (delivered.key(), delivered.value()) == (b"7", b"remind")
    (request,) = read(kafka, names.timers, 1)
    assert request.partition() == partition_for("reminder-7", PARTITIONS)
