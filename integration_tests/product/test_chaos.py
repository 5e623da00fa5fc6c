"""The short form of `make chaos`: whatever is done to bridges and brokers, each timer has its one outcome."""

import os
from pathlib import Path

import pytest

from integration_tests.conftest import RUN
from scripts.chaos.run import MOST_LATE_MS, Chaos
from scripts.common.command import fresh

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

MINUTES = float(os.environ.get("CHAOS_MINUTES", "1"))
SEED = int(os.environ.get("SEED", "1"))
FAULTS = {"kill", "delete", "stop", "clock", "disk", "slow", "cut", "broker", "pause"}
OUTCOMES = ("delivered", "cancelled", "replaced", "moved", "expired", "move", "cancel-done")


@pytest.mark.parametrize("workers", [1, 2])
def test_two_bridges_and_three_brokers_are_hurt_and_each_timer_has_its_one_outcome(workers: int) -> None:
    with fresh(Path(RUN) / "chaos") as folder:
        chaos = Chaos(folder, MINUTES, SEED, workers=workers)
        verdict = chaos.run()
    assert verdict.clean, verdict.headline
    assert chaos.latest_ms <= MOST_LATE_MS
    assert sum(count for name, count in chaos.counts.items() if name.startswith("attack: ")) >= 3
    assert verdict.counts["pending"] == verdict.counts["unjudged"] == 0
    faults = {name.removeprefix("fault: "): count for name, count in chaos.counts.items() if name.startswith("fault: ")}
    assert faults.keys() | chaos.skipped.keys() == (FAULTS | {"worker"} if workers > 1 else FAULTS)
    assert chaos.skipped.keys() <= {"disk"}, "all others are possible everywhere"
    assert all(chaos.skipped.values()), "each with its reason"
    assert [kind for kind, count in faults.items() if count == 0] == []
    assert [outcome for outcome in OUTCOMES if not verdict.counts[outcome]] == []
    assert verdict.counts["moved"] > verdict.counts["move"] / 2
