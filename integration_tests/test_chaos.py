"""The short form of `make chaos`: whatever is done to bridges and brokers, each timer has its one outcome."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from integration_tests.conftest import JARS_CACHE, RUN
from scripts.chaos import Chaos
from scripts.command import fresh

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

MINUTES = float(os.environ.get("CHAOS_MINUTES", "3"))
SEED = int(os.environ.get("SEED", "1"))


def test_two_bridges_and_three_brokers_are_hurt_and_each_timer_has_its_one_outcome() -> None:
    with fresh(Path(RUN) / "chaos") as folder:
        verdict = Chaos(folder, MINUTES, SEED, Console(), jars_cache=JARS_CACHE).run()
    assert verdict.clean, verdict.headline
    assert verdict.counts["pending"] == 0
    assert verdict.counts["delivered"] > 0
