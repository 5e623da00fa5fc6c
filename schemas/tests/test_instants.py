"""Instants, one row each. Text that is not an instant never becomes a time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_timer.instants import parse_instant_ms, parse_iso8601_ms
from schemas.profiles import parse_rfc3339_ms

SIX_MS = 1_798_135_200_000  # 2026-12-24T18:00:00Z


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-12-24T18:00:00Z", SIX_MS),
        ("2026-12-24T19:30:00+01:30", SIX_MS),
        ("2026-12-24T11:00:00-07:00", SIX_MS),
        ("2026-12-24T18:00:00.001Z", SIX_MS + 1),
        ("2026-12-24T18:00:00.0000001Z", SIX_MS + 1),
        ("2026-12-24T17:59:59.999000001Z", SIX_MS),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_an_instant_is_rounded_up_to_the_millisecond(text: str, at_ms: int) -> None:
    assert parse_rfc3339_ms(text) == parse_iso8601_ms(text) == parse_instant_ms(text) == at_ms
    assert at_ms == 0 or parse_instant_ms(str(at_ms)) == at_ms


@pytest.mark.parametrize(
    ("text", "unit"),
    [("0", "sec"), (str(SIX_MS // 1000), "sec"), (f"{SIX_MS}000", "micro"), (f"{SIX_MS}000000", "nano")],
)
def test_a_number_in_another_unit_is_refused_with_the_unit(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=f"{text} looks like {unit}"):
        parse_instant_ms(text)


@pytest.mark.parametrize("text", ["2026-12-24 18:00:00+00:00", "2026-12-24T18:00+0000", "2026-12-24T18:00:00,0Z"])
def test_iso_8601_knows_more_forms_than_rfc_3339(text: str) -> None:
    assert parse_iso8601_ms(text) == SIX_MS
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339_ms(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "1798135200", "2026-12-24", "2026-12-24T18:00:00", "2026-13-24T18:00:00Z", "2026-02-30T18:00:00Z"),
        *("2026-12-24T24:00:00Z", "2026-12-24T18:00:60Z", "2026-12-24T18:00:00+24:00", "2026-12-24T18:00:00z"),
        *(" 2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z\n", "1969-12-31T23:59:59Z", "٢026-12-24T18:00:00Z"),
        "0001-01-01T00:00:00Z",  # Go's zero time
    ],
)
def test_text_that_is_no_instant_raises(text: str) -> None:
    for parse in (parse_rfc3339_ms, parse_iso8601_ms):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)
    if not text.isdigit():
        with pytest.raises(ValueError, match=r"write 2026-12-24T18:00:00Z \(with a zone\), or epoch milliseconds"):
            parse_instant_ms(text)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001
    st.integers(-1439, 1439),
)
def test_it_agrees_with_the_standard_library(at: datetime, zone_minutes: int) -> None:
    there = at.replace(tzinfo=UTC) - timedelta(minutes=zone_minutes)
    sign, (hours, minutes) = "-" if zone_minutes < 0 else "+", divmod(abs(zone_minutes), 60)
    found = parse_iso8601_ms(f"{at.isoformat()}{sign}{hours:02}:{minutes:02}")
    exact_us = (there - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert found == -(-exact_us // 1000)
