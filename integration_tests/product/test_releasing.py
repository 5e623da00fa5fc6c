"""The version and its section in the changelog."""

import re
import tomllib
from typing import Any

from integration_tests.conftest import ROOT


def project(file: str) -> dict[str, Any]:
    told: dict[str, Any] = tomllib.loads((ROOT / file).read_text())["project"]
    return told


def test_the_bridge_needs_the_client_of_its_own_version() -> None:
    bridge, client = project("pyproject.toml"), project("kafka_timer/pyproject.toml")
    assert client["version"] == bridge["version"]
    assert f"{client['name']}=={bridge['version']}" in bridge["dependencies"]


def test_the_version_has_a_dated_section_below_unreleased() -> None:
    version = project("pyproject.toml")["version"]
    first, released, *_ = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", released)
