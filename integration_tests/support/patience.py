"""Waits for conditions. The limit is long, as the machine may be busy; only a failing test reaches it."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 200.0


def until(look: Callable[[], T], what: str = "it") -> T:
    """Return the first answer that is true. Fail after PATIENCE_S."""
    end_s = time.monotonic() + PATIENCE_S
    while not (answer := look()):
        assert time.monotonic() < end_s, f"{what} did not come to be"
        time.sleep(0.1)
    return answer


def becomes(look: Callable[[], object], wanted: object) -> None:
    """Wait until `look` returns `wanted`. For checks that do not wait for a late answer themselves."""
    end_s = time.monotonic() + PATIENCE_S
    while (told := look()) != wanted:
        assert time.monotonic() < end_s, told
