"""The bench's parts in small: every message is accounted for, by the bridge and by RocketMQ."""

from pathlib import Path

import pytest

from bridge.errors import BridgeError
from integration_tests.conftest import missing
from scripts.bench.rocketmq import peer
from scripts.bench.suite import measure
from scripts.bench.topic_fixture import OTHER, BenchServers, Sizes
from scripts.common.processes import TIMER_BRIDGE

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SIZES = Sizes(1_000, 256, 2)


@pytest.mark.parametrize("name", ["core", "steady", "pending", "scale"])
def test_a_part_of_the_bench_measures_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    bridges = {"": TIMER_BRIDGE} | ({OTHER: TIMER_BRIDGE} if name == "core" else {})
    servers = BenchServers(tmp_path, SIZES, 1.0, 2, 20_000, is_quick=True, bridges=bridges)
    first, second = measure(name, servers)
    assert second.keys() <= first.keys()
    assert {each.startswith(OTHER) for each in second} == ({True, False} if name == "core" else {False})
    for measured in (first, second):
        accounts = {key: value for key, value in measured.items() if ".account." in key}
        assert all(value > 0 for key, value in accounts.items() if key.endswith("requested"))
        assert not any(value for key, value in accounts.items() if not key.endswith("requested"))
        assert all(value > 0 for key, value in measured.items() if key.endswith(("_per_s", "_mb", "cpu_us")))


def test_rocketmq_runs_beside_us_in_a_network_of_its_own(tmp_path: Path) -> None:
    try:
        first, second, third = peer.measured(tmp_path / "peer", peer.Load(100, 2, (1_000,)), SIZES, 3.0)
    except BridgeError as trouble:
        missing(f"no RocketMQ: {trouble}")
    for measured in (first, second):
        assert measured["burst.account.requested"] == 1_000
        assert measured["burst.account.lost"] == 0
    assert third["steady.1000.account.lost"] == 0
