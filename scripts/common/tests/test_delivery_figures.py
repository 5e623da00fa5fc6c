"""Deliveries compared with requests: lost, duplicate, early, strange."""

import numpy as np

from scripts.common import delivery_figures as figures
from scripts.common.kafka_io import Delivery, OffsetRange

SPAN = OffsetRange("timer.requests", 0, 2, 6)


def delivery(offset: int, *, late_ms: int = 5, partition: str = "timer.requests/0") -> Delivery:
    return Delivery("orders", f"{partition}/{offset}".encode(), 1_000, 1_000 + late_ms)


def test_every_fault_is_counted() -> None:
    came = [delivery(2), delivery(3), delivery(3), delivery(3), delivery(4, late_ms=-1)]
    came += [delivery(1), delivery(6), delivery(2, partition="other/0"), delivery(2, partition="timer.requests/1")]
    found = figures.DeliveryAccount([SPAN], came).counts()
    assert found == figures.Account(requested=4, lost=1, duplicates=2, early=1, strangers=4)


def test_percentiles_are_latenesses_that_happened() -> None:
    assert figures.lateness(np.arange(1, 101)) == (50, 99, 100)
    assert figures.lateness(np.array([7])) == (7, 7, 7)
    assert figures.lateness(np.array([], np.int64)) == (0, 0, 0)
