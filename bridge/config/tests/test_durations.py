"""Instants as text."""

import pytest

from bridge.partition.options import instant_text, parse_instant_ms


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
