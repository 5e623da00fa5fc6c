"""Refuse requests whose Host header does not name this bridge, on every path (`is_known_host` says why)."""

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bridge.config.http_address import is_known_host, known_names
from bridge.config.settings import Settings


class KnownHosts:
    """ASGI middleware. names: patterns (* and ?) beside localhost. any_address: True if every IP address is known."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), *, any_address: bool = True) -> None:
        self._app = app
        self._names = tuple(names)
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if is_known_host(host, self._names, any_address=self._any_address):
            await self._app(scope, receive, send)
            return
        known = "its IP address, localhost or a name in http_hosts" if self._any_address else "127.0.0.1 or localhost"
        reason = f"Host {host!r}: not a known name of this bridge; ask it by {known}"
        await JSONResponse({"reason": reason}, 403)(scope, receive, send)


def known_hosts(settings: Settings) -> Middleware:
    return Middleware(KnownHosts, known_names(settings), any_address=settings.has_tokens or not settings.page)
