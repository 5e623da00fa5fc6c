"""The version and its section in the changelog."""

import re
import tomllib

from integration_tests.conftest import ROOT


def test_the_version_has_a_dated_section_below_unreleased() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first, released, *_ = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == "Unreleased"
    assert re.fullmatch(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d", released)
