"""Text of a message's value: indented JSON, else text, else a hex dump."""

import base64
import json
import re

from bridge.query.details import Content

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_MAX_DEPTH = 20
"""Deeper JSON stays as it was sent: the indentation of 64 KiB of brackets would take gigabytes."""
_DUMPED_BYTES = 16


def value_text(content: Content) -> tuple[str, str]:
    """Return how the value is shown, and its text."""
    if content.text is None:
        return "hex, as it is not UTF-8", hex_dump(base64.b64decode(content.base64 or ""))
    indented = None if content.is_cut else indented_json(content.text)
    return ("text", content.text) if indented is None else ("JSON, indented", indented)


def indented_json(text: str) -> str | None:
    """Return an object or array with one member in each line; None for other text.

    Only whitespace changes: numbers keep their digits, strings their escapes, and duplicate names stay.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth, previous = 0, ""
    for mark in _JSON_TOKEN.findall(text):
        is_begin, is_end = mark in ("{", "["), mark in ("}", "]")
        depth -= is_end
        if (previous in ("{", "[")) != is_end or previous == ",":
            parts.append("\n" + "  " * depth)
        parts.append(": " if mark == ":" else mark)
        depth += is_begin
        if depth > _MAX_DEPTH:
            return None
        previous = mark
    return "".join(parts)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def hex_dump(raw: bytes) -> str:
    """Return lines of offset, 16 bytes and their ASCII characters, as `hexdump -C` does."""
    lines = []
    for at in range(0, len(raw), _DUMPED_BYTES):
        part = raw[at : at + _DUMPED_BYTES]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):47}  |{ascii_}|")
    return "\n".join(lines)
