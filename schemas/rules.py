"""The rules by which a bridge has read a range of requests."""

from pydantic import BaseModel, ConfigDict

from kafka_timer.levels import DEFAULT_MS


class Rules(BaseModel):
    """Settings that decide how a request is parsed. The journal keeps them by range, so old requests parse alike."""

    model_config = ConfigDict(frozen=True)

    max_delay_ms: int
    roll_window_ms: int
    levels_ms: tuple[int, ...] = DEFAULT_MS
    profiles: tuple[str, ...] = ("native",)
    own_topics: frozenset[str] = frozenset()
    """The bridge's own topics, which are never targets."""
    passed_on: frozenset[str] | None = None
    """Foreign headers that may begin with `timer-`. None: rules of an older version, by which any may, and a number in
    `timer-deliver-ms` is in milliseconds whatever its size."""
