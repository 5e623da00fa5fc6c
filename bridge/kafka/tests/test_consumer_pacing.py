"""The pace of turns: none waits behind a pause, none comes too soon behind another."""

import time

import pytest

from bridge.kafka.consumer import PollPacer


class Timekeeper:
    """Time passes when somebody sleeps or the test says so; eighths of a second, so that sums are exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self.pass_time)

    def pass_time(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def test_the_first_and_who_comes_after_a_pause_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, pace = Timekeeper(monkeypatch), PollPacer(0.25)
    pace.wait()
    assert keeper.now_s == 1000.0
    keeper.pass_time(0.25)
    pace.wait()
    assert keeper.now_s == 1000.25


def test_who_comes_too_soon_waits_for_the_rest_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, pace = Timekeeper(monkeypatch), PollPacer(0.25)
    pace.wait()
    keeper.pass_time(0.125)
    pace.wait()
    assert keeper.now_s == 1000.25
    pace.wait()
    assert keeper.now_s == 1000.5
