"""Growth that a soak finds in its samples."""

import pytest

from bridge.errors import BridgeError
from scripts.chaos.soak import Sample, growth


def samples(rss_mb: list[float]) -> list[Sample]:
    return [Sample(10.0 * number, each, 40, 12, 5.0, number) for number, each in enumerate(rss_mb)]


def test_growth_at_the_start_alone_is_flat_and_a_leak_is_not() -> None:
    assert growth(samples([50, 90, 99, *[100] * 6]))["rss_mb"] == 0
    leaking = growth(samples([100.0 + 10 * number for number in range(9)]))
    assert leaking == {"rss_mb": round(170 / 140 - 1, 4), "handles": 0, "threads": 0, "disk_mb": 0}


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(BridgeError, match="longer"):
        growth(samples([100] * 8))
