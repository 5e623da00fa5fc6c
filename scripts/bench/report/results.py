"""`results.json` of the bench, read again: the figures, and of each number the median of the rounds with its spread."""

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bridge.errors import SettingsError
from scripts.bench.run import FOLDER

RESULTS = FOLDER / "results.json"


class MedianValue(NamedTuple):
    """A number over the rounds in which it was measured."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """Results of a run. `figures`: by key, None if not measured; `reasons`: why; `measured`: by name."""

    figures: dict[str, float | None]
    reasons: dict[str, str]
    measured: dict[str, MedianValue]
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]

    def median(self, name: str) -> float | None:
        value = self.measured.get(name)
        return None if value is None else value.median

    def cpu_us(self, scenario: str) -> float:
        """Return the bridge's CPU per message in and out; 0 if not measured."""
        return self._us_a_message(scenario, "cost.cpu_s")

    def broker_cpu_us(self, scenario: str) -> float:
        """Return the broker's CPU per message in and out; 0 if not measured."""
        return self._us_a_message(scenario, "broker_cpu_s")

    def _us_a_message(self, scenario: str, end: str) -> float:
        cpu_s, count = self.median(f"{scenario}.{end}"), self.median(f"{scenario}.account.requested")
        return (cpu_s or 0.0) * 1e6 / max(count or 0.0, 1.0)

    def places(self, begin: str, end: str) -> list[str]:
        """What stands between: places("steady.", ".out_per_s") -> ["1000", "10000"], numbers in their order."""
        found = [
            name.removeprefix(begin).removesuffix(end)
            for name in self.measured
            if name.startswith(begin) and name.endswith(end)
        ]
        inner = [place for place in found if "." not in place]
        return sorted(inner, key=lambda place: ([int(digits) for digits in re.findall(r"\d+", place)], place))


def load(path: Path = RESULTS) -> Results:
    """Read the results. Raises SettingsError."""
    try:
        told = json.loads(path.read_text())
    except OSError:
        raise SettingsError(f"there is no {path}: run `make bench` first") from None
    return read(told)


def read(told: Mapping[str, Any]) -> Results:
    values: dict[str, list[float]] = {}
    for one in told["rounds"]:
        for name, value in one["measured"].items():
            values.setdefault(name, []).append(value)
    measured = {name: MedianValue(statistics.median(each), min(each), max(each)) for name, each in values.items()}
    others = ("reasons", "machine", "versions", "settings", "rounds")
    figures = {key: value for key, value in told.items() if key not in others}
    return Results(figures, told["reasons"], measured, told["machine"], told["versions"], told["settings"])
