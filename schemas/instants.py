"""Instants as text (kafka_timer.instants), and the stricter RFC 3339 of other schedulers."""

import re

from kafka_timer.instants import parse_iso8601_ms as parse_iso8601_ms

_RFC3339 = re.compile(r"[^T]{10}T[\d:]{8}(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_rfc3339_ms(text: str) -> int:
    """Parse an RFC 3339 instant from 1970 on. Raises ValueError."""
    if not _RFC3339.fullmatch(text):
        raise ValueError("not in RFC 3339 format")
    return parse_iso8601_ms(text)
