"""Seeded histories of the whole bridge (simulation/world.py), and proof that they find mistakes (planted_bugs.py).

SEEDS=1000 pytest bridge/tests/test_simulation.py          seeds 0..999; without it 50
SEEDS=5000..6000 pytest bridge/tests/test_simulation.py    those
SEED=4711 pytest bridge/tests/test_simulation.py           that one, with its story
python -m bridge.tests.simulation 0 10000                  the same on all cores, with figures
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from unittest import mock

import pytest

from bridge.loop.loop import Bridge
from bridge.tests.simulation.planted_bugs import MUTATIONS
from bridge.tests.simulation.run import Outcome, run_seed

MOST_SEEDS = 200
"""Seeds that are searched for each planted bug: docs/testing.md."""
PIECES = 10
"""Tests among which the seeds are shared out, so that workers can share them too."""

FOUND_BY = {
    "journal before the transaction": 4,
    "journal behind the transaction": 4,
    "below L kept": 36,
    "C left behind what has ended": 110,
    "a move shifts what comes after it": 30,
    "a wait that never ends": 22,
    "checkpoints not used": 34,
    "copies judged again": 23,
    "copies missing by origin": 5,
    "copies of this and of the next occurrence": 68,
    "digest not compared": 21,
    "dropped not journalled": 86,
    "held not journalled": 23,
    "markers not read at a start": 26,
    "moved one keeps its old time": 2,
    "next occurrence without its id": 16,
    "no skew margin": 2,
    "one target that fails holds all": 21,
    "origin missing in flights": 32,
    "pause forgotten by a start": 28,
    "quota without copies": 32,
    "released not journalled": 92,
    "sleeps past the due time": 2,
    "twice the rate": 74,
    "units of moved ones kept": 78,
    "unknown outcome taken for an abort": 51,
    "unstable progress": 10,
}
"""Seed by planted bug: it found a rare bug before, so the search begins there."""


def chosen_seeds() -> range:
    """Return the seeds that SEED or SEEDS names."""
    if one := os.environ.get("SEED"):
        return range(int(one), int(one) + 1)
    first, _, last = os.environ.get("SEEDS", "50").rpartition("..")
    return range(int(first or 0), int(last) + (1 if first else 0))


def story(outcome: Outcome) -> str:
    told = outcome.story if "SEED" in os.environ else outcome.story[-25:]
    return "\n  ".join(
        [f"seed {outcome.seed}: {outcome.fault}", *told, f"again: SEED={outcome.seed} pytest {__file__}"]
    )


def first_bad(seeds: range, mutation: str = "") -> Iterator[Outcome]:
    return (outcome for outcome in (run_seed(seed, mutation) for seed in seeds) if outcome.fault)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_request_has_its_one_outcome_whatever_happens(piece: int) -> None:
    bad = list(first_bad(chosen_seeds()[piece::PIECES]))
    assert not bad, "\n".join([f"bad seeds: {[outcome.seed for outcome in bad]}", story(bad[0])])


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mistake_is_caught(mutation: str) -> None:
    """Any change of the simulation may change the seeds that find it, so later seeds are tried too."""
    seed = FOUND_BY.get(mutation, 0)
    found = first_bad(range(seed, MOST_SEEDS), mutation), first_bad(range(seed), mutation)
    assert next(chain(*found), None), f"{MOST_SEEDS} histories do not find {mutation!r}"


def test_only_a_violation_shows_that_a_mistake_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug may raise an error of its own, which is no violation."""

    def broken(patches: ExitStack) -> None:
        patches.enter_context(mock.patch.object(Bridge, "turn", side_effect=ZeroDivisionError))

    monkeypatch.setitem(MUTATIONS, "broken", broken)
    outcome = run_seed(0, "broken")
    assert (outcome.fault, outcome.counts["ZeroDivisionError"]) == ("", 1)


def test_a_seed_is_the_same_history_each_time() -> None:
    assert run_seed(7) == run_seed(7)
