"""Only the timers of a target topic that takes no records wait, until it takes some. All others leave on time."""

import pytest

from bridge.loop.tests.test_histories import SMALL, schedule, values
from bridge.observe.prometheus import AlertLimits, Exposition
from bridge.partition.limits import FIRST_DELAY_MS, LONGEST_DELAY_MS, MAX_BREAKERS, CircuitBreakers
from bridge.partition.options import TurnOptions
from bridge.testing.timer_world import TIMERS, TimerWorld, usual_options


class World(TimerWorld):
    """A world with a target that can fail (`bills`) and one that does not (`orders`)."""

    def __init__(self, options: TurnOptions = SMALL) -> None:
        super().__init__("orders", "bills", options=options)

    def send(self, topic: str, value: str, delay_ms: int, id_: str | None = None) -> None:
        self.kafka.produce(TIMERS, value.encode(), headers=schedule(delay_ms, topic, id_))

    def fail(self, topic: str = "bills", *, fails: bool = True) -> None:
        self.kafka.topics[topic].unavailable = fails

    def values(self, topic: str) -> list[str]:
        return values(self.kafka, topic)

    def lateness_ms(self, topic: str) -> list[int]:
        told = [dict(entry.headers) for entry in self.read(topic)]
        return [int(each["timer-released-ms"] or 0) - int(each["timer-deliver-ms"] or 0) for each in told]

    def metrics(self) -> str:
        exposition = Exposition(self.bridge.metrics, self.bridge.status, AlertLimits("1", 0, 1000))
        exposition.read_stores(self.bridge.bridge, self.now_ms, lambda: False)
        return exposition.text("")[0].decode()

    def unavailable(self) -> dict[str, int]:
        return dict(self.bridge.status.unavailable_targets)


@pytest.mark.thorough
def test_other_targets_are_on_time_while_one_fails_for_ten_minutes() -> None:
    world = World(usual_options())
    world.fail()
    for n in range(600):
        world.send("bills", f"b{n}", 1000 * n)
        world.send("orders", f"o{n}", 1000 * n)
    world.pass_time(ms=600_000)
    assert len(world.values("orders")) == 600
    assert sorted(world.lateness_ms("orders"))[-20:-12] == [0] * 8  # except those that left in the turn of a retry
    assert max(world.lateness_ms("orders")) <= 10
    world.fail(fails=False)
    world.pass_time(ms=2 * LONGEST_DELAY_MS)
    assert len(world.values("bills")) == len(set(world.values("bills"))) == 600


