"""Audit log: each action with its caller and result, also if it failed. Logger `bridge.audit`, at any `log_level`.

    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel what={"id": "r-7"} came={"sent": ["timer.requests/3/81200"], ...}
    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel more={"ids": ["r-108", ...]}

One line for each action. A long list continues in further lines with the same `act`, 100 items a line. User text and
the address are JSON, so they cannot start a forged line. Keys and values are logged as sizes, headers as names.
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

_ITEMS_PER_LINE = 100
_SHOWN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("key", "key_prefix", "value"), lambda text: f"{len(text.encode())} bytes"),
    "header": lambda text: text.partition("=")[0],
    "headers": lambda pairs: [each["name"] for each in pairs],
}
"""Fields with message data: their text in the log."""


def log_action(caller: Caller, action: str, request: dict[str, Any], result: dict[str, Any]) -> None:
    request = _redacted(request)
    head = f"who={caller.name} where={json.dumps(caller.address)} act={secrets.token_hex(4)} did={action}"
    log.info("%s what=%s came=%s", head, _json(_truncated(request)), _json(_truncated(result)))
    for name, each in (request | result).items():
        if isinstance(each, list):
            for at in range(_ITEMS_PER_LINE, len(each), _ITEMS_PER_LINE):
                log.info("%s more=%s", head, _json({name: each[at : at + _ITEMS_PER_LINE]}))


@contextmanager
def logged_action(caller: Caller, action: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a dict for the results; log it at the end, with the error if one is raised."""
    result: dict[str, Any] = {}
    try:
        yield result
    except BaseException as error:
        failed = getattr(error, "detail", None) or str(error) or type(error).__name__
        log_action(caller, action, request, result | {"failed": failed})
        raise
    log_action(caller, action, request, result)


def _redacted(request: dict[str, Any]) -> dict[str, Any]:
    """Return `request` without the content of messages. It has no None."""
    known = {name: _redacted(each) if isinstance(each, dict) else each for name, each in request.items()}
    return {name: _SHOWN[name](each) if name in _SHOWN else each for name, each in known.items()}


def _json(request: dict[str, Any]) -> str:
    return json.dumps(request, default=str)


def _truncated(request: dict[str, Any]) -> dict[str, Any]:
    """Return it with only the first items of each list."""
    return {
        name: [*each[:_ITEMS_PER_LINE], f"and {len(each) - _ITEMS_PER_LINE} more"]
        if isinstance(each, list) and len(each) > _ITEMS_PER_LINE
        else each
        for name, each in request.items()
    }
