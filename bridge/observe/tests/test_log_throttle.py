"""A lasting fault is logged when it begins, and then each minute."""

import logging

import pytest

from bridge.observe.log_throttle import LogThrottle


@pytest.fixture
def throttle() -> LogThrottle:
    return LogThrottle(logging.getLogger("bridge"))


def test_a_fault_is_logged_when_it_begins_and_each_minute(
    throttle: LogThrottle, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, 121, 10):
        throttle.warn(second * 1000, "broker", "no broker answers")
    throttle.warn(30_000, "disk", "the disk is full")
    throttle.clear("broker")
    throttle.warn(121_000, "broker", "no broker answers")
    assert [record.getMessage() for record in caplog.records] == [
        "no broker answers",
        "no broker answers (7 times so far)",
        "no broker answers (13 times so far)",
        "the disk is full",
        "no broker answers",
    ]


def test_a_clock_that_is_set_back_suppresses_no_line(throttle: LogThrottle, caplog: pytest.LogCaptureFixture) -> None:
    for now_ms in (3 * 3_600_000, 1000, 2000, 61_000):
        throttle.warn(now_ms, "disk", "the disk is full")
    assert len(caplog.records) == 3
