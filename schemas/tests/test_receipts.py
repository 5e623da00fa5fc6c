"""Receipts are a contract with other languages: their schema lies in docs/, and every receipt fits it."""

import json
from pathlib import Path

import pytest

from schemas.receipts import Receipt, is_sent, printable

KINDS = ("accepted", "delivered", "cancelled", "replaced", "not-found", "too-late", "rejected")


def test_the_published_schema_is_the_one_of_the_code() -> None:
    published = (Path(__file__).parents[2] / "docs" / "receipt.schema.json").read_text()
    assert published == json.dumps(Receipt.model_json_schema(), indent=2) + "\n"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_in_the_schema_and_comes_back(kind: str) -> None:
    assert kind in Receipt.model_json_schema()["properties"]["kind"]["enum"]
    receipt = Receipt.model_validate({"kind": kind, "at_ms": 5, "request": "t/0/1"})
    assert Receipt.model_validate_json(receipt.to_bytes()) == receipt


def test_modes_choose_kinds() -> None:
    assert [kind for kind in KINDS if is_sent(kind, "outcomes")] == [*KINDS[2:]]
    assert all(is_sent(kind, "all") and not is_sent(kind, "none") for kind in KINDS)


def test_a_binary_id_is_shown_as_text() -> None:
    assert printable(b"caf\xe9") == "caf\\xe9"
