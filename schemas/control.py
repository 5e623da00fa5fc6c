"""Records of the control topic: kafka_timer.control writes them, and the bridge reads them by this module."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from kafka_timer.control import Key, read_key


class Value(BaseModel):
    """The value of a record. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    v: Literal[1] = 1
    on: bool


def read(key: bytes | None, value: bytes | None) -> tuple[Key, bool | None]:
    """Return the key of a record, with True if it is on, or None if the key was deleted. Raises ValueError."""
    return read_key(key or b""), None if value is None else Value.model_validate_json(value).on
