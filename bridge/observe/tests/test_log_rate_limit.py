"""A lasting fault is logged when it begins, and then each minute."""

import logging

import pytest

from bridge.observe.log_rate_limit import LogRateLimit


@pytest.fixture
def limit() -> LogRateLimit:
    return LogRateLimit(logging.getLogger("bridge"))


def test_a_fault_is_logged_when_it_begins_and_each_minute(
    limit: LogRateLimit, caplog: pytest.LogCaptureFixture
) -> None:
    for second in range(0, 121, 10):
        limit.warn(second * 1000, "broker", "no broker answers")
    limit.warn(30_000, "disk", "the disk is full")
    limit.clear("broker")
    limit.warn(121_000, "broker", "no broker answers")
    assert [record.getMessage() for record in caplog.records] == [
        "no broker answers",
        "no broker answers (7 times so far)",
        "no broker answers (13 times so far)",
        "the disk is full",
        "no broker answers",
    ]


def test_a_clock_that_is_set_back_suppresses_no_line(limit: LogRateLimit, caplog: pytest.LogCaptureFixture) -> None:
    for now_ms in (3 * 3_600_000, 1000, 2000, 61_000):
        limit.warn(now_ms, "disk", "the disk is full")
    assert len(caplog.records) == 3
