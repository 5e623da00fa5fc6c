"""Builds the bridge's image, also if no image can be pulled, and starts a Docker engine if none answers."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from integration_tests.conftest import ROOT, docker_answers, missing

WHEELS = ROOT / "compose" / "bridge" / "wheels"


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run the command and return its standard output. Fail unless it ends with 0."""
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@contextmanager
def docker_engine() -> Iterator[None]:
    """Start an engine of our own if none answers, and stop it in the end. Skip the test if that is not possible."""
    if docker_answers():
        yield
        return
    done = subprocess.run([ROOT / "scripts" / "start-docker.sh"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(done.stderr)
    started = dict(re.findall(r"(DOCKER_HOST|DOCKERD_PID)=(\S+)", done.stdout))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started["DOCKER_HOST"])
        try:
            yield
        finally:
            os.kill(int(started["DOCKERD_PID"]), signal.SIGTERM)
            # Its folder is free for the next one when it has ended.
            wait = ["timeout", "20", "tail", f"--pid={started['DOCKERD_PID']}", "-f", "/dev/null"]
            subprocess.run(wait, check=False)


@contextmanager
def build_arguments(official_base: str) -> Iterator[dict[str, str]]:
    """Yield arguments of compose/bridge/Dockerfile, for a build inside `with`.

    If the official base cannot be pulled: a base of our own, and wheels that pip downloads for this Python.
    """
    if subprocess.run(["docker", "pull", "--quiet", official_base], capture_output=True, check=False).returncode == 0:
        yield {"BASE": official_base}
        return
    base = run(str(ROOT / "compose" / "ensure-base.sh")).strip()
    try:
        _download_wheels()
        yield {"BASE": base, "PIP_NO_INDEX": "1"}
    finally:
        for wheel in WHEELS.glob("*.whl"):
            wheel.unlink()


def _download_wheels() -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:"]
    names = re.findall(r"-r (\w+)\.lock", (ROOT / "compose" / "bridge" / "Dockerfile").read_text())
    for name in [each for each in names if each != "spark"]:  # of the audit's image
        command += ["--requirement", str(ROOT / "requirements" / f"{name}.lock")]
    run(*command, "--dest", str(WHEELS))


def build(tag: str, official_base: str) -> None:
    """Build the bridge's image with `docker build`."""
    dockerfile = str(ROOT / "compose" / "bridge" / "Dockerfile")
    command = ["docker", "build", "--quiet", "--target=bridge", "--file", dockerfile, "--tag", tag]
    with build_arguments(official_base) as arguments:
        for given in ("PIP_INDEX_URL", *(f"{name}={value}" for name, value in arguments.items())):
            command += ["--build-arg", given]
        classic = {**os.environ, "DOCKER_BUILDKIT": "0"}  # this builder needs nothing that would have to be pulled
        run(*command, str(ROOT), environment=classic)
