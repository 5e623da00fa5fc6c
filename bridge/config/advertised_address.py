"""Where other instances ask this one: host:port of its HTTP."""

import socket
from contextlib import suppress

from bridge.config.settings import Settings

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (to look for, not to bind to)  # nosec B104


def own_address(settings: Settings) -> str:
    """Empty where there is no page. Of one that listens everywhere: the address by which it reaches its brokers."""
    if not settings.page:
        return ""
    if settings.advertised_http is not None:
        return settings.advertised_http
    host = settings.http_host
    if host in _EVERYWHERE:
        host = _towards(settings.bootstrap_servers.partition(",")[0]) or socket.gethostname()
    return f"[{host}]:{settings.http_port}" if ":" in host else f"{host}:{settings.http_port}"


def known_names(settings: Settings) -> tuple[str, ...]:
    """Names by which this bridge may be asked, beside localhost and addresses."""
    return (*settings.http_hosts, settings.http_host, host_of(own_address(settings)), socket.gethostname())


def host_of(address: str) -> str:
    """Return the host of host:port, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def _towards(server: str) -> str | None:
    """Our address on the way there; nothing is sent."""
    host, _, port = server.rpartition(":")
    with suppress(OSError, ValueError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as way:
                way.connect(place)
                return str(way.getsockname()[0])
    return None
