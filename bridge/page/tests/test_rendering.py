"""Format times and message text for the page."""

import pytest

from bridge.page.rendering import is_editable, plain, span_text
from bridge.query.details import Content, Header, TimerDetail


def test_a_time_span_is_shown_in_its_two_largest_units() -> None:
    told = [span_text(ms) for ms in (0, 999, 61_000, 7_260_000, 90_000_000)]
    assert told == ["0 ms", "999 ms", "1 min 1 s", "2 h 1 min", "1 d 1 h"]


def test_characters_that_hide_or_reverse_text_are_spelled_out() -> None:
    assert plain("a\u202eb\x1b[0m\n", kept="\n") == "a\\u202eb\\x1b[0m\n"


def content(text: str | None, *, is_cut: bool = False) -> Content:
    return Content(bytes=1, text=text, base64=None if text else "AA==", is_cut=is_cut)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ({}, True),
        ({"requested_ms": None}, False),
        ({"key": content("k")}, True),
        ({"key": content("two\nlines")}, False),
        ({"key": content("")}, False),
        ({"key": content("k", is_cut=True)}, False),
        ({"key": content(None)}, False),
        ({"headers": [Header(name="timer-key", value=content("account"))]}, False),
        ({"headers": [Header(name="timer-expire-ms", value=content("4102444800000"))]}, False),
        ({"value_bytes": 1, "value": content("v")}, True),
        ({"value_bytes": 1, "value": content(None)}, False),
        ({"value_bytes": 1, "value": content("v\r")}, False),
        ({"value_bytes": 1, "value": content("v\0")}, False),
        ({"value_bytes": 1, "value": content("v", is_cut=True)}, False),
        ({"value_bytes": 1}, False),
    ],
)
def test_a_timer_is_editable_only_if_a_form_returns_it_unchanged(told: dict[str, object], verdict: object) -> None:
    given = {
        "shard": "t/0",
        "origin": 1,
        "offset": 2,
        "partition": None,
        "topic": "orders",
        "due_ms": 5,
        "state": "pending",
        "rolls": 0,
    }
    timer = TimerDetail.model_validate(given | {"requested_ms": 1} | told)
    assert is_editable(timer) is verdict
