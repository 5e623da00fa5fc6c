"""docs/benchmarks/last-release.json: the figures of the last release, to which each run is compared.

    {"whole": {"release": "0.3.0", "figures": {"drain_to_copy": [1.4, 1.3, 1.5], ...}}, "quick": {...}}

A figure is its median, lowest and highest. A quick run has fewer messages, so it is compared with a quick run.
`make bench-page ARGS=--release` writes the figures of the last run.
"""

import json
from pathlib import Path
from typing import NamedTuple

from scripts.bench.report.figures import Figure, MedianValue, number_text
from scripts.bench.report.results import Results

PATH = Path("docs/benchmarks/last-release.json")
LEAST_SPREAD = 0.08
"""Share of a figure by which the machine varies from run to run, as runs of one tree show."""


class LastRelease(NamedTuple):
    """Figures of the last release; without any if it was never measured."""

    release: str
    figures: dict[str, MedianValue]

    def columns(self, figure: Figure, value: MedianValue) -> tuple[str, str]:
        """Return the figure of that release, and the change in percent, marked if `is_worse`."""
        before = self.figures.get(figure.key)
        if before is None or not before.median:
            return "", ""
        change = (value.median - before.median) / before.median
        mark = " worse" if self.is_worse(figure, value) else ""
        return number_text(before.median), f"{change:+.0%}{mark}"

    def is_worse(self, figure: Figure, value: MedianValue) -> bool:
        """Return True if a figure with a goal is worse by more than the spread of either run's tries."""
        before = self.figures.get(figure.key)
        if before is None:
            return False
        spread = max(value.high - value.low, before.high - before.low, LEAST_SPREAD * before.median)
        return figure.worsening(value.median - before.median) > spread


def read(kind: str, path: Path = PATH) -> LastRelease:
    """Return the figures of the last release. `kind`: "whole" or "quick"."""
    kept = json.loads(path.read_text()).get(kind, {}) if path.exists() else {}
    figures = {key: MedianValue(*value) for key, value in kept.get("figures", {}).items()}
    return LastRelease(kept.get("release", "none"), figures)


def write(kind: str, results: Results, path: Path) -> None:
    """Keep the figures of `results` as those of the last release."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[kind] = {"release": results.versions["kafka-timer-bridge"], "figures": results.figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
