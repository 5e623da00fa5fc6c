"""Render templates; format times and message text. Everything is escaped."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bridge.partition.options import instant_text
from bridge.query.details import Content, TimerDetail
from kafka_timer.headers import EXPIRE_MS, KEY, PROFILE

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_NOT_IN_THE_FORM = frozenset({KEY, EXPIRE_MS, PROFILE})
_ALTERED = {"\r", "\0"}
"""Browsers send every line end as \\r\\n, which views.py turns into \\n again, and drop \\0."""


class Rendering:
    """`folder`: that of the templates."""

    def __init__(self, folder: Path, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._templates = Environment(
            loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.tests |= {"editable": is_editable, "one_line": is_one_line}
        self._templates.filters |= {
            "base64": lambda raw: base64.b64encode(raw).decode(),
            "instant": instant_text,
            "minute": lambda at_ms: instant_text(at_ms).replace(":00.000Z", "Z"),
            "second": lambda at_ms: instant_text(at_ms)[11:19],
            "away": self._away,
            "plain": plain,
            "lines": lambda text: plain(text, kept="\n\t"),
            "content": content_text,
        }

    def page(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

    def _away(self, at_ms: int) -> str:
        """Return text such as `in 2 h 30 min` or `5 s ago`."""
        span_ms = at_ms - self._now_ms()
        return f"in {span_text(span_ms)}" if span_ms >= 0 else f"{span_text(-span_ms)} ago"


def span_text(span_ms: int) -> str:
    """Return a time span in its two largest units."""
    parts: list[tuple[int, str]] = []
    left_ms = span_ms
    for unit, unit_ms in _UNITS:
        count, left_ms = divmod(left_ms, unit_ms)
        if count or parts:
            parts.append((count, unit))
    if not parts:
        return f"{span_ms} ms"
    return " ".join(f"{count} {unit}" for count, unit in parts[:2] if count)


def plain(text: str, kept: str = "") -> str:
    """Spell out characters in a sender's text that hide or reverse text."""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def is_editable(timer: TimerDetail) -> bool:
    """True if an unchanged form sends value and key back as they are.

    False if they are not text or not shown in full, if the key is empty (sent as null) or has several lines, and if a
    header sets another key or an expiry, because the form has no field for them.
    """
    key, value = timer.key, timer.value
    if timer.requested_ms is None or any(header.name in _NOT_IN_THE_FORM for header in timer.headers):
        return False
    if key is not None and (key.is_cut or not key.text or not is_one_line(key.text)):
        return False
    if timer.value_bytes is None:
        return True
    return value is not None and not value.is_cut and value.text is not None and not _ALTERED & set(value.text)


def is_one_line(text: str) -> bool:
    """True if a browser sends the text of an input field back unchanged."""
    return not ({"\n"} | _ALTERED) & set(text)


def content_text(content: Content | None) -> str:
    if content is None:
        return "null"
    if content.text is not None:
        return plain(content.text)
    return f"hex: {base64.b64decode(content.base64 or '').hex(' ')}"
