"""Tests of OutOfOrderTimers: which rows are taken when."""

import numpy as np

from timer.format.unit import TIMER_ROW, Ints, Rows
from timer.schedule.out_of_order import OutOfOrderTimers

COOLDOWN_MS = 80


def rows(*added: tuple[int, int, int]) -> Rows:
    """added: (unit, wake-up time, due time) of each."""
    run = np.zeros(len(added), TIMER_ROW)
    for at, (unit, visit_ms, due_ms) in enumerate(added):
        run[at] = (visit_ms, unit, unit, 10 * unit, 1, 0, 0, due_ms)
    return run


def taken(timers: OutOfOrderTimers, now_ms: int, limit: int = 99) -> list[int]:
    return [int(unit) for unit in timers.take(now_ms, limit, 1 << 20)["unit"]]


def units(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_a_timer_in_cooldown_is_not_taken_before_its_end() -> None:
    timers = OutOfOrderTimers()
    timers.push(rows((1, 5, 5)))
    timers.cool_down(rows((2, 4, 900), (3, 3, 900)), 10, 10 + COOLDOWN_MS)
    assert timers.next_visit_ms() == 5
    assert taken(timers, 10) == [1]
    assert timers.next_visit_ms() == 10 + COOLDOWN_MS
    assert taken(timers, 9 + COOLDOWN_MS) == []
    assert taken(timers, 10 + COOLDOWN_MS, limit=1) == [3]
    assert taken(timers, 10 + COOLDOWN_MS) == [2]
    assert timers.next_visit_ms() is None


def test_a_timer_due_during_its_cooldown_leaves_in_time() -> None:
    timers = OutOfOrderTimers()
    timers.cool_down(rows((1, 0, 50), (2, 0, 40), (3, 0, 900)), 10, 10 + COOLDOWN_MS)
    assert timers.next_visit_ms() == 40
    assert [taken(timers, now_ms) for now_ms in (39, 40, 49, 50)] == [[], [2], [], [1]]
    assert timers.rows()["unit"].tolist() == [3]


def test_a_clock_that_steps_back_ends_a_cooldown_but_no_wait() -> None:
    timers = OutOfOrderTimers()
    timers.cool_down(rows((1, 2, 900), (2, 7, 900)), 10, 10 + COOLDOWN_MS)
    assert taken(timers, 5) == [1]
    assert timers.next_visit_ms() == 7
    assert taken(timers, 7) == [2]


def test_cooldowns_that_begin_close_together_form_one_group() -> None:
    timers = OutOfOrderTimers()
    timers.cool_down(rows((1, 0, 900)), 10, 10 + COOLDOWN_MS)
    timers.cool_down(rows((2, 0, 900)), 20, 20 + COOLDOWN_MS)
    timers.cool_down(rows((3, 0, 900)), 21, 21 + COOLDOWN_MS)
    assert taken(timers, 10 + COOLDOWN_MS) == [1, 2]
    assert taken(timers, 21 + COOLDOWN_MS) == [3]


def test_removed_and_repointed() -> None:
    timers = OutOfOrderTimers()
    timers.push(rows((1, 0, 0)))
    timers.cool_down(rows((2, 0, 900), (3, 0, 900)), 10, 10 + COOLDOWN_MS)
    timers.remove(units(2))
    timers.repoint(units(1, 3), units(77, 88))
    found = timers.rows()
    assert dict(zip(found["unit"].tolist(), found["body"].tolist(), strict=True)) == {1: 77, 3: 88}
    timers.remove(units(1, 3))
    assert len(timers.rows()) == 0
    assert timers.next_visit_ms() is None


def test_rows_are_counted_and_found_in_every_state() -> None:
    timers = OutOfOrderTimers()
    timers.push(rows((1, 0, 0), (4, 0, 0)))
    timers.cool_down(rows((2, 0, 900)), 10, 10 + COOLDOWN_MS)
    timers.block(7, rows((3, 0, 0)))
    assert (len(timers), timers.has(units(1, 2, 3, 4, 5)).tolist()) == (4, [True, True, True, True, False])
    timers.block_due([0], 10)
    assert (len(timers), timers.blocked()) == (4, [7, 0])
    assert timers.take_blocked(0, 1, 10, 1 << 20)["unit"].tolist() == [1]
    timers.remove(units(2, 3))
    assert sorted(timers.rows()["unit"].tolist()) == [unit for unit in range(6) if timers.has(units(unit))[0]] == [4]
