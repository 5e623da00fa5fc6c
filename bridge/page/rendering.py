"""Render the pages: templates, texts of times and messages, and charts. Everything is escaped.

    Pending.topics (by hour or day), Listing.topics (by minute) -> timeline()        stacks of topics, by due time
    Overview.hour                                               -> hour_charts.html  in, out, pending, lateness

Templates draw them as SVG. Lengths are percent of the picture. Times are epoch ms, columns are in UTC.
"""

import base64
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bridge.observe.recent_traffic import MINUTE_MS
from bridge.partition.options import instant_text
from bridge.query.search import Content, NamedTimer, TimerDetail
from bridge.query.summary import Bucket
from kafka_timer.headers import EXPIRE_MS, KEY, PROFILE
from timer.index.due_counts import HOUR_MS

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_NOT_IN_THE_FORM = frozenset({KEY, EXPIRE_MS, PROFILE})
_ALTERED = {"\r", "\0"}
"""Browsers send every line end as \\r\\n, which views.py turns into \\n again, and drop \\0."""
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_MAX_DEPTH = 20
"""Deeper JSON stays as it was sent: the indentation of 64 KiB of brackets would take gigabytes."""
_DUMPED_BYTES = 16
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_DAY_MS = 24 * HOUR_MS
_TOPICS = 5
"""Topics with a colour of their own; page.css has one more, for the others."""
_TOP, _HEIGHT, _LEAST = 10.0, 78.0, 0.6


def templates(folder: Path, now_ms: Callable[[], int]) -> Environment:
    """Return the templates in `folder`, with the filters that they use."""

    def away(at_ms: int) -> str:
        """Return text such as `in 2 h 30 min` or `5 s ago`."""
        span_ms = at_ms - now_ms()
        return f"in {span_text(span_ms)}" if span_ms >= 0 else f"{span_text(-span_ms)} ago"

    found = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    found.tests |= {"editable": is_editable, "one_line": is_one_line}
    found.filters |= {
        "base64": lambda raw: base64.b64encode(raw).decode(),
        "instant": instant_text,
        "minute": lambda at_ms: instant_text(at_ms).replace(":00.000Z", "Z"),
        "away": away,
        "span": lambda span_ms: span_text(max(0, span_ms)),
        "plain": plain,
        "lines": lambda text: plain(text, kept="\n\t"),
        "content": content_text,
    }
    return found


def span_text(span_ms: int) -> str:
    """Return a time span in its two largest units."""
    if span_ms < _UNITS[-1][1]:
        return f"{span_ms} ms"
    parts: list[tuple[int, str]] = []
    for unit, unit_ms in _UNITS:
        count, span_ms = divmod(span_ms, unit_ms)
        if count or parts:
            parts.append((count, unit))
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


def timers_as_csv(timers: Iterable[NamedTimer]) -> str:
    """Return a line for each timer. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(("due", "id", "topic", "key", "value", "value_bytes", "recurs", "state", "origin", "rolls"))
    for each in timers:
        id_ = each.id if each.id_base64 is None else f"base64: {each.id_base64}"
        key, value = ("" if part is None else content_text(part) for part in (each.key, each.value))
        texts = (instant_text(each.due_ms), id_ or "", each.topic, key, value, each.value_bytes, each.recurs)
        state = f"{each.state}, paused" if each.is_paused else each.state
        row = (*texts, state, each.origin_text, each.rolls)
        lines.writerow([f"'{one}" if str(one).startswith(_FORMULA) else one for one in row])
    return text.getvalue()


def value_text(content: Content) -> tuple[str, str]:
    """Return how the value is shown, and its text: indented JSON, else text, else a hex dump."""
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
        json.loads(text, parse_constant=int)  # which refuses NaN: it is no JSON
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


def hex_dump(raw: bytes) -> str:
    """Return lines of offset, 16 bytes and their ASCII characters, as `hexdump -C` does."""
    lines = []
    for at in range(0, len(raw), _DUMPED_BYTES):
        part = raw[at : at + _DUMPED_BYTES]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):47}  |{ascii_}|")
    return "\n".join(lines)


class Span(NamedTuple):
    """A zoom level. bucket_ms: width of the counts that are searched for the times of the links Earlier and Later."""

    label: str
    step_ms: int
    columns: int
    bucket_ms: int
    columns_per_label: int
    label_part: slice
    """The part of an ISO 8601 instant that is a column's label."""

    @property
    def length_ms(self) -> int:
        return self.step_ms * self.columns


