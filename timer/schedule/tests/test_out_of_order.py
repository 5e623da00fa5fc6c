"""Held timers, by themselves: who is taken when."""

import numpy as np

from timer.format.unit import TIMER_ROW, Ints, Rows
from timer.schedule.out_of_order import OutOfOrderTimers

REST_MS = 80


def rows(*timers: tuple[int, int, int]) -> Rows:
    """Of (unit, visit, due)."""
    run = np.zeros(len(timers), TIMER_ROW)
    for at, (unit, visit_ms, due_ms) in enumerate(timers):
        run[at] = (visit_ms, unit, unit, 10 * unit, 1, 0, 0, due_ms)
    return run


def taken(held: OutOfOrderTimers, now_ms: int, limit: int = 99) -> list[int]:
    return [int(unit) for unit in held.take(now_ms, limit, 1 << 20)["unit"]]


def units(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_who_rests_is_taken_by_nobody_until_then() -> None:
    held = OutOfOrderTimers()
    held.push(rows((1, 5, 5)))
    held.cool_down(rows((2, 4, 900), (3, 3, 900)), 10, 10 + REST_MS)
    assert held.next_visit_ms() == 5
    assert taken(held, 10) == [1]
    assert held.next_visit_ms() == 10 + REST_MS
    assert taken(held, 9 + REST_MS) == []
    assert taken(held, 10 + REST_MS, limit=1) == [3]
    assert taken(held, 10 + REST_MS) == [2]
    assert held.next_visit_ms() is None


def test_what_is_due_before_leaves_at_its_time() -> None:
    held = OutOfOrderTimers()
    held.cool_down(rows((1, 0, 50), (2, 0, 40), (3, 0, 900)), 10, 10 + REST_MS)
    assert held.next_visit_ms() == 40
    assert [taken(held, now_ms) for now_ms in (39, 40, 49, 50)] == [[], [2], [], [1]]
    assert held.rows()["unit"].tolist() == [3]


def test_a_step_back_of_the_clock_ends_a_rest_and_who_is_not_to_be_visited_then_waits() -> None:
    held = OutOfOrderTimers()
    held.cool_down(rows((1, 2, 900), (2, 7, 900)), 10, 10 + REST_MS)
    assert taken(held, 5) == [1]
    assert held.next_visit_ms() == 7
    assert taken(held, 7) == [2]


def test_who_begins_to_rest_soon_after_rests_with_the_one_before() -> None:
    held = OutOfOrderTimers()
    held.cool_down(rows((1, 0, 900)), 10, 10 + REST_MS)
    held.cool_down(rows((2, 0, 900)), 20, 20 + REST_MS)
    held.cool_down(rows((3, 0, 900)), 21, 21 + REST_MS)
    assert taken(held, 10 + REST_MS) == [1, 2]
    assert taken(held, 21 + REST_MS) == [3]


def test_removed_and_repointed() -> None:
    held = OutOfOrderTimers()
    held.push(rows((1, 0, 0)))
    held.cool_down(rows((2, 0, 900), (3, 0, 900)), 10, 10 + REST_MS)
    held.remove(units(2))
    held.repoint(units(1, 3), units(77, 88))
    found = held.rows()
    assert dict(zip(found["unit"].tolist(), found["body"].tolist(), strict=True)) == {1: 77, 3: 88}
    held.remove(units(1, 3))
    assert len(held.rows()) == 0
    assert held.next_visit_ms() is None


def test_all_are_counted_and_known_wherever_they_wait() -> None:
    held = OutOfOrderTimers()
    held.push(rows((1, 0, 0), (4, 0, 0)))
    held.cool_down(rows((2, 0, 900)), 10, 10 + REST_MS)
    held.block(7, rows((3, 0, 0)))
    assert (len(held), held.has(units(1, 2, 3, 4, 5)).tolist()) == (4, [True, True, True, True, False])
    held.block_due([0], 10)
    assert (len(held), held.blocked()) == (4, [7, 0])
    assert held.take_blocked(0, 1, 10, 1 << 20)["unit"].tolist() == [1]
    held.remove(units(2, 3))
    assert sorted(held.rows()["unit"].tolist()) == [unit for unit in range(6) if held.has(units(unit))[0]] == [4]
