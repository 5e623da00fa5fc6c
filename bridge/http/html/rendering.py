"""Templates, and how times, sizes and what senders wrote look in them. Everything is escaped."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bridge.config.durations import instant_text
from bridge.query.details import Content, TimerDetail
from bridge.query.summary import Bucket
from schemas.headers import EXPIRE_MS, KEY, PROFILE

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_BARS = 31
_NOT_IN_THE_FORM = frozenset({KEY, EXPIRE_MS, PROFILE})
_ALTERED = {"\r", "\0"}
"""A browser makes every end of a line \\r\\n, of which site.py makes \\n again, and has no use for \\0."""


class Rendering:
    """`folder`: of the templates."""

    def __init__(self, folder: Path, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._templates = Environment(
            loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.tests |= {"editable": is_editable, "one_line": is_one_line}
        self._templates.filters |= {
            "base64": lambda raw: base64.b64encode(raw).decode(),
            "instant": instant_text,
            "away": self._away,
            "plain": plain,
            "lines": lambda text: plain(text, kept="\n\t"),
            "bytes_text": bytes_text,
            "content": content_text,
            "bars": bars,
        }

    def page(self, template: str, **told: Any) -> str:
        return self._templates.get_template(template).render(**told)

    def _away(self, at_ms: int) -> str:
        """in 2 h 30 min; 5 s ago"""
        span_ms = at_ms - self._now_ms()
        return f"in {span_text(span_ms)}" if span_ms >= 0 else f"{span_text(-span_ms)} ago"


def span_text(span_ms: int) -> str:
    """The two largest units."""
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
    """What a sender wrote, in which nothing turns the line around or hides: such characters are spelled out."""
    return "".join(one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text)


def is_editable(timer: TimerDetail) -> bool:
    """Whether a form sends value and key as they are, where nobody writes into it.

    Not what is not shown, or in part; no bytes; no key of several lines, nor an empty one, as that is sent for none.
    Nor where a header says that it leaves with another key, or until when: the form has neither.
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
    """A browser sends it as it was given."""
    return not ({"\n"} | _ALTERED) & set(text)


def bytes_text(count: int) -> str:
    """1.5 MiB"""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"


def content_text(content: Content | None, kept: str = "") -> str:
    if content is None:
        return "null"
    if content.text is not None:
        return plain(content.text, kept)
    return f"base64: {content.base64}"


def bars(buckets: list[Bucket]) -> list[dict[str, Any]]:
    """The first of them with the width of their bar, percent; the rest in one."""
    shown, rest = buckets[:_BARS], buckets[_BARS:]
    most = max((each.timers for each in shown), default=1)
    told: list[dict[str, Any]] = [
        {"from_ms": each.from_ms, "timers": each.timers, "width": max(1, each.timers * 100 // most)} for each in shown
    ]
    if rest:
        told.append({"from_ms": None, "timers": sum(each.timers for each in rest), "width": 0})
    return told
