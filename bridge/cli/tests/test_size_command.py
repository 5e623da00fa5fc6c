"""`timer-bridge size` and docs/capacity.md are of one model, and the chart's values are those that it prints."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bridge.cli.app import app
from bridge.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "capacity.md"
ROWS = [
    [cell.strip(" *") for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().partition("## What a load needs")[2].partition("## A lost disk")[0].splitlines()
    if line.startswith("| 1")
]


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["size", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_finds_what_the_page_shows() -> None:
    assert len(ROWS) == 20
    for rate, pending, rolls, instances, partitions, memory, disk, writes, *_ in ROWS:
        needs = json.loads(ran("--rate", rate.replace(",", ""), "--pending", pending.replace(",", ""), "--json"))
        assert (needs["instances"], needs["partitions"]) == (int(instances), int(partitions))
        shown = {"rolls_per_s": rolls, "memory_mb_each": memory, "disk_gb_each": disk, "broker_mb_per_s": writes}
        for name, text in shown.items():
            rounded = 0.06 if "." in text else 0.6
            assert needs[name] == pytest.approx(float(text.split()[0].replace(",", "")), rel=0.01, abs=rounded), name


def test_the_charts_values_are_those_of_its_load() -> None:
    values = yaml.safe_load((ROOT / "charts" / "timer-bridge" / "values.yaml").read_text())
    printed = yaml.safe_load(ran("--rate", "10000", "--pending", "10000000", "--helm"))
    assert printed == {name: values[name] for name in printed} | {"storage": {"size": values["storage"]["size"]}}


def test_it_says_whether_a_load_was_measured() -> None:
    assert "Within what was measured" in ran("--rate", "10000", "--pending", "10000000")
    assert "Beyond what was measured" in ran("--rate", "10000", "--pending", "100000000")


def test_larger_bodies_need_more() -> None:
    small, large = (
        json.loads(ran("--rate", "1000", "--pending", "1000000", "--body-bytes", size, "--json"))
        for size in ("256", "10000")
    )
    for name in ("disk_gb_each", "broker_mb_per_s", "topic_tb"):
        assert large[name] > 4 * small[name]


@pytest.mark.parametrize("window", ["x", "0", "999"])
def test_a_wrong_window_is_an_error(window: str) -> None:
    with pytest.raises(SettingsError, match="--roll-window"):
        CliRunner().invoke(
            app, ["size", "--rate", "1", "--pending", "1", "--roll-window", window], catch_exceptions=False
        )
