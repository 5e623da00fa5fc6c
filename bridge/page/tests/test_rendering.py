"""The page's texts and charts."""

import json
import re
from pathlib import Path

import pytest

from bridge.page import rendering
from bridge.page.api.responses import Lateness
from bridge.page.rendering import (
    SPANS,
    Timeline,
    hex_dump,
    indented_json,
    is_editable,
    plain,
    span_text,
    templates,
    timeline,
    value_text,
)
from bridge.partition.options import instant_text
from bridge.query.search import MAX_SHOWN_BYTES, Content, Header, TimerDetail, content
from bridge.query.summary import Bucket, merge_buckets
from timer.index.due_counts import HOUR_MS

# -- texts of times, messages and values


def test_a_time_span_is_shown_in_its_two_largest_units() -> None:
    told = [span_text(ms) for ms in (0, 999, 61_000, 7_260_000, 90_000_000)]
    assert told == ["0 ms", "999 ms", "1 min 1 s", "2 h 1 min", "1 d 1 h"]


def test_characters_that_hide_or_reverse_text_are_spelled_out() -> None:
    assert plain("a\u202eb\x1b[0m\n", kept="\n") == "a\\u202eb\\x1b[0m\n"


def piece(text: str | None, *, is_cut: bool = False) -> Content:
    return Content(bytes=1, text=text, base64=None if text else "AA==", is_cut=is_cut)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({}, True),
        ({"requested_ms": None}, False),
        ({"key": piece("k")}, True),
        ({"key": piece("two\nlines")}, False),
        ({"key": piece("")}, False),
        ({"key": piece("k", is_cut=True)}, False),
        ({"key": piece(None)}, False),
        ({"headers": [Header(name="timer-key", value=piece("account"))]}, False),
        ({"headers": [Header(name="timer-expire-ms", value=piece("4102444800000"))]}, False),
        ({"value_bytes": 1, "value": piece("v")}, True),
        ({"value_bytes": 1, "value": piece(None)}, False),
        ({"value_bytes": 1, "value": piece("v\r")}, False),
        ({"value_bytes": 1, "value": piece("v\0")}, False),
        ({"value_bytes": 1, "value": piece("v", is_cut=True)}, False),
        ({"value_bytes": 1}, False),
    ],
)
def test_a_timer_is_editable_only_if_a_form_returns_it_unchanged(told: dict[str, object], verdict: object) -> None:
    place = {"shard": "t/0", "origin": 1, "offset": 2, "partition": None}
    timer = TimerDetail(state="pending", topic="orders", due_ms=5, rolls=0, requested_ms=1, **place)
    assert is_editable(timer.model_copy(update=told)) is verdict


def shown(raw: bytes) -> tuple[str, str]:
    told = content(raw)
    assert told is not None
    return value_text(told)


def test_json_is_indented_without_a_change_of_any_token() -> None:
    text = '{"a":[1,{"b":2.50}] , "a":"\\u00e9,{\\"}", "e":{ },"f":[],"big":12345678901234567890123, "n":null}'
    assert shown(text.encode()) == (
        "JSON, indented",
        """{
  "a": [
    1,
    {
      "b": 2.50
    }
  ],
  "a": "\\u00e9,{\\"}",
  "e": {},
  "f": [],
  "big": 12345678901234567890123,
  "n": null
}""",
    )


@pytest.mark.parametrize("value", [{}, [], {"a": [[], {}, [1, {"b": [True]}], "x: [y]"]}, [{"ä\n": "\\"}, -1.5e-9]])
def test_the_indented_text_is_that_of_the_json_module(value: object) -> None:
    for given in (json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=7)):
        assert indented_json(given) == json.dumps(value, indent=2)


@pytest.mark.parametrize("text", ["", "v7", "12", '"a"', "{", '{"a": 1,}', "[1] [2]", "[NaN]", "{a: 1}", "[" * 40_000])
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text.encode()) == ("text", text)


def test_a_value_that_is_cut_or_deep_is_not_indented() -> None:
    cut = b"[" + b"1," * MAX_SHOWN_BYTES + b"1]"
    assert shown(cut)[0] == "text"
    for depth, kind in ((20, "JSON, indented"), (21, "text")):
        assert shown(b"[" * depth + b"]" * depth)[0] == kind


def test_bytes_that_are_not_text_are_dumped_in_hex() -> None:
    kind, text = shown(bytes(range(0xF8, 0x100)) + b"0123456789<b>")
    assert kind == "hex, as it is not UTF-8"
    assert text.splitlines() == [
        "00000000  f8 f9 fa fb fc fd fe ff 30 31 32 33 34 35 36 37  |........01234567|",
        "00000010  38 39 3c 62 3e                                   |89<b>|",
    ]
    assert hex_dump(b"") == ""


# -- charts

DAY_MS = 24 * HOUR_MS
BASE_MS = 20_000 * DAY_MS


def hours(**topics: dict[int, int]) -> dict[str, list[Bucket]]:
    """Return counts by topic and hour after BASE_MS."""
    return {
        name: [Bucket(from_ms=BASE_MS + hour * HOUR_MS, timers=count) for hour, count in counts.items()]
        for name, counts in topics.items()
    }


def drawn(topics: dict[str, list[Bucket]], from_ms: int = BASE_MS) -> Timeline:
    total = merge_buckets(bucket for own in topics.values() for bucket in own)
    return timeline(topics, total, total, SPANS["day"], from_ms)


