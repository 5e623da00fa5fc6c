"""Who did what, in the log, well or not; logger `bridge.audit`, whatever `log_level` says.

    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel what={"id": "r-7"} came={"sent": ["timer.requests/3/81200"], ...}
    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel more={"ids": ["r-108", ...]}

One line for each action. A list goes on in further lines of its `act`, a hundred a line. What people wrote, and an
address, stand in JSON, so that nobody can begin a line of their own.
Keys and values are logged as sizes, headers as names.
"""

import json
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bridge.http.auth.sessions import Caller

log = logging.getLogger("bridge.audit")
log.setLevel(logging.INFO)

_A_LINE = 100
"""Of a list."""
_SHOWN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("key", "key_prefix", "value"), lambda text: f"{len(text.encode())} bytes"),
    "header": lambda text: text.partition("=")[0],
    "headers": lambda pairs: [each["name"] for each in pairs],
}
"""How fields with message data are logged."""


def note(caller: Caller, did: str, what: dict[str, Any], came: dict[str, Any]) -> None:
    what = _redacted(what)
    head = f"who={caller.name} where={json.dumps(caller.where)} act={secrets.token_hex(4)} did={did}"
    log.info("%s what=%s came=%s", head, _told(_begun(what)), _told(_begun(came)))
    for name, each in (what | came).items():
        if isinstance(each, list):
            for at in range(_A_LINE, len(each), _A_LINE):
                log.info("%s more=%s", head, _told({name: each[at : at + _A_LINE]}))


@contextmanager
def noted(caller: Caller, did: str, what: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What came of it is put into the dict, as it comes; what is raised is told beside that."""
    came: dict[str, Any] = {}
    try:
        yield came
    except BaseException as wrong:
        failed = getattr(wrong, "detail", None) or str(wrong) or type(wrong).__name__
        note(caller, did, what, came | {"failed": failed})
        raise
    note(caller, did, what, came)


def _redacted(what: dict[str, Any]) -> dict[str, Any]:
    """Return `what`, where nothing is None, without the content of messages."""
    known = {name: _redacted(each) if isinstance(each, dict) else each for name, each in what.items()}
    return {name: _SHOWN[name](each) if name in _SHOWN else each for name, each in known.items()}


def _told(what: dict[str, Any]) -> str:
    return json.dumps(what, default=str)


def _begun(what: dict[str, Any]) -> dict[str, Any]:
    """With the beginning of each list."""
    return {
        name: [*each[:_A_LINE], f"and {len(each) - _A_LINE} more"]
        if isinstance(each, list) and len(each) > _A_LINE
        else each
        for name, each in what.items()
    }
