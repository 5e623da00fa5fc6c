"""How long tests wait for what has to come: for ever, almost, as the machine may be busy with more than us.

It costs time only where something does not come.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 200.0


def until(look: Callable[[], T], what: str = "it") -> T:
    """The first answer that is something."""
    end_s = time.monotonic() + PATIENCE_S
    while not (answer := look()):
        assert time.monotonic() < end_s, f"{what} did not come to be"
        time.sleep(0.1)
    return answer


def becomes(look: Callable[[], object], wanted: object) -> None:
    """For what takes a glance alone, and does without an answer that comes later."""
    end_s = time.monotonic() + PATIENCE_S
    while (told := look()) != wanted:
        assert time.monotonic() < end_s, told
