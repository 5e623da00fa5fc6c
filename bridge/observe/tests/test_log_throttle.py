"""Trouble that lasts: said at the first time, then each minute."""

import logging

import pytest

from bridge.observe.log_throttle import LogThrottle


def test_it_is_said_when_it_begins_then_each_minute_and_anew_when_it_was_over(caplog: pytest.LogCaptureFixture) -> None:
    complaints = LogThrottle(logging.getLogger("bridge"))
    for second in range(0, 121, 10):
        complaints.say(second * 1000, "broker", "no broker answers")
    complaints.say(30_000, "disk", "the disk is full")
    assert [record.getMessage() for record in caplog.records] == [
        "no broker answers",
        "no broker answers (7 times so far)",
        "no broker answers (13 times so far)",
        "the disk is full",
    ]
    complaints.over("broker")
    complaints.say(121_000, "broker", "no broker answers")
    assert caplog.records[-1].getMessage() == "no broker answers"


def test_a_clock_that_is_set_back_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    complaints = LogThrottle(logging.getLogger("bridge"))
    hour_ms = 3_600_000
    for now_ms in (3 * hour_ms, 1000, 2000, 61_000):
        complaints.say(now_ms, "disk", "the disk is full")
    assert len(caplog.records) == 3
