"""Prometheus's own tools on what the bridge tells: its linter, its rules, and a server that asks a running bridge."""

import shutil
import subprocess

from bridge.test_histories import World
from bridge.test_metrics import text_of
from integration_tests.conftest import missing


def tool(name: str) -> str:
    return shutil.which(name) or missing(f"{name} is not installed; on Debian: apt-get install prometheus")


def promtool(*arguments: str, told: str = "") -> str:
    """What it says. It ends with 0."""
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_linter_finds_nothing_to_say() -> None:
    world = World()
    world.send()
    world.bridge.run(1000)
    assert promtool("check", "metrics", told=text_of(world)) == ""
