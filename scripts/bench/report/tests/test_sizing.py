"""The model finds the costs that a made-up bench was made with, and sizes by them."""

import dataclasses

import pytest

from bridge.capacity.sizing import DAY_S, MEMORY_MB, WINDOW_S, Model, rebuild_s, size
from bridge.errors import SettingsError
from scripts.bench.report import capacity, sizing
from scripts.bench.report.results import read
from scripts.bench.report.sizing import fit, fit_cpu
from scripts.bench.report.tests.sample_results import (
    BASE_MB,
    DISK_BYTES,
    KILOBYTE_US,
    MEMORY_BYTES,
    REQUEST_US,
    TRANSACTION_US,
    made_up,
)


@pytest.fixture(scope="module")
def model() -> Model:
    return fit(read(made_up()))


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-3)


def test_the_fit_finds_each_cost(model: Model) -> None:
    assert model.cpu.request_us == near(REQUEST_US)
    assert model.cpu.transaction_us == near(TRANSACTION_US)
    assert model.cpu.kilobyte_us == near(KILOBYTE_US)
    assert model.cpu.worst < 1e-6
    assert (model.base_mb, model.memory_bytes, model.disk_bytes) == (
        near(BASE_MB),
        near(MEMORY_BYTES),
        near(DISK_BYTES),
    )
    assert model.transactions_per_s == near(180)
    assert model.rebuild_per_s == near(500_000)


def test_a_cost_that_would_be_negative_is_none() -> None:
    runs = [
        sizing.Run("", n, n, n / size, n * size / 1024, n * (20 - size / 1000) / 1e6)
        for n in (1e5, 2e5)
        for size in (1e2, 1e3)
    ]
    found = fit_cpu([*runs, sizing.Run("", 1e5, 0, 50, 100, 1.0)])
    assert min(found) >= 0


def test_too_few_runs_are_refused_with_the_remedy() -> None:
    with pytest.raises(SettingsError, match="without --only"):
        fit_cpu([sizing.Run("", 1, 1, 1, 1, 1)])
    with pytest.raises(SettingsError, match="with the part pending"):
        fit(read(made_up(without="pending.")))
    with pytest.raises(SettingsError, match="with the part steady"):
        fit(read(made_up(without="steady.")))


def test_timers_shorter_than_a_window_do_not_roll(model: Model) -> None:
    assert size(model, 1_000, 1_000 * WINDOW_S / 2).rolls_per_s == 0
    assert size(model, 1_000, 1_000 * WINDOW_S * 2).rolls_per_s == near(2_000)


def test_ten_times_the_load_asks_for_ten_times_the_instances(model: Model) -> None:
    few, many = size(model, 100_000, 1e6), size(model, 1_000_000, 1e7)
    assert many.instances == pytest.approx(10 * few.instances, abs=10)
    assert many.partitions >= 2 * many.instances
    assert many.broker_mb_per_s == near(10 * few.broker_mb_per_s)


def test_a_roll_is_written_once_and_kept_for_a_week_at_least(model: Model) -> None:
    alike, rolling = size(model, 1_000, 1_000 * WINDOW_S), size(model, 1_000, 1_000 * WINDOW_S * 2)
    assert rolling.broker_mb_per_s == near(2 * alike.broker_mb_per_s)  # 2,000 rolls a second beside 2 x 1,000
    assert size(model, 1_000, 1e6, DAY_S).topic_tb == near(size(model, 1_000, 1e6, 2 * DAY_S).topic_tb)


def test_a_long_timer_makes_a_rebuild_read_all_later_requests(model: Model) -> None:
    of = size(model, 1_000, 1_000_000)
    assert of.longest_rebuild_s == near(of.rebuild_s * 1_000 * WINDOW_S / 1_000_000)


def test_memory_may_require_more_instances(model: Model) -> None:
    of = size(model, 1_000, 10_000_000_000, 24 * DAY_S)
    assert of.instances == 24  # 10 G x 40 bytes, 16 GB each
    assert of.memory_mb_each <= BASE_MB + MEMORY_MB


def test_a_lost_disk_takes_as_long_as_its_window(model: Model) -> None:
    one, four = (rebuild_s(model, 1_000, days * DAY_S) for days in (1, 4))
    assert four == near(4 * one)
    faster = dataclasses.replace(model, rebuild_per_s=2 * model.rebuild_per_s)
    assert rebuild_s(faster, 1_000, DAY_S) == near(one / 2)


def test_the_page_tells_measured_from_calculated(model: Model) -> None:
    results = read(made_up())
    lines = capacity.page(results, fit(results)).splitlines()
    (within,) = [line for line in lines if line.startswith("| 10,000 | 10,000,000 |")]
    (beyond,) = [line for line in lines if line.startswith("| 1,000,000 | 10,000,000,000 |")]
    assert within.split(" | ")[3][0] != "*" or size(model, 10_000, 10_000_000).instances > 1
    assert all(cell.strip(" |").startswith("*") for cell in beyond.split(" | ")[2:])
    assert "| 40,000/s asked | 12.2 | 12.2 |" in lines  # 5 + 6 + 2 x 0.25 x 1.5 + 180 x 100 / 40,000
    assert "| 4 | 54,000 | 1.00 |" in lines
