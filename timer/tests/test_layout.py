"""Open a store with another tick or other slots than it was written with (case 12): nothing is lost."""

import random
from dataclasses import replace

import numpy as np
import pytest

from timer.errors import WheelFullError
from timer.files.disk import Disk
from timer.inspect.offline_store import StoppedStore
from timer.testing import SimDisk
from timer.tests.history import OPTIONS, START_MS, History, full_history


def live(disk: Disk) -> list[tuple[int, int]]:
    """Return (visit_ms, origin) of all pending timers."""
    with StoppedStore(disk) as store:
        rows = np.concatenate(list(store.live()))
    return sorted(zip(rows["visit_ms"].tolist(), rows["origin"].tolist(), strict=True))


def released(history: History, held: int) -> list[tuple[int, int]]:
    """Return (visit_ms, origin) of all timers as they leave, and check that `held` of them are out of order."""
    found: list[tuple[int, int]] = []
    extra: list[tuple[int, int]] = []
    for now in range(0, 120_000, 500):
        while (due := history.store.due(START_MS + now, 7, 1 << 20)).total:
            found += zip(due.rows["visit_ms"].tolist(), due.rows["origin"].tolist(), strict=True)
            extra += zip(due.released["visit_ms"].tolist(), due.released["origin"].tolist(), strict=True)
            assert [body.origin for body in history.store.bodies(due.rows)] == due.rows["origin"].tolist()
    assert found == sorted(found)
    assert len(extra) == held
    return sorted(found + extra)


def test_case_12_a_store_with_another_tick_is_refused_unchanged() -> None:
    disk = SimDisk(random.Random(0))
    history = full_history(disk)
    history.closes()
    before = disk.contents()
    with pytest.raises(ValueError, match="tick_ms is 70, the store was built with 1000"):
        history.starts_again(replace(OPTIONS, tick_ms=70, slots=2000))
    assert disk.contents() == before


def test_case_12_too_few_slots_are_refused_and_nothing_is_lost() -> None:
    disk = SimDisk(random.Random(0))
    history = full_history(disk)
    history.closes()
    expected = live(disk)
    with pytest.raises(WheelFullError):
        history.starts_again(replace(OPTIONS, slots=5))
    history.starts_again(replace(OPTIONS, slots=100))
    assert released(history, held=1) == expected
