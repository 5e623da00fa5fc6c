"""Sizes with units, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.units import parse_size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [
        ("0", 0, "0B"),
        ("1001", 1001, "1001B"),
        ("7B", 7, "7B"),
        ("1GB", 10**9, "1GB"),
        ("1gib", 1 << 30, "1GiB"),
        ("64 MiB", 64 << 20, "64MiB"),
        ("1073741824", 1 << 30, "1GiB"),
        ("1500kB", 1_500_000, "1500kB"),
        ("2TiB", 2 << 40, "2TiB"),
    ],
)
def test_a_size_has_a_unit(text: str, size: int, shown: str) -> None:
    assert (parse_size_bytes(text), size_text(size)) == (size, shown)


@given(st.integers(0, 10**18 - 1))
def test_the_text_of_a_size_is_exact(size: int) -> None:
    assert parse_size_bytes(size_text(size)) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.5GB", "1 G B", "1GX", "1e9", "٣GB", "None", "True"])
def test_other_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size: write a number with its unit"):
        parse_size_bytes(text)
