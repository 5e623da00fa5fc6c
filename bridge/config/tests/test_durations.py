"""Durations and instants as text."""

import pytest

from bridge.config.durations import instant_text, parse_duration_ms, parse_instant_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1500", 1500),
        ("500ms", 500),
        ("5s", 5000),
        ("90m", 5_400_000),
        ("2h30m", 9_000_000),
        ("1d12h", 129_600_000),
        ("1m1ms", 60_001),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5 s", "-5s", "+5s", "1.5h", "5S", "5sec", "2h30", "٥s", "1w", "5s\n"])
def test_an_invalid_duration_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="write 500ms, 5s, 2h30m, 2d, or plain milliseconds"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1798135200000", 1_798_135_200_000),
        ("2026-12-24T18:00:00Z", 1_798_135_200_000),
        ("2026-12-24 18:00Z", 1_798_135_200_000),
        ("2026-12-24T19:00:00+01:00", 1_798_135_200_000),
        ("2026-12-24T18:00:00.25Z", 1_798_135_200_250),
        ("2026-12-24T18:00:00.0001Z", 1_798_135_200_001),  # rounded up, so never early
        ("2026-12-24T18:00:00.000499Z", 1_798_135_200_001),
    ],
)
def test_instants(text: str, ms: int) -> None:
    assert parse_instant_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "2026-12-24", "2026-12-24T18:00:00", "-1", "2026-13-01T00:00:00Z"])
def test_an_invalid_instant_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 2026-12-24T18:00:00Z \(with a zone\), or epoch milliseconds"):
        parse_instant_ms(text)


def test_the_text_of_an_instant_can_be_parsed() -> None:
    assert instant_text(1_798_135_200_250) == "2026-12-24T18:00:00.250Z"
    assert parse_instant_ms(instant_text(1_798_135_200_250)) == 1_798_135_200_250
    assert instant_text(2**62) == f"{2**62} ms"
