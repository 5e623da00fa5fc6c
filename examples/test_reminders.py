"""How to test a program that sends timers: the real bridge on a fake Kafka, no broker, no waiting.

pytest examples/test_reminders.py
"""

from typing import Any

from bridge.testing import TimerWorld

DAY_MS = 24 * 60 * 60 * 1000


def book(producer: Any, customer: str, starts_ms: int) -> None:
    """The program: a reminder a day before, which a later booking of the same customer replaces."""
    headers = {"timer-topic": "reminders", "timer-deliver-ms": str(starts_ms - DAY_MS), "timer-id": customer}
    producer.produce("timer.requests", key=customer, value=f"your trip starts at {starts_ms}", headers=headers)
    producer.flush()


def call_off(producer: Any, customer: str) -> None:
    producer.produce("timer.requests", key=customer, headers={"timer-action": "cancel", "timer-id": customer})
    producer.flush()


def reminded(world: TimerWorld) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in world.read("reminders")]


def test_a_reminder_comes_a_day_before_and_not_earlier() -> None:
    world = TimerWorld("reminders")
    starts_ms = world.now_ms + 10 * DAY_MS
    book(world.producer, "ada", starts_ms)
    world.pass_time(ms=9 * DAY_MS - 1)
    assert reminded(world) == []
    world.restart(lose_disk=True)
    world.pass_time(ms=1)
    assert reminded(world) == [(b"ada", f"your trip starts at {starts_ms}".encode())]


def test_a_trip_that_is_booked_anew_is_told_once_and_one_called_off_never() -> None:
    world = TimerWorld("reminders")
    book(world.producer, "ada", world.now_ms + 3 * DAY_MS)
    book(world.producer, "bob", world.now_ms + 3 * DAY_MS)
    world.pass_time(ms=DAY_MS)
    book(world.producer, "ada", world.now_ms + 5 * DAY_MS)
    call_off(world.producer, "bob")
    world.pass_time(ms=10 * DAY_MS)
    assert [key for key, _ in reminded(world)] == [b"ada"]
