"""Reads results.json of the bench: the figures, and of each number the median of the tries with its spread."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors import SettingsError
from scripts.bench.report.figures import MedianValue


@dataclass(frozen=True)
class Results:
    """Results of a run. `figures`: by key, without those not measured; `reasons`: why; `measured`: by name.

    `counted`: messages and faults, by whose they are.
    """

    figures: dict[str, MedianValue]
    reasons: dict[str, str]
    counted: dict[str, dict[str, float]]
    measured: dict[str, MedianValue]
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]

    def median(self, name: str) -> float | None:
        value = self.measured.get(name)
        return None if value is None else value.median

    def text(self, name: str) -> str:
        """Return the median, with lowest and highest if they differ; empty if it was not measured."""
        value = self.measured.get(name)
        return "" if value is None else value.text

    def us_per_message(self, scenario: str, measurement: str) -> float:
        """Return CPU per message in and out: of `cost.cpu_s`, the bridge, or `broker_cpu_s`. 0 if not measured."""
        cpu_s, count = self.median(f"{scenario}.{measurement}"), self.median(f"{scenario}.account.requested")
        return (cpu_s or 0.0) * 1e6 / max(count or 0.0, 1.0)

    def places(self, begin: str, end: str) -> list[str]:
        """Return what is between: places("steady.", ".out_per_s") -> ["1000", "10000"], by number."""
        pattern = re.compile(re.escape(begin) + r"([^.]+)" + re.escape(end))
        found = [match[1] for name in self.measured if (match := pattern.fullmatch(name))]
        return sorted(found, key=lambda place: ([int(digits) for digits in re.findall(r"\d+", place)], place))


def load(path: Path) -> Results:
    """Read the results. Raises SettingsError."""
    try:
        return read(json.loads(path.read_text()))
    except OSError:
        raise SettingsError(f"there is no {path}: run `make bench` first") from None


def read(results: Mapping[str, Any]) -> Results:
    values: dict[str, list[float]] = {}
    for one in results["rounds"]:
        for name, value in one["measured"].items():
            values.setdefault(name, []).append(value)
    return Results(
        figures={key: MedianValue(*value) for key, value in results["figures"].items()},
        measured={name: MedianValue.of(each) for name, each in values.items()},
        **{name: results[name] for name in ("reasons", "counted", "machine", "versions", "settings")},
    )
