"""A rate per second: how many go, and when, by a clock that the test moves."""

from itertools import combinations
from random import Random

import pytest

from bridge.partition.limits import TokenBucket


def test_a_second_at_once_then_lots_of_a_tenth() -> None:
    bucket = TokenBucket(100, 1000)
    assert bucket.allowance(1000, 500) == 100
    bucket.spend(100)
    assert [bucket.allowance(now_ms, 400) for now_ms in (1000, 1050, 1099, 1100)] == [0, 0, 0, 10]


@pytest.mark.parametrize(("per_s", "wanted", "wait_ms"), [(100, 1, 10), (1, 4, 1000)])
def test_fewer_than_a_lot_need_not_wait_for_one(per_s: int, wanted: int, wait_ms: int) -> None:
    bucket = TokenBucket(per_s, 1000)
    bucket.spend(bucket.allowance(1000, per_s))
    assert bucket.next_ms(1000, wanted) == 1000 + wait_ms
    assert [bucket.allowance(now_ms, wanted) for now_ms in (999 + wait_ms, 1000 + wait_ms)] == [0, 1]


def test_a_clock_that_jumps_gives_a_second_at_most_and_one_that_went_back_counts_on() -> None:
    bucket = TokenBucket(10, 1_000_000)
    bucket.allowance(1_000_000, 50)
    bucket.spend(10)
    assert bucket.allowance(9_000_000, 50) == 10
    bucket.spend(10)
    assert bucket.allowance(1000, 50) == 0
    assert bucket.next_ms(1000, 50) == 1100
    assert bucket.allowance(1100, 50) == 1


@pytest.mark.parametrize("per_s", [1, 3, 7, 10, 99, 1000])
def test_the_rate_holds_over_any_stretch_and_is_reached(per_s: int) -> None:
    rng = Random(per_s)
    bucket, now_ms, went_in = TokenBucket(per_s, 1000), 1000, [(1000, 0)]
    while now_ms < 61_000:
        allowed = bucket.allowance(now_ms, 1000)
        bucket.spend(allowed)
        went_in.append((now_ms, went_in[-1][1] + allowed))
        now_ms = rng.choice((now_ms + rng.randrange(1, 300), max(now_ms + 1, bucket.next_ms(now_ms, 1000))))
    for (begin_ms, before), (end_ms, behind) in combinations(went_in, 2):
        assert (behind - before) * 1000 <= per_s * (end_ms - begin_ms + 1000)
    assert went_in[-1][1] <= per_s * 61
    assert went_in[-1][1] >= per_s * 60 * 0.98


@pytest.mark.parametrize("per_s", [0.07, 0.5, 1.3, 6.25, 99.9])
def test_a_fractional_rate_holds_and_allows_at_least_one(per_s: float) -> None:
    bucket, now_ms, left = TokenBucket(per_s, 0), 0, 0
    while now_ms < 600_000:
        allowed = bucket.allowance(now_ms)
        assert allowed > 0
        bucket.spend(allowed)
        left += allowed
        assert left <= max(1, per_s) + per_s * now_ms / 1000 + 1e-6
        now_ms = bucket.next_ms(now_ms)
        assert bucket.allowance(now_ms - 1) == 0
    assert left >= per_s * 600 * 0.98
