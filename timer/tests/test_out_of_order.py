"""Tests of OutOfOrderTimers: which rows are taken when."""

import numpy as np

from timer.format.unit import TIMER_ROW, Ints, Rows
from timer.schedule.queues import OutOfOrderTimers


def rows(*added: tuple[int, int, int]) -> Rows:
    """added: (unit, wake-up time, due time) of each."""
    run = np.zeros(len(added), TIMER_ROW)
    for at, (unit, visit_ms, due_ms) in enumerate(added):
        run[at] = (visit_ms, unit, unit, 10 * unit, 1, 0, 0, due_ms)
    return run


def units(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def test_removed_and_repointed() -> None:
    timers = OutOfOrderTimers()
    timers.push(rows((1, 0, 0)))
    timers.push(rows((2, 90, 900), (3, 90, 900)))
    timers.remove(units(2))
    timers.repoint(units(1, 3), units(77, 88))
    found = timers.rows()
    assert dict(zip(found["unit"].tolist(), found["body"].tolist(), strict=True)) == {1: 77, 3: 88}
    timers.remove(units(1, 3))
    assert len(timers.rows()) == 0


def test_rows_are_counted_and_found_in_every_state() -> None:
    timers = OutOfOrderTimers()
    timers.push(rows((1, 0, 0), (2, 90, 900), (4, 0, 0)))
    assert (len(timers), timers.has(units(1, 2, 3, 4)).tolist()) == (3, [True, True, False, True])
    timers.block_due([0], 10)
    assert timers.rows()["unit"].tolist() == [2, 1, 4]
    taken = timers.blocked(0).take(10, 1, 1 << 20)
    assert taken["unit"].tolist() == [1]
    timers.forget(taken)
    timers.remove(units(2, 3))
    assert sorted(timers.rows()["unit"].tolist()) == [unit for unit in range(6) if timers.has(units(unit))[0]] == [4]
