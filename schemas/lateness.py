"""Lateness of a real topic's deliveries in one minute, on `timer.lateness`, as the streaming audit finds it.

    key orders/1700000040000    {"v": 1, "topic": "orders", "minute_ms": 1700000040000, "deliveries": 812, ...}

A record is sent when its minute is over; later deliveries get a record of their own, so each counts in one record.
`audit`, `batch` and `row` identify a record. For other languages: `published_schema()`.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class MinuteLateness(BaseModel):
    """The value of one record, as JSON. Lateness is in ms; negative: early."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    topic: str = Field(description="The real topic.")
    minute_ms: int = Field(description="Start of the minute, epoch ms, by `clock`.")
    deliveries: int = Field(description="First deliveries with a timestamp in this minute.")
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int
    clock: str = Field(description="LogAppendTime (the broker's), CreateTime (the bridge's), or both with a comma.")
    audit: str = Field(description="Which streaming audit says so: one for each --out.")
    batch: int = Field(description="Its batch.")
    row: int = Field(description="Which record of the batch this is, from 0.")

    @property
    def key(self) -> bytes:
        return f"{self.topic}/{self.minute_ms}".encode()

    def to_bytes(self) -> bytes:
        return self.model_dump_json().encode()


def published_schema() -> str:
    """Return the JSON Schema of a record's value: docs/lateness.schema.json."""
    schema: dict[str, Any] = MinuteLateness.model_json_schema()
    return json.dumps(schema, indent=2) + "\n"
