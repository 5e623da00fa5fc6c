"""Find out who has sent a request to the API, and refuse unknown callers."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bridge.http.auth.sessions import ANONYMOUS, Authenticator, Caller


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


def require_operator(caller: Caller) -> Caller:
    """Raises HTTPException 403 if the caller may only read."""
    if not caller.may_operate:
        raise HTTPException(403, f"the token {caller.name} may only read: this needs one of an operator")
    return caller


def log_refusal(request: Request, access: Authenticator, what: str) -> None:
    """Log at most one line a minute for each `what`, because any client can cause it."""
    text = f"HTTP from %s: {what} for %s; see docs/page.md"
    access.warnings.warn(int(access.now_s() * 1000), what, text, address_of(request), request.url.path)


def address_of(request: Request) -> str:
    """Return the remote address of the connection."""
    return request.client.host if request.client else ""
