"""Requests per second: how many go in, and when, by a clock that the test moves."""

from itertools import combinations
from random import Random

import pytest

from bridge.throttle import Throttle


def test_a_second_at_once_then_lots_of_a_tenth() -> None:
    throttle = Throttle(100)
    assert throttle.allowance(500, 1000) == 100
    throttle.spend(100)
    assert [throttle.allowance(400, now_ms) for now_ms in (1000, 1050, 1099, 1100)] == [0, 0, 0, 10]


def test_fewer_than_a_lot_need_not_wait_for_one() -> None:
    throttle = Throttle(100)
    throttle.spend(100)
    assert throttle.next_ms(1, 1000) == 1010
    assert [throttle.allowance(1, now_ms) for now_ms in (1009, 1010)] == [0, 1]


def test_one_a_second() -> None:
    throttle = Throttle(1)
    assert throttle.allowance(5, 1000) == 1
    throttle.spend(1)
    assert throttle.next_ms(4, 1000) == 2000
    assert [throttle.allowance(4, now_ms) for now_ms in (1999, 2000)] == [0, 1]


def test_a_clock_that_jumps_gives_a_second_at_most_and_one_that_went_back_counts_on() -> None:
    throttle = Throttle(10)
    throttle.allowance(50, 1_000_000)
    throttle.spend(10)
    assert throttle.allowance(50, 9_000_000) == 10
    throttle.spend(10)
    assert throttle.allowance(50, 1000) == 0
    assert throttle.next_ms(50, 1000) == 1100
    assert throttle.allowance(50, 1100) == 1


@pytest.mark.parametrize("per_s", [1, 3, 7, 10, 99, 1000])
def test_the_rate_holds_over_any_stretch_and_is_reached(per_s: int) -> None:
    rng = Random(per_s)
    throttle, now_ms, went_in = Throttle(per_s), 1000, [(1000, 0)]
    while now_ms < 61_000:
        allowed = throttle.allowance(1000, now_ms)
        throttle.spend(allowed)
        went_in.append((now_ms, went_in[-1][1] + allowed))
        now_ms = rng.choice((now_ms + rng.randrange(1, 300), max(now_ms + 1, throttle.next_ms(1000, now_ms))))
    for (begin_ms, before), (end_ms, behind) in combinations(went_in, 2):
        assert (behind - before) * 1000 <= per_s * (end_ms - begin_ms + 1000)
    assert went_in[-1][1] <= per_s * 61
    assert went_in[-1][1] >= per_s * 60 * 0.98
