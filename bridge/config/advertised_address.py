"""The host:port at which other instances reach this one's HTTP server."""

import socket
from contextlib import suppress

from bridge.config.settings import Settings

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
