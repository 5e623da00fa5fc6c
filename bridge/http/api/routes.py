"""The API as HTTP: who asks, what is asked, and what is told where that goes wrong."""

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
from bridge.http.auth.sessions import ANYBODY, Authenticator, Caller

MOST_BYTES = 2 << 20
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def routes(operations: list[Operation], access: Authenticator, version: str) -> list[Route]:
    """One for each operation, and what they are for machines."""
    described = cache(partial(document, operations, version))  # asked for by few, and slow to make

    async def openapi(_: Request) -> Response:
        return JSONResponse(described(), headers=_HEADERS)

    found: list[Route] = [Route(f"{API}/openapi.json", openapi)]
    return found + [Route(each.path, _endpoint(each, access), methods=[each.method]) for each in operations]


def _endpoint(operation: Operation, access: Authenticator) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        caller = caller_of(request, access)
        asked = await _asked(request, operation)
        told = await run(operation, caller, asked)
        status = 404 if operation.is_nothing(told) else 200
        return Response(told.model_dump_json(), status, media_type="application/json", headers=_HEADERS)

    return answer


async def run(operation: Operation, caller: Caller, asked: Any) -> Any:
    """Raises HTTPException alone."""
    if operation.role == "operate" and not caller.may_operate:
        raise HTTPException(403, f"the token {caller.name} may only read: this needs one of an operator")
    try:
        return await operation.run(caller, asked)
    except BridgeError as wrong:
        raise HTTPException(503, str(wrong)) from wrong
    except ValueError as wrong:
        raise HTTPException(400, str(wrong)) from wrong


def caller_of(request: Request, access: Authenticator) -> Caller:
    """By the header Authorization. Raises HTTPException."""
    if access.is_open:
        if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(400, "send JSON, as Content-Type: application/json")
        return ANYBODY._replace(where=where_of(request))
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    caller = None
    if kind.lower() == "bearer":
        caller = by_secret(request, access, given)
    elif kind == "Pass" and request.method == "GET":
        caller = access.by_pass(given, f"{request.url.path}?{request.url.query}")
    if caller is None:
        complain(request, access, "refused: no known token")
        raise HTTPException(401, "give a token of this bridge, as Authorization: Bearer <token>")
    return caller._replace(where=where_of(request))


def by_secret(request: Request, access: Authenticator, token: str) -> Caller | None:
    """Raises HTTPException 429 after too many wrong tokens, without a look at this one."""
    where = where_of(request)
    if wait_s := access.wrong_tokens.wait_s(where):
        complain(request, access, "refused: too many wrong tokens")
        reason = f"too many wrong tokens from {where} or from all addresses: try again in {wait_s} s"
        raise HTTPException(429, reason, {"Retry-After": str(wait_s)})
    caller = access.by_secret(token)
    access.wrong_tokens.count(where, is_right=caller is not None)
    return caller


def complain(request: Request, access: Authenticator, what: str) -> None:
    """Log one line a minute for each `what`: anybody can cause it."""
    told = f"HTTP from %s: {what} for %s; see docs/page.md"
    access.complaints.say(int(access.now_s() * 1000), what, told, where_of(request), request.url.path)


def where_of(request: Request) -> str:
    """The address at the other end of the connection."""
    return request.client.host if request.client else ""


def demand_token(access: Authenticator) -> Callable[[Request], None]:
    """For what is served beside the API. Raises HTTPException where there are tokens, and none is given."""

    def demand(request: Request) -> None:
        if not access.is_open:
            caller_of(request, access)

    return demand


async def _asked(request: Request, operation: Operation) -> Any:
    try:
        if operation.method == "GET":
            return operation.asked.model_validate(dict(request.query_params))
        return operation.asked.model_validate_json(await body_of(request))
    except ValidationError as wrong:
        raise HTTPException(400, explained(wrong)) from wrong


async def body_of(request: Request, most_bytes: int = MOST_BYTES) -> bytes:
    """Raises HTTPException as soon as there is more."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise HTTPException(
                413, f"more than {most_bytes} bytes: send less; a larger message goes to the timer topic itself"
            )
    return bytes(body)


def explained(wrong: ValidationError) -> str:
    """In a line, without what pydantic adds for programmers."""
    told = []
    for error in wrong.errors(include_url=False, include_context=False):
        place = ".".join(map(str, error["loc"]))
        text = error["msg"].removeprefix("Value error, ")
        told.append(f"{place}: {text}" if place else text)
    return "; ".join(told)
