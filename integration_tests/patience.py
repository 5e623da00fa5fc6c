"""How long tests wait for what has to come: for ever, almost, as the machine may be busy with more than us.

It costs time only where something does not come.
"""

import time
from collections.abc import Callable

PATIENCE_S = 200.0


def becomes(look: Callable[[], object], wanted: object) -> None:
    """For what takes a glance alone, and does without an answer that comes later."""
    end_s = time.monotonic() + PATIENCE_S
    while (told := look()) != wanted:
        assert time.monotonic() < end_s, told