SPANS = {
    "hour": Span("next hour", MINUTE_MS, 60, HOUR_MS, 15, slice(11, 16)),
    "day": Span("by the hour", HOUR_MS, 24, HOUR_MS, 6, slice(11, 16)),
    "month": Span("by the day", _DAY_MS, 31, _DAY_MS, 7, slice(5, 10)),
}


class Part(NamedTuple):
    """Timers of one topic in a column. `number`: of the colour. `topic` None: the other topics together."""

    number: int
    topic: str | None
    timers: int
    top: float
    height: float


class Column(NamedTuple):
    from_ms: int
    to_ms: int
    left: float
    label: str
    timers: int
    parts: list[Part]


class Timeline(NamedTuple):
    """A chart. earlier_ms, later_ms: start of the nearest charts before and after it with timers; None: none exists."""

    from_ms: int
    to_ms: int
    most: int
    column_width: float
    columns: list[Column]
    legend: list[Part]
    earlier_ms: int | None
    later_ms: int | None


def timeline(
    topics: Mapping[str, list[Bucket]], total: Iterable[Bucket], pending: Iterable[Bucket], span: Span, from_ms: int
) -> Timeline:
    """Return the chart from `from_ms` on.

    topics, total: counts of steps, by topic and together. pending: all counts, by the span's buckets.
    """
    to_ms, width = from_ms + span.length_ms, 100 / span.columns

    def inside(buckets: Iterable[Bucket]) -> Counter[int]:
        return Counter({each.from_ms: each.timers for each in buckets if from_ms <= each.from_ms < to_ms})

    counts, all_ = {topic: inside(buckets) for topic, buckets in topics.items()}, inside(total)
    largest = sorted(counts, key=lambda topic: -counts[topic].total())[:_TOPICS]
    shown = {topic: counts[topic] for topic in sorted(largest) if counts[topic]}
    most = max(all_.values(), default=1)

    def stack(timers: list[int], all_timers: int) -> list[Part]:
        """Return the parts from below, by the number of timers of each topic."""
        parts, top = [], _TOP + _HEIGHT
        named = zip((*enumerate(shown), (_TOPICS, None)), (*timers, all_timers - sum(timers)), strict=True)
        for (number, topic), count in named:
            if count > 0:
                height = max(_LEAST, count * _HEIGHT / most)
                top -= height
                parts.append(Part(number, topic, count, round(top, 2), round(height, 2)))
        return parts

    def column(number: int) -> Column:
        at_ms = from_ms + number * span.step_ms
        label = "" if number % span.columns_per_label else instant_text(at_ms)[span.label_part]
        parts = stack([own[at_ms] for own in shown.values()], all_[at_ms])
        return Column(at_ms, at_ms + span.step_ms, round(number * width, 2), label, all_[at_ms], parts)

    columns = [column(number) for number in range(span.columns)]
    legend = stack([own.total() for own in shown.values()], all_.total())
    starts = [each.from_ms for each in pending]
    before = (start + span.bucket_ms - span.length_ms for start in starts if start < from_ms)
    after = (start for start in starts if start + span.bucket_ms > to_ms)
    around = max(before, default=None), min(after, default=None)
    return Timeline(from_ms, to_ms, most, round(width, 2), columns, legend, *around)
