"""HTTP routes of the API: authentication, parsing and error responses."""

from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bridge.errors import BridgeError
from bridge.http.api.openapi import document
from bridge.http.api.operation import API, Operation
from bridge.http.auth.sessions import ANONYMOUS, Authenticator, Caller

MAX_BODY_BYTES = 2 << 20
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def routes(operations: list[Operation], access: Authenticator, version: str) -> list[Route]:
    """Return a route for each operation, and one for the OpenAPI document."""
    described = cache(partial(document, operations, version))  # rarely requested, and slow to make

    async def openapi(_: Request) -> Response:
        return JSONResponse(described(), headers=_HEADERS)

    found: list[Route] = [Route(f"{API}/openapi.json", openapi)]
    return found + [Route(each.path, _endpoint(each, access), methods=[each.method]) for each in operations]


def _endpoint(operation: Operation, access: Authenticator) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        caller = caller_of(request, access)
        asked = await _asked(request, operation)
        answer = await run(operation, caller, asked)
        status = 404 if operation.is_empty(answer) else 200
        return Response(answer.model_dump_json(), status, media_type="application/json", headers=_HEADERS)

    return respond


async def run(operation: Operation, caller: Caller, asked: Any) -> Any:
    """Run the operation. Raises only HTTPException."""
    if operation.role == "operate" and not caller.may_operate:
        raise HTTPException(403, f"the token {caller.name} may only read: this needs one of an operator")
    try:
        return await operation.run(caller, asked)
    except BridgeError as error:
        raise HTTPException(503, str(error)) from error
    except ValueError as error:
        raise HTTPException(400, str(error)) from error


def caller_of(request: Request, access: Authenticator) -> Caller:
    """Authenticate by the header Authorization. Raises HTTPException."""
    if access.is_open:
        if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(400, "send JSON, as Content-Type: application/json")
        return ANONYMOUS._replace(address=address_of(request))
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    caller = None
    if kind.lower() == "bearer":
        caller = caller_by_token(request, access, given)
    elif kind == "Pass" and request.method == "GET":
        caller = access.verify_peer_token(given, f"{request.url.path}?{request.url.query}")
    if caller is None:
        log_refusal(request, access, "refused: no known token")
        raise HTTPException(401, "give a token of this bridge, as Authorization: Bearer <token>")
    return caller._replace(address=address_of(request))


def caller_by_token(request: Request, access: Authenticator, token: str) -> Caller | None:
    """Authenticate by token. Raises HTTPException 429 after too many wrong ones, without checking this one."""
    address = address_of(request)
    if wait_s := access.wrong_tokens.wait_s(address):
        log_refusal(request, access, "refused: too many wrong tokens")
        reason = f"too many wrong tokens from {address} or from all addresses: try again in {wait_s} s"
        raise HTTPException(429, reason, {"Retry-After": str(wait_s)})
    caller = access.caller_by_token(token)
    access.wrong_tokens.count(address, is_right=caller is not None)
    return caller


def log_refusal(request: Request, access: Authenticator, what: str) -> None:
    """Log at most one line a minute for each `what`, because any client can cause it."""
    text = f"HTTP from %s: {what} for %s; see docs/page.md"
    access.log_throttle.warn(int(access.now_s() * 1000), what, text, address_of(request), request.url.path)


def address_of(request: Request) -> str:
    """Return the remote address of the connection."""
    return request.client.host if request.client else ""


def token_requirement(access: Authenticator) -> Callable[[Request], None]:
    """Return a check for routes beside the API. It raises HTTPException if a token is needed and none is given."""

    def require_token(request: Request) -> None:
        if not access.is_open:
            caller_of(request, access)

    return require_token


async def _asked(request: Request, operation: Operation) -> Any:
    try:
        if operation.method == "GET":
            return operation.request_model.model_validate(dict(request.query_params))
        return operation.request_model.model_validate_json(await body_of(request))
    except ValidationError as error:
        raise HTTPException(400, error_text(error)) from error


async def body_of(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Read the body. Raises HTTPException as soon as it is larger than `max_bytes`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(
                413, f"more than {max_bytes} bytes: send less; a larger message goes to the timer topic itself"
            )
    return bytes(body)


def error_text(error: ValidationError) -> str:
    """Return pydantic's errors in one line, without its hints for programmers."""
    texts = []
    for each in error.errors(include_url=False, include_context=False):
        place = ".".join(map(str, each["loc"]))
        text = each["msg"].removeprefix("Value error, ")
        texts.append(f"{place}: {text}" if place else text)
    return "; ".join(texts)
