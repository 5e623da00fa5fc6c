"""A value is shown as indented JSON, else as text, else as a hex dump."""

import json
import time

import pytest

from bridge.page.rendering import hex_dump, indented_json, value_text
from bridge.query.details import MAX_SHOWN_BYTES, content


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


def test_the_largest_value_takes_little_time_and_space() -> None:
    head, tail = "[" * 19, "]" * 19
    start_s = time.process_time()
    text = indented_json(head + "[]," * ((MAX_SHOWN_BYTES - 40) // 3) + "1" + tail)
    assert text is not None
    assert len(text) < 2 << 20
    assert time.process_time() - start_s < 2


def test_bytes_that_are_not_text_are_dumped_in_hex() -> None:
    kind, text = shown(bytes(range(0xF8, 0x100)) + b"0123456789<b>")
    assert kind == "hex, as it is not UTF-8"
    assert text.splitlines() == [
        "00000000  f8 f9 fa fb fc fd fe ff 30 31 32 33 34 35 36 37  |........01234567|",
        "00000010  38 39 3c 62 3e                                   |89<b>|",
    ]
    assert hex_dump(b"") == ""
