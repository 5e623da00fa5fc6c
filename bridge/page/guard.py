"""Guard every path: the Host header, the caller, the size of a body, errors, and the log of actions.

Audit log: each action with its caller and result, also if it failed. Logger `bridge.audit`, at any `log_level`.

    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel what={"id": "r-7"} came={"sent": ["timer.requests/3/81200"], ...}
    who=ada where="10.1.2.3" act=5f2c9e01 did=cancel more={"ids": ["r-108", ...]}

One line for each action. A long list continues in further lines with the same `act`, 100 items a line. User text and
the address are JSON, so they cannot start a forged line. Keys and values are logged as sizes, headers as names.

Errors: BridgeError is status 503, ValueError 400; the body of the API's errors is {"reason": ...}.
"""

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bridge.config.http_address import TWO_LENGTHS, is_known_host, known_names
from bridge.config.settings import Settings
from bridge.errors import BridgeError
from bridge.page.api.requests import error_text
from bridge.page.peers import PeerNetworks
from bridge.page.sessions import ANONYMOUS, Authenticator, Caller

log = logging.getLogger("bridge.audit")
log.setLevel(logging.INFO)

MAX_BODY_BYTES = 2 << 20
_ITEMS_PER_LINE = 100
_USER = re.compile(r"[A-Za-z0-9._+@-]{1,100}")
_SHOWN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("key", "key_prefix", "value"), lambda text: f"{len(text.encode())} bytes"),
    "header": lambda text: text.partition("=")[0],
    "headers": lambda pairs: [each["name"] for each in pairs],
}
"""Fields with message data: their text in the log."""


def http_error(error: Exception) -> HTTPException:
    if isinstance(error, HTTPException):
        return error
    return HTTPException(503 if isinstance(error, BridgeError) else 400, error_text(error))


async def error_response(_: Request, error: Exception) -> Response:
    found = http_error(error)
    return JSONResponse({"reason": found.detail}, found.status_code, found.headers)


async def body_of(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the body. Raises HTTPException as soon as it is larger than `max_bytes`.

    Starlette's own limit answers in plain text, and the error body of the API is JSON.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(
                413, f"more than {max_bytes} bytes: send less; a larger message goes to the timer topic itself"
            )
    return bytes(body)


@dataclass
class KnownHosts:
    """ASGI middleware: refuse requests whose Host header does not name this bridge (`is_known_host` says why).

    A request whose length is given twice is refused too: a proxy may take its end for another request.
    names: patterns (* and ?) beside localhost. any_address: True if every IP address is known.
    """

    app: ASGIApp
    names: Sequence[str] = ()
    any_address: bool = field(default=True, kw_only=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "content-length" in headers and "transfer-encoding" in headers:
            await JSONResponse({"reason": TWO_LENGTHS}, 400, {"connection": "close"})(scope, receive, send)
            return
        host = headers.get("host")
        if is_known_host(host, self.names, any_address=self.any_address):
            await self.app(scope, receive, send)
            return
        known = "its IP address, localhost or a name in http_hosts" if self.any_address else "127.0.0.1 or localhost"
        reason = f"Host {host!r}: not a known name of this bridge; ask it by {known}"
        await JSONResponse({"reason": reason}, 403)(scope, receive, send)


def known_hosts(settings: Settings) -> Middleware:
    return Middleware(KnownHosts, known_names(settings), any_address=settings.has_tokens or not settings.page)


def log_action(caller: Caller, action: str, request: dict[str, Any], result: dict[str, Any]) -> None:
    head = f"who={caller.name} where={json.dumps(caller.address)} act={secrets.token_hex(4)} did={action}"
    parts, more = (_redacted(request), dict(result)), list[str]()
    for part in parts:
        for name, each in part.items():
            if isinstance(each, list) and len(each) > _ITEMS_PER_LINE:
                first, *others = (each[at : at + _ITEMS_PER_LINE] for at in range(0, len(each), _ITEMS_PER_LINE))
                part[name] = [*first, f"and {len(each) - _ITEMS_PER_LINE} more"]
                more += (json.dumps({name: items}, default=str) for items in others)
    log.info("%s what=%s came=%s", head, *(json.dumps(part, default=str) for part in parts))
    for text in more:
        log.info("%s more=%s", head, text)


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


def caller_of(request: Request, access: Authenticator) -> Caller:
    """Authenticate by the header Authorization. Raises HTTPException."""
    if (found := caller_without_token(request, access)) is not None:  # a form of another site must not be taken
        if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(400, "send JSON, as Content-Type: application/json")
        return found
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    caller = None
    if kind.lower() == "bearer":
        caller = caller_by_token(request, access, given)
    elif kind == "Pass" and request.method == "GET":
        caller = access.verify_peer_token(given, f"{request.url.path}?{request.url.query}", address_of(request))
    if caller is None:
        log_refusal(request, access, "refused: no known token")
        raise HTTPException(401, "give a token of this bridge, as Authorization: Bearer <token>")
    return caller


def caller_without_token(request: Request, access: Authenticator) -> Caller | None:
    """Return the user whom the trusted proxy names, or anybody if access is open; None if a token is needed.

    Raises HTTPException 403 if another address names a user, or if the name is given twice.
    """
    address = address_of(request)
    if access.is_open:
        return ANONYMOUS._replace(address=address)
    if access.proxy is None or not (users := request.headers.getlist(access.proxy.header)):
        return None
    if not address or not PeerNetworks(access.proxy.networks).allows(address):
        log_refusal(request, access, f"refused: {access.proxy.header} is not from page_proxy")
        raise HTTPException(403, f"{access.proxy.header} from {address}: only page_proxy may send it")
    if len(users) > 1 or not _USER.fullmatch(users[0]):
        raise HTTPException(403, f"{access.proxy.header}: one name is needed, of letters, digits and . _ + @ -")
    return access.proxy.caller(users[0], address)


def caller_by_token(request: Request, access: Authenticator, token: str) -> Caller | None:
    """Authenticate by token. Raises HTTPException 429 after too many wrong ones, without checking this one."""
    address = address_of(request)
    if wait_s := access.wrong_tokens.wait_s(address):
        log_refusal(request, access, "refused: too many wrong tokens")
        reason = f"too many wrong tokens from {address} or from all addresses: try again in {wait_s} s"
        raise HTTPException(429, reason, {"Retry-After": str(wait_s)})
    caller = access.caller_by_token(token)
    access.wrong_tokens.count(address, is_right=caller is not None)
    return caller and caller._replace(address=address)


def require_operator(caller: Caller) -> Caller:
    """Raises HTTPException 403 if the caller may only read."""
    if not caller.may_operate:
        raise HTTPException(403, f"the token {caller.name} may only read: this needs one of an operator")
    return caller


async def _reader(request: Request) -> Caller:  # async, as FastAPI gives other functions a thread
    caller: Caller = request.state.caller
    return caller


async def _operator(request: Request) -> Caller:
    return require_operator(request.state.caller)


Reader = Annotated[Caller, Depends(_reader)]
Operator = Annotated[Caller, Depends(_operator)]


def log_refusal(request: Request, access: Authenticator, what: str) -> None:
    """Log at most one line a minute for each `what`, because any client can cause it."""
    text = f"HTTP from %s: {what} for %s; see docs/page.md"
    access.warnings.warn(int(access.now_s() * 1000), what, text, address_of(request), request.url.path)


def address_of(request: Request) -> str:
    """Return the remote address of the connection."""
    return request.client.host if request.client else ""
