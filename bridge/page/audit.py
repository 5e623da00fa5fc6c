"""Who did what, one line of the log for each action, well or not; logger `bridge.audit`.

    who=ada where=10.1.2.3 did=cancel what={"id": "reminder-7"} came={"sent": ["timer.requests/3/81200"], ...}

What people wrote stands in JSON, so that nobody can begin a line of their own.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bridge.page.access import Caller

log = logging.getLogger("bridge.audit")

_MOST_TOLD = 100


def note(caller: Caller, did: str, what: Any, came: Any) -> None:
    """Long lists are cut; their length is told."""
    log.info("who=%s where=%s did=%s what=%s came=%s", caller.name, caller.where, did, _told(what), _told(came))


@contextmanager
def noted(caller: Caller, did: str, what: Any) -> Iterator[dict[str, Any]]:
    """What came of it is put into the dict; or it is what was raised."""
    came: dict[str, Any] = {}
    try:
        yield came
    except BaseException as wrong:
        note(caller, did, what, {"failed": getattr(wrong, "detail", None) or str(wrong) or type(wrong).__name__})
        raise
    note(caller, did, what, came)


def _told(what: Any) -> str:
    return json.dumps(_cut(what), default=str)


def _cut(what: Any) -> Any:
    if isinstance(what, dict):
        return {name: _cut(each) for name, each in what.items()}
    if isinstance(what, list) and len(what) > _MOST_TOLD:
        return [*what[:_MOST_TOLD], f"and {len(what) - _MOST_TOLD} more"]
    return what
