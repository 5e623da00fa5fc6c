"""Durations as people read them."""


def span_text(span_ms: float) -> str:
    """Return 250 ms, 1.5 s, 10 min, 3 h, 12 d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(span_ms) >= size:
            return f"{span_ms / size:.3g} {unit}"
    return f"{span_ms:.3g} ms"
