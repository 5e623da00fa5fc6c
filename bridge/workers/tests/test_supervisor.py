"""Which workers are started, when, and how all end. Time and processes are given."""

import signal
from itertools import pairwise

import pytest

from bridge.workers.supervisor import Supervisor


class Process:
    def __init__(self) -> None:
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class World:
    def __init__(self, workers: int = 2) -> None:
        self.now_s = 0.0
        self.has_no_memory = False
        self.started: list[tuple[float, int]] = []
        self.processes: dict[int, Process] = {}
        self.supervisor = Supervisor(workers, self._start, lambda: self.now_s)
        self.supervisor.turn()

    def _start(self, number: int) -> Process:
        if self.has_no_memory:
            raise OSError("no memory")
        self.started.append((self.now_s, number))
        self.processes[number] = Process()
        return self.processes[number]

    def turn_until(self, end_s: float) -> None:
        while self.now_s < end_s:
            self.now_s += 0.5
            self.supervisor.turn()

    def restarts(self) -> list[tuple[float, int]]:
        return self.started[2:]


@pytest.fixture
def world() -> World:
    made = World()
    made.supervisor.was_ready = True
    return made


@pytest.mark.parametrize(("code", "was_ready"), [(-9, True), (0, True), (1, True), (2, True), (-9, False)])
def test_a_worker_that_dies_is_started_again_at_once_and_alone(world: World, code: int, *, was_ready: bool) -> None:
    other, world.supervisor.was_ready = world.processes[2], was_ready
    world.processes[1].code = code
    world.turn_until(5)
    assert world.restarts() == [(0.5, 1)]
    assert (world.processes[2], other.signals) == (other, [])


def test_the_waits_grow_to_30_s_and_begin_again_after_a_minute_of_life(world: World) -> None:
    while len(world.restarts()) < 8:
        world.processes[1].code = -9
        world.turn_until(world.now_s + 0.5)
    times_s = [at_s for at_s, _ in world.restarts()]
    assert [later - at for at, later in pairwise(times_s)] == [1.5, 2.5, 4.5, 8.5, 16.5, 30.5, 30.5]
    world.turn_until(world.now_s + 60)
    world.processes[1].code = -9
    world.turn_until(world.now_s + 0.5)
    assert world.restarts()[-1] == (world.now_s, 1)


@pytest.mark.parametrize("code", [1, 2])
def test_an_error_before_all_were_ready_ends_all_with_its_code(code: int) -> None:
    world = World()
    world.processes[2].code = code
    world.turn_until(1)
    assert world.processes[1].signals == [signal.SIGTERM]
    world.processes[1].code = 0
    assert not world.supervisor.turn()
    assert (world.supervisor.exit_code, world.restarts()) == (code, [])


@pytest.mark.parametrize(("codes", "whole"), [((0, 0), 0), ((0, -signal.SIGTERM), 0), ((0, 1), 1), ((-9, 0), 1)])
def test_a_stop_drains_all_and_starts_none(world: World, codes: tuple[int, int], whole: int) -> None:
    world.supervisor.stop_requested = True
    assert world.supervisor.turn()
    assert [each.signals for each in world.processes.values()] == [[signal.SIGTERM]] * 2
    world.processes[1].code = codes[0]
    world.turn_until(40)
    assert world.supervisor.turn(), "the second is not at its end"
    world.processes[2].code = codes[1]
    assert not world.supervisor.turn()
    assert (world.supervisor.exit_code, world.restarts()) == (whole, [])


def test_a_stop_waits_for_no_worker_that_is_to_be_started_later(world: World) -> None:
    for _ in range(2):
        world.processes[1].code = -9
        world.turn_until(world.now_s + 0.5)
    world.processes[2].code = 0
    world.supervisor.stop_requested = True
    assert not world.supervisor.turn()


def test_a_start_that_fails_is_tried_again(world: World) -> None:
    world.has_no_memory = True
    world.processes[1].code = -9
    world.turn_until(3)
    world.has_no_memory = False
    world.turn_until(10)
    assert world.restarts() == [(3.5, 1)]
