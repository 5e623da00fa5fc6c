"""A hostile sender or owner of a target costs others neither their timers nor seconds, nor the bridge its memory."""

from pathlib import Path

import pytest

from scripts.chaos.strangers import run_attack, stage_with_bridge

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

MOST_MB, MOST_LATE_MS = 400, 3_000
"""On a quiet machine the latest timer is late by 0.6 s. Without the bounds it was late by more than 10 s."""


@pytest.mark.parametrize("attack", ["headers-60", "keyless-burst"])
def test_a_neighbour_of_an_attack_gets_all_timers_once_and_soon(attack: str, tmp_path: Path) -> None:
    with stage_with_bridge(tmp_path, attack) as (stage, bridge):
        outcome = run_attack(stage, bridge, attack)
    assert (outcome.delivered, outcome.twice) == (outcome.sent, 0)
    assert outcome.late.max_ms < MOST_LATE_MS
    assert outcome.rss_mb < MOST_MB
