"""Flights as timers: one each, in compressed time, with their airports' topics."""

from datetime import date

import pytest

from bridge.errors import SettingsError
from schemas import headers as names
from scripts.demo.flights import NOTICE_MS, TOPICS, booked

pytestmark = pytest.mark.thorough


def test_a_day_fits_into_its_seconds() -> None:
    flights = booked(date(2013, 7, 10), 1, seconds=30)
    due = [flight.due_after_ms for flight in flights]
    assert len(flights) == 1004
    assert (min(due), max(due)) == (0, 30_000)
    assert {flight.topic for flight in flights} == set(TOPICS)


def test_flights_are_sent_in_order_and_some_time_before_they_are_due() -> None:
    flights = booked(date(2013, 7, 10), 1, seconds=30)
    assert [f.send_after_ms for f in flights] == sorted(f.send_after_ms for f in flights)
    shortest, longest = NOTICE_MS
    assert all(shortest <= f.due_after_ms - f.send_after_ms <= longest for f in flights)


def test_a_flight_without_a_tail_number_has_no_key() -> None:
    flights = booked(date(2013, 7, 10), 1, seconds=30)
    unknown = [flight for flight in flights if flight.key is None]
    assert len(unknown) == 32
    assert all(b'"tailnum":null' in flight.value for flight in unknown)


def test_a_request_is_due_when_the_flight_is() -> None:
    flight = booked(date(2013, 1, 1), 1, seconds=1)[0]
    request = flight.request(1_000_000)
    assert request.headers == [
        (names.TOPIC, flight.topic.encode()),
        (names.DELIVER_MS, b"%d" % (1_000_000 + flight.due_after_ms)),
    ]


def test_the_hour_that_summer_time_skips_or_repeats_is_no_obstacle() -> None:
    assert booked(date(2013, 3, 9), 3, seconds=1)
    assert booked(date(2013, 11, 2), 3, seconds=1)


@pytest.mark.parametrize(("first", "days"), [(date(2012, 12, 31), 1), (date(2013, 12, 31), 2), (date(2013, 1, 1), 0)])
def test_other_days_are_refused(first: date, days: int) -> None:
    with pytest.raises(SettingsError, match="--days"):
        booked(first, days, seconds=30)
