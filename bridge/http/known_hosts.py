"""Refuse requests whose Host header does not name this bridge, on every path.

This stops DNS rebinding: evil.example lets its own name resolve to our address, so a browser lets its page read our
answers. Such a request always carries a name. An IP address in Host, or no Host at all, cannot come from such a page.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bridge.config.advertised_address import known_names
from bridge.config.settings import Settings

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")


class KnownHosts:
    """ASGI middleware. names: patterns (* and ?) beside localhost. any_address: True if every IP address is known."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = (), *, any_address: bool = True) -> None:
        self._app = app
        self._names = ("localhost", *(name.lower() for name in names))
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self._is_known(host.lower()):
            await self._app(scope, receive, send)
            return
        known = "its IP address, localhost or a name in http_hosts" if self._any_address else "127.0.0.1 or localhost"
        reason = f"Host {host!r}: not a known name of this bridge; ask it by {known}"
        await JSONResponse({"reason": reason}, 403)(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name: str = found[1] or found[2]
        try:
            address = ip_address(name)
        except ValueError:
            return any(fnmatchcase(name, pattern) for pattern in self._names)
        return address.is_loopback or (self._any_address and not address.is_unspecified)


def known_hosts(settings: Settings) -> Middleware:
    return Middleware(KnownHosts, known_names(settings), any_address=settings.has_tokens or not settings.page)
