"""Headers of requests: times of any type, and what the bridge would refuse."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from kafka_timer import Repeat, SettingsError, TimerProducer, cancel_headers, headers_for
from kafka_timer.headers import Cancel, FixedLimits, Recurrence, Schedule, parse

NOON = datetime(2026, 12, 24, 12, tzinfo=timezone.utc)
NOON_MS = 1_798_113_600_000
LIMITS = FixedLimits()


@pytest.mark.parametrize(
    ("given", "due_ms"),
    [
        ({"at": NOON}, NOON_MS),
        ({"at": NOON.astimezone(timezone(timedelta(hours=5)))}, NOON_MS),
        ({"at": NOON + timedelta(microseconds=1)}, NOON_MS + 1),
        ({"at": "2026-12-24T12:00:00Z"}, NOON_MS),
        ({"at": NOON_MS}, NOON_MS),
        ({"delay": timedelta(seconds=5)}, 5000),
        ({"delay": timedelta(microseconds=1)}, 1),
        ({"delay": "2h30m"}, 9_000_000),
        ({"delay": "7ms"}, 7),
        ({"delay": "0"}, 0),
        ({"level": 3}, 10_000),
        ({"level": 0}, 0),
    ],
)
def test_a_time_of_any_type_is_never_rounded_down(given: dict[str, Any], due_ms: int) -> None:
    assert parse(headers_for("orders", **given), 0, LIMITS) == Schedule("orders", due_ms, -1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "one of at, delay and level"),
        ({"delay": "1ms", "level": 1}, "one of at, delay and level"),
        ({"at": datetime(2026, 12, 24)}, "no zone"),  # noqa: DTZ001
        ({"at": "tomorrow"}, "no instant"),
        ({"at": -1}, "bad-header"),
        ({"at": NOON_MS + 0.9}, "at: .* is no int: give whole milliseconds, rounded up"),
        *(({"delay": bare}, f"delay: '{bare}' is no duration") for bare in (5, 0.5, "5", -1)),
        ({"repeat": Repeat(every=5)}, "every: '5' is no duration"),  # type: ignore[arg-type]
        ({"at": 7, "expire_at": 8.5}, "expire_at: 8.5 is no int"),
        ({"delay": timedelta(seconds=-1)}, "bad-header"),
        ({"delay": "soon"}, "no duration"),
        ({"level": -1}, "bad-header"),
        ({"delay": "1ms", "id": ""}, "bad-header"),
        ({"delay": "1ms", "id": "x" * 1025}, "bad-header"),
        ({"delay": "1ms", "partition": -1}, "bad-header"),
        ({"delay": "1ms", "replace": True}, "missing-id"),
        ({"at": NOON_MS // 1000}, "bad-header: timer-deliver-ms is .* looks like seconds"),
        ({"at": NOON_MS, "expire_at": NOON_MS}, "bad-header: timer-expire-ms"),
        ({"at": 7, "expire_at": "later"}, "expire_at: .*no instant"),
        ({"delay": "1ms", "headers": [("timer-id", b"x")]}, "timer-id is the bridge's"),
        ({"delay": "1ms", "headers": [("tenant\0b", b"x")]}, "NUL"),
        *(({"topic": topic, "delay": "1ms"}, "bad-target") for topic in ("", "a b", "__consumer_offsets", "café")),
    ],
)
def test_a_request_that_the_bridge_would_refuse_raises_at_once(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        headers_for(**{"topic": "orders", **given})


def test_all_headers() -> None:
    foreign: list[tuple[str, bytes | str | None]] = [("trace", "1"), ("trace", b"1"), ("none", None)]
    more: dict[str, Any] = {"id": "ä", "replace": True, "partition": 3, "delivered_key": b"other"}
    found = headers_for("orders", at=NOON, expire_at="2026-12-24T12:00:00.009Z", **more, headers=iter(foreign))
    assert parse(found, 0, LIMITS) == Schedule("orders", NOON_MS, 3, "ä".encode(), True)
    assert found[-5:-3] == [("timer-key", b"other"), ("timer-expire-ms", b"%d" % (NOON_MS + 9))]
    assert found[-3:] == [("trace", b"1"), ("trace", b"1"), ("none", None)]
    assert headers_for("orders", at=NOON, headers={"trace": "1", "none": None})[-2:] == found[-2:]
    assert parse(cancel_headers("ä"), 0, LIMITS) == Cancel("ä".encode())
    with pytest.raises(ValueError, match="bad-header"):
        cancel_headers(b"")


def test_a_recurring_timer_needs_no_time() -> None:
    daily = Repeat(cron="0 9 * * MON-FRI", zone="Europe/Berlin", count=3)
    asked = parse(headers_for("orders", repeat=daily), 5, LIMITS)
    rule = Recurrence("0 9 * * MON-FRI", zone="Europe/Berlin", most=3, needs_first=True)
    assert asked == Schedule("orders", 5, -1, recurrence=rule)
    often = Repeat(every="90s", until=NOON, missed="none")
    asked = parse(headers_for("orders", at=NOON_MS - 7, repeat=often), 5, LIMITS)
    rule = Recurrence(every_ms=90_000, until_ms=NOON_MS, missed="none")
    assert asked == Schedule("orders", NOON_MS - 7, -1, recurrence=rule)
    for wrong in (Repeat(), Repeat(every="999ms"), Repeat(cron="* * *"), Repeat(every="1s", zone="UTC")):
        with pytest.raises(ValueError, match=r"bad-header|missing-time"):
            headers_for("orders", repeat=wrong)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"transactional.id": "mine"}, "headers_for"),
        ({"no.such.setting": "1"}, r"no\.such\.setting.*fix it in the config"),
    ],
)
def test_a_transactional_id_or_an_unknown_setting_raises(config: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        TimerProducer({"bootstrap.servers": "127.0.0.1:1", **config})