def test_each_hour_is_a_stack_of_its_topics() -> None:
    chart = drawn(hours(b={0: 30, 7: 1}, a={7: 99}))
    assert (len(chart.columns), chart.most, chart.to_ms) == (24, 100, BASE_MS + DAY_MS)
    assert [(each.timers, len(each.parts)) for each in chart.columns if each.timers] == [(30, 1), (100, 2)]
    below, above = chart.columns[7].parts
    assert (below.topic, below.number, below.timers, below.top + below.height) == ("a", 0, 99, 88)
    assert (above.topic, above.number) == ("b", 1)
    assert above.top + above.height == pytest.approx(below.top)
    assert above.top == pytest.approx(10)
    assert [each.label for each in chart.columns if each.label] == ["00:00", "06:00", "12:00", "18:00"]


def test_the_largest_topics_have_a_colour_and_the_others_share_one() -> None:
    chart = drawn(hours(**{f"t{number}": {0: number + 1} for number in range(8)}))
    assert [(each.topic, each.number, each.timers) for each in chart.legend] == [
        *((f"t{number}", number - 3, number + 1) for number in range(3, 8)),
        (None, 5, 1 + 2 + 3),
    ]


def test_timers_of_a_topic_without_a_name_are_counted_among_the_others() -> None:
    known = hours(a={0: 2})
    total = [Bucket(from_ms=BASE_MS, timers=5)]
    chart = timeline(known, total, total, SPANS["day"], BASE_MS)
    assert [(each.topic, each.timers) for each in chart.columns[0].parts] == [("a", 2), (None, 3)]


def test_earlier_and_later_lead_to_the_next_timers_outside() -> None:
    counts = hours(a={-90: 1, -30: 1, 0: 1, 24: 1, 300: 1})
    chart = drawn(counts)
    assert chart.earlier_ms is not None
    assert drawn(counts, chart.earlier_ms).columns[-1].timers == 1
    assert chart.later_ms == BASE_MS + 24 * HOUR_MS
    alone = drawn(hours(a={0: 1}))
    assert (alone.earlier_ms, alone.later_ms) == (None, None)
    empty = drawn({})
    assert (empty.legend, empty.earlier_ms, empty.later_ms) == ([], None, None)


def test_an_hour_that_begins_amid_another_leads_to_the_rest_of_it() -> None:
    total = hours(a={0: 1, 1: 1})["a"]
    chart = timeline({}, [], total, SPANS["hour"], BASE_MS + 600_000)
    assert (chart.earlier_ms, chart.later_ms) == (BASE_MS, BASE_MS + HOUR_MS)


NOW_MS = 1_000_000_000_000


def minute(from_ms: int, pending: int | None, p50_ms: int | None, p99_ms: int | None) -> Lateness:
    return Lateness(from_ms=from_ms, timers=2, p50_ms=p50_ms, p99_ms=p99_ms, taken_in=3, pending=pending)


def charts(minutes: list[Lateness], at_ms: int) -> list[str]:
    """Return the SVG of each chart of the hour: in, out, pending, lateness."""
    macros = templates(Path(rendering.__file__).parent / "templates", lambda: at_ms).get_template("hour_charts.html")
    text: str = macros.module.hour_charts(minutes, at_ms)  # type: ignore[attr-defined]
    return text.split("<figure")[1:]


def bars(chart: str) -> list[tuple[str, float, float, float]]:
    """Return class, left, top and height of each bar."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="([\d.]+)%" width="1.67%" height="([\d.]+)%"', chart)
    return [(name, float(left), float(top), float(height)) for name, left, top, height in found]


def test_the_newest_minute_is_the_last_column_and_the_latest_reaches_the_top() -> None:
    now_ms = NOW_MS - NOW_MS % 60_000
    minutes = [minute(now_ms - 1_800_000, None, 10, 40), minute(now_ms, 7, 80, 80)]
    into, _, pending, late = charts(minutes, now_ms + 59_999)
    assert ('<text x="0" y="9%">80 ms<' in late, late.count('y1="12.0%"'), late.count('y1="84.0%"')) == (True, 1, 1)
    assert late.index("</svg> p50") < late.index("</svg> p99")
    assert f'<text x="0.0%" y="98%" data-at="{instant_text(now_ms - 59 * 60_000)}"' in late
    assert [each for each in bars(late) if each[0] != "hit"] == [
        ("p99", 48.33, 48.0, 36.0),
        ("p50", 48.33, 75.0, 9.0),
        ("p99", 98.33, 12.0, 72.0),
        ("p50", 98.33, 12.0, 72.0),
    ]
    titles = ["requests 3", "requests 3", "p99 40 ms, p50 10 ms", "p99 80 ms, p50 80 ms"]
    assert re.findall(r": ([^<]*)</title>", into + late) == titles
    assert [left for name, left, *_ in bars(pending) if name == "pending"] == [98.33], "what is not known has no bar"


def test_timers_that_are_not_late_have_no_bar_and_no_division_by_zero() -> None:
    *_, late = charts([minute(NOW_MS, None, 0, 0)], NOW_MS)
    assert [height for name, *_, height in bars(late) if name != "hit"] == [0, 0]
    assert [chart.count("<g>") for chart in charts([], NOW_MS)] == [0, 0, 0, 0]
