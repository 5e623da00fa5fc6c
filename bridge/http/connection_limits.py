"""Limit number and duration of HTTP connections, so that stores and broker sockets always get file handles.

accepted -> REQUEST_S for a whole request -> ANSWER_S for its answer -> kept for the next one, or closed

At the limit a new connection replaces the one that has waited longest without a whole request, so idle connections keep
no probe out. If all are being answered, the new one is closed.
"""

import asyncio
import logging
import time
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.observe.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
"""A process may usually open 1024 files; nearly all of them stay free for stores and brokers."""
BACKLOG = 32
"""Connections accepted at a time, for a moment beyond the limit; also the most errors of `accept` at a time."""
REQUEST_S = 10.0
"""Time limit of a whole request with its body, 2 MB at most."""
ANSWER_S = 120.0
"""Longer than the longest search."""


class HttpConnection(H11Protocol):
    """A connection with limits. Tests subclass it with other limits."""

    max_connections: ClassVar[int] = MAX_CONNECTIONS
    request_s: ClassVar[float] = REQUEST_S
    answer_s: ClassVar[float] = ANSWER_S

    _warnings: ClassVar[LogRateLimit] = LogRateLimit(log)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._timer = self.loop.call_later(self.request_s, self._abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._evict_idle()

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:  # the next request begins
            self._start_timer(self.request_s)
        had_request = self._has_request
        super().data_received(data)
        if self._has_request and not had_request:
            self._start_timer(self.answer_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_busy = self._has_request or self.transport.get_write_buffer_size() > 0
        self._start_timer(self.answer_s if is_busy else self.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _has_request(self) -> bool:
        """True if a whole request has arrived."""
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    @property
    def _is_answered(self) -> bool:
        return self._has_request and not self.cycle.response_complete

    def _evict_idle(self) -> None:
        others = [each for each in self.connections if isinstance(each, HttpConnection) and each is not self]
        idle = [each for each in others if not each._is_answered]  # noqa: SLF001  (of one kind)
        evicted = min(idle, key=lambda each: each._timer.when(), default=self)  # noqa: SLF001
        text = "%d connections are open, more are asked for: those without a whole request are closed"
        self._warnings.warn(_now_ms(), "most", text, self.max_connections)
        evicted._abort()  # noqa: SLF001

    def _start_timer(self, timeout_s: float) -> None:
        self._timer.cancel()
        if self in self.connections:
            self._timer = self.loop.call_later(timeout_s, self._abort)

    def _abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of the event loop: log a lack of file handles once a minute, not for each connection."""
    error = context.get("exception")
    if isinstance(error, OSError) and "accept" in context.get("message", ""):
        _accept_errors.warn(_now_ms(), "accept", "no connection can be accepted: %s: raise ulimit -n", error.strerror)
    else:
        loop.default_exception_handler(context)


_accept_errors = LogRateLimit(log)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
