"""Connections to the HTTP port: so few, and so short, that stores and brokers' sockets always get their file handles.

accepted -> REQUEST_S for a whole request -> ANSWER_S for its answer -> kept for the next one, or closed

At the limit a newcomer takes the place of who has waited longest without a whole request: who only holds connections
keeps no probe out. Where all are being answered, the newcomer is closed.
"""

import asyncio
import logging
import time
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.observe.log_throttle import LogThrottle

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
"""A process may open 1024 files as a rule; this leaves nearly all of them to stores and brokers."""
BACKLOG = 32
"""So many are accepted at a time, beyond the limit for a moment; and so many errors of `accept` come at a time."""
REQUEST_S = 10.0
"""Beginning to end, with its body; 2 MB at most."""
ANSWER_S = 120.0
"""Longer than the longest search."""


class HttpConnection(H11Protocol):
    """Subclassed with other limits where needed."""

    most: ClassVar[int] = MOST_CONNECTIONS
    request_s: ClassVar[float] = REQUEST_S
    answer_s: ClassVar[float] = ANSWER_S

    _complaints: ClassVar[LogThrottle] = LogThrottle(log)

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._since_s = self.loop.time()
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._make_room()
        self._expect(self.request_s)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:  # the next request begins
            self._expect(self.request_s)
        had_request = self._has_request
        super().data_received(data)
        if self._has_request and not had_request:
            self._expect(self.answer_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_busy = self._has_request or self.transport.get_write_buffer_size() > 0
        self._expect(self.answer_s if is_busy else self.request_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def _has_request(self) -> bool:
        """A whole one."""
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    @property
    def _is_answered(self) -> bool:
        return self._has_request and not self.cycle.response_complete

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, HttpConnection) and each is not self]
        idle = [each for each in others if not each._is_answered]  # noqa: SLF001  (of one kind)
        leaving = min(idle, key=lambda each: each._since_s, default=self)  # noqa: SLF001
        told = "%d connections are open, more are asked for: those without a whole request are closed"
        self._complaints.say(_now_ms(), "most", told, self.most)
        leaving._abort()  # noqa: SLF001

    def _expect(self, within_s: float) -> None:
        self._forget()
        if self in self.connections:
            self._since_s = self.loop.time()
            self._end = self.loop.call_later(within_s, self._abort)

    def _forget(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _abort(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


def tell_trouble(loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
    """The loop's exception handler: a lack of file handles is said once a minute, not once for each who knocks."""
    wrong = told.get("exception")
    if isinstance(wrong, OSError) and "accept" in told.get("message", ""):
        _accepting.say(_now_ms(), "accept", "no connection can be accepted: %s: raise ulimit -n", wrong.strerror)
    else:
        loop.default_exception_handler(told)


_accepting = LogThrottle(log)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
