"""How sizes, timers and what senders wrote look on the page."""

import pytest

from bridge.http.html.rendering import bars, bytes_text, is_editable
from bridge.query.details import Content, TimerDetail
from bridge.query.summary import Bucket


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (3 << 50, "3072 TiB")],
)
def test_a_size_is_told_in_the_largest_unit(count: int, told: str) -> None:
    assert bytes_text(count) == told


def test_what_lies_behind_the_last_bar_is_told_in_one() -> None:
    told = bars([Bucket(from_ms=number, timers=2) for number in range(40)])
    assert (len(told), told[0]["width"]) == (32, 100)
    assert told[-1] == {"from_ms": None, "timers": 2 * 9, "width": 0}
    assert bars([]) == []


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
        ({"value_bytes": 1, "value": content("v")}, True),
        ({"value_bytes": 1, "value": content(None)}, False),
        ({"value_bytes": 1, "value": content("v\r")}, False),
        ({"value_bytes": 1}, False),
    ],
)
def test_a_form_takes_only_what_it_would_send_back_as_it_was(told: dict[str, object], verdict: object) -> None:
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
