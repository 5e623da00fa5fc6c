"""The collector's settings are restored after the test, as they belong to the process."""

import gc
from collections.abc import Iterator

import pytest

from bridge.garbage_collection import tune_gc


@pytest.fixture
def _restore() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_restore")
def test_the_collector_finds_cycles_but_does_not_run_within_a_batch() -> None:
    tune_gc()
    before = gc.get_stats()[0]["collections"]
    batch = [(number, [number]) for number in range(20_000)]
    assert gc.get_stats()[0]["collections"] == before
    rings: list[list[object]] = [[] for _ in range(150_000)]
    for ring in rings:
        ring.append(ring)
    assert gc.get_stats()[0]["collections"] > before
    assert len(batch) == 20_000
