"""Sizes as text: 1GiB (2^30 bytes), 500MB (5*10^8), or a plain number of bytes. Durations as people read them."""

import re

_UNITS = {"TiB": 2**40, "TB": 10**12, "GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6, "KiB": 1024, "kB": 1000}
_BY_NAME = {name.lower(): size for name, size in _UNITS.items()} | {"b": 1, "": 1}


def parse_size_bytes(text: str) -> int:
    """Return a size in bytes. Raises ValueError with the right form."""
    found = re.fullmatch(r"(\d{1,18}) ?([A-Za-z]*)", text, re.ASCII)
    if found is None or found[2].lower() not in _BY_NAME:
        raise ValueError(
            f'{text!r} is no size: write a number with its unit, such as "500MB" or "1GiB", or plain bytes'
        )
    return int(found[1]) * _BY_NAME[found[2].lower()]


def size_text(size_bytes: int) -> str:
    """Return the text of a size, exactly: 1GiB, 1500MB, 1001B."""
    unit = next((unit for unit, size in _UNITS.items() if size_bytes and not size_bytes % size), "B")
    return f"{size_bytes // _UNITS.get(unit, 1)}{unit}"


def span_text(span_ms: float) -> str:
    """Return 250 ms, 1.5 s, 10 min, 3 h, 12 d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(span_ms) >= size:
            return f"{span_ms / size:.3g} {unit}"
    return f"{span_ms:.3g} ms"
