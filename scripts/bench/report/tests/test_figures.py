"""Names of measurements, and figures computed from them."""

from scripts.bench.measurements import CpuCost, Flat, Measured, flat
from scripts.bench.report.figures import FIGURES, counted
from scripts.bench.topic_fixture import out_per_s
from scripts.common.delivery_figures import Account, Lateness
from scripts.common.kafka_io import Delivery

BURST: Measured = {"drain_per_s": 50_000, "account": Account(1000, 0, 0, 0, 0), "cost": CpuCost(0.02, 7.0)}


def figure(key: str, *rounds: Flat) -> float | None:
    (found,) = [figure for figure in FIGURES if figure.key == key]
    value = found.value(rounds)
    return None if value is None else value.median


def test_each_number_has_a_name() -> None:
    found = flat({"burst": BURST, "steady": {"1000": {"late": Lateness(1, 2, 3)}}})
    assert found["burst.drain_per_s"] == 50_000
    assert found["burst.account.requested"] == 1000
    assert found["burst.cost.cpu_s"] == 0.02
    assert found["steady.1000.late.p99_ms"] == 2


def test_a_figure_without_measurement_is_none() -> None:
    assert figure("drain_per_s") is None
    assert figure("drain_to_rocketmq", flat({"burst": BURST})) is None
    assert figure("steady_to_copy", {"copy.per_s": 100.0}) is None


def test_a_ratio_is_made_within_its_try_and_tries_by_their_median() -> None:
    tries = [
        {"burst.drain_per_s": drain, "rocketmq.burst.drain_per_s": peer, "rocketmq.g1.burst.drain_per_s": peer / 2}
        for drain, peer in ((100.0, 100.0), (300.0, 100.0), (400.0, 200.0))
    ]
    assert figure("drain_to_rocketmq", *tries) == 2.0
    assert figure("drain_per_s", *tries) == 300.0
    assert figure("rocketmq_drain_per_s", *tries) == 100.0


def test_each_side_is_compared_by_its_better_collector() -> None:
    one = {"burst.drain_per_s": 100.0, "g1.burst.drain_per_s": 300.0}
    peer = {"rocketmq.burst.drain_per_s": 200.0, "rocketmq.g1.burst.drain_per_s": 50.0}
    assert figure("drain_to_rocketmq", one | peer) == 1.5


def test_faults_are_the_sum_over_all_parts_and_tries_and_the_peers_are_its_own() -> None:
    one = {"burst.account.lost": 1.0, "bodies.100.account.lost": 2.0, "rocketmq.burst.account.lost": 50.0}
    assert counted([one, {}, one]) == {"the bridge": {"lost": 6.0}, "RocketMQ": {"lost": 100.0}}


def test_every_key_is_unique() -> None:
    assert len({figure.key for figure in FIGURES}) == len(FIGURES)


def deliveries(*appended_ms: int) -> list[Delivery]:
    return [Delivery("orders", b"", 0, at_ms, at_ms) for at_ms in appended_ms]


def test_the_rate_out_is_that_of_the_time_while_others_are_sent() -> None:
    while_sent, behind = range(0, 4_000, 10), range(4_000, 5_000)
    assert round(out_per_s(deliveries(*while_sent, *behind), until_ms=4_000)) == 100


def test_the_steps_of_a_tick_do_not_bend_the_rate() -> None:
    steps = [second * 1_000 for second in range(9) for _ in range(500)]
    assert abs(out_per_s(deliveries(*steps), until_ms=9_000) - 500) < 10
