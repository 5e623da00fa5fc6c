"""Addresses of the HTTP server: where it listens, the names it answers to, and where other instances reach it."""

import errno
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import ip_address

from bridge.config.settings import Settings
from bridge.errors import SettingsError

TWO_LENGTHS = "both Content-Length and Transfer-Encoding: send one of them"
"""Why a request is refused (RFC 9112, 6.1)."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (to look for, not to bind to)  # nosec B104


def own_address(settings: Settings) -> str:
    """Return the address, or an empty string without a page.

    If the server listens on all addresses, this is the one from which it reaches its brokers.
    """
    if not settings.page:
        return ""
    if settings.advertised_http is not None:
        return settings.advertised_http
    host = settings.http_host
    if host in _EVERYWHERE:
        host = _towards(settings.bootstrap_servers.partition(",")[0]) or socket.gethostname()
    return f"[{host}]:{settings.http_port}" if ":" in host else f"{host}:{settings.http_port}"


def known_names(settings: Settings) -> tuple[str, ...]:
    """Return the host names that this bridge answers to, beside localhost and IP addresses."""
    return (*settings.http_hosts, settings.http_host, host_of(own_address(settings)), socket.gethostname())


def is_known_host(host: str | None, names: Iterable[str], *, any_address: bool = True) -> bool:
    """True if a Host header names this bridge: localhost, one of `names` (patterns with * and ?), or an IP address.

    This stops DNS rebinding: evil.example lets its own name resolve to our address, so a browser lets its page read our
    answers. Such a request always carries a name. An IP address, or no Host at all, cannot come from such a page.
    """
    if host is None:
        return True
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    name: str = found[1] or found[2]
    try:
        address = ip_address(name)
    except ValueError:
        return any(fnmatchcase(name, pattern.lower()) for pattern in ("localhost", *names))
    return address.is_loopback or (any_address and not address.is_unspecified)


def listen(host: str, port: int) -> socket.socket:
    """Open the server's port. Raises SettingsError."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        what, remedy = f"http_host {host}", "give an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            what, remedy = f"http_port {port} on {host}", "give this bridge another --http-port, or 0 for none"
        raise SettingsError(f"{what}: {error.strerror}: {remedy}") from error


def host_of(address: str) -> str:
    """Return the host of host:port, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def _towards(server: str) -> str | None:
    """Return our own address on the route to the server. Sends nothing."""
    host, _, port = server.rpartition(":")
    with suppress(OSError, ValueError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as way:
                way.connect(place)
                return str(way.getsockname()[0])
    return None
