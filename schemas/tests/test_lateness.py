"""Records of the lateness topic as other languages read them."""

from pathlib import Path

from schemas.lateness import MinuteLateness, published_schema


def test_the_published_schema_is_the_one_of_the_code() -> None:
    assert (Path(__file__).parents[2] / "docs" / "lateness.schema.json").read_text() == published_schema()


def test_a_minute_comes_back() -> None:
    lateness = {"p50_ms": 3, "p90_ms": 4, "p99_ms": 9, "max_ms": -1}
    told = MinuteLateness(
        topic="orders", minute_ms=60_000, deliveries=7, clock="CreateTime", audit="a", batch=3, row=0, **lateness
    )
    assert MinuteLateness.model_validate_json(told.to_bytes()) == told
    assert told.key == b"orders/60000"