def test_log_status_and_metrics_name_an_unavailable_target(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World()
    world.fail()
    world.send("bills", "b", 10)
    began_ms = world.now_ms
    world.pass_time(ms=FIRST_DELAY_MS * 4)
    assert world.unavailable().keys() == {"bills"}
    assert "bills: it takes no records" in caplog.text
    assert "records again" not in caplog.text
    since_ms = world.unavailable()["bills"]
    assert began_ms + 10 <= since_ms <= began_ms + 30
    assert world.bridge.status.ready().reason == "", "a restart would not help"
    name = 'timer_bridge_target_unavailable_since_timestamp_seconds{target="bills"}'
    (shown,) = [line for line in world.metrics().splitlines() if line.startswith(name)]
    assert float(shown.removeprefix(name)) == since_ms / 1000
    assert 'timer_bridge_waiting_timers{reason="unavailable",target="bills"} 1.0' in world.metrics()
    world.fail(fails=False)
    world.pass_time(ms=LONGEST_DELAY_MS)
    assert world.unavailable() == {}
    assert name not in world.metrics()
    assert "bills: it takes records again" in caplog.text


@pytest.mark.parametrize(
    ("is_known", "targets", "expected_s"),
    [(False, 1, [5, 10, 20, 40, 60, 60]), (True, 1, [5] * 6), (True, MAX_BREAKERS, [5, 10, 20, 40, 60, 60])],
)
def test_retries_become_rarer_if_they_cost_others_much(targets: int, expected_s: list[int], *, is_known: bool) -> None:
    """A known target is not sent to, so it is tried often, but each try costs a copy of a timer."""
    breakers, now_ms, waited_s = CircuitBreakers(), 0, []
    names = [f"t{n}" for n in range(targets)]
    for _ in expected_s:
        breakers.trip(names, now_ms, is_known=is_known)
        waited_s.append((breakers.retry_ms("t0", now_ms) - now_ms) // 1000)
        now_ms = breakers.retry_ms("t0", now_ms)
    assert waited_s == expected_s


def test_timers_leave_on_time_again_soon_after_a_long_fault_of_their_target() -> None:
    world = World(usual_options())
    world.fail()
    for n in range(200):
        world.send("bills", f"b{n}", 1000 * n)
    world.pass_time(ms=99_000)
    world.fail(fails=False)
    world.pass_time(ms=101_000)
    assert len(world.values("bills")) == 200
    assert max(world.lateness_ms("bills")[-95:]) <= 10, "those that fall due from 6 s after the end of the fault on"


def test_a_timer_whose_copy_would_be_too_large_is_rejected_whole() -> None:
    world = World()
    world.fail()
    world.kafka.topics["timer.rejected"].max_bytes = 2 << 20
    large = "x" * ((1 << 20) - 180)
    world.send("bills", large, 10)
    world.pass_time(ms=1000)
    (rejected,) = world.read("timer.rejected")
    assert (dict(rejected.headers)["timer-error"], rejected.value) == (b"too-large", large.encode())


def test_a_target_that_refuses_records_fails_one_transaction_a_second_and_delays_no_other() -> None:
    world = World(usual_options())
    world.kafka.topics["bills"].max_bytes = 300
    for n in range(40):
        world.send("bills", "x" * 500 if n % 4 else f"b{n}", 100 * n)
        world.send("orders", f"o{n}", 100 * n)
    world.pass_time(ms=8000)
    assert world.values("orders") == [f"o{n}" for n in range(40)]
    assert max(world.lateness_ms("orders")) <= 30
    assert sorted(world.values("bills")) == sorted(f"b{n}" for n in range(0, 40, 4))
    rejected = [dict(entry.headers)["timer-error"] for entry in world.read("timer.rejected")]
    assert rejected == [b"too-large"] * 30
    assert not world.unavailable(), "it takes records"
    aborts = world.bridge.metrics.registry.get_sample_value(
        "timer_bridge_transaction_aborts_total", {"reason": "refused"}
    )
    assert 1 <= (aborts or 0) <= 6


def test_the_number_of_breakers_is_bounded() -> None:
    breakers = CircuitBreakers()
    assert len(breakers.trip((f"t{n}" for n in range(MAX_BREAKERS + 1)), 0)) == MAX_BREAKERS
    assert breakers.allowance(f"t{MAX_BREAKERS}", 0) is None


def test_a_breaker_that_no_timer_tries_is_forgotten() -> None:
    breakers = CircuitBreakers()
    breakers.trip(["t"], 0)
    assert breakers.unavailable(600_000) == {"t": 0}
    assert breakers.unavailable(700_000) == {}


def test_a_topic_that_fails_with_more_timers_gets_at_most_half_as_many_for_ten_minutes() -> None:
    breakers, now_ms = CircuitBreakers(), 0
    breakers.trip(["t"], now_ms)
    allowed = []
    for _ in range(8):
        now_ms += LONGEST_DELAY_MS
        allowed.append(breakers.allowance("t", now_ms))
        if allowed[-1] == 8:
            breakers.trip(["t"], now_ms)
        else:
            breakers.committed(["t"], now_ms)
    assert allowed == [1, 2, 4, 8, 1, 2, 4, 4]
    breakers.committed(["t"], now_ms + 600_000)
    assert breakers.allowance("t", now_ms + 600_000) is None
