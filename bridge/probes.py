"""Serve probes and metrics without the extra `page`, by the standard library.

    /health/live, /health/ready    200, or 503 with the reason     JSON, from Status
    /metrics                       Prometheus

A connection carries one request and lasts at most REQUEST_S. At most MAX_CONNECTIONS are open: a further one replaces
the oldest, so that a slow client keeps no probe out.
"""

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from bridge.config.http_address import TWO_LENGTHS, is_known_host, listen
from bridge.observe.status import Status
from bridge.ports import Clock
from bridge.query.query_queue import BusyError, QueryQueue
from timer.errors import CorruptStoreError

if TYPE_CHECKING:
    from bridge.observe.prometheus import Exposition

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
REQUEST_S = 10.0

SEARCH_STEP_S = 0.02
"""The longest that one step of a search may hold up the loop, and with it the timers."""
_METRICS_STEP_S = 0.005
"""The same for metrics, which are read again and again."""
_METRICS_TIMEOUT_S = 2.0
"""Longer than a turn waits for a message; Prometheus waits 10 s."""

MetricsText = Callable[[str], tuple[bytes, str]]
"""Returns the body of /metrics and its content type for an Accept header."""


def deadline(seconds: float = SEARCH_STEP_S) -> Callable[[], bool]:
    """Return a function that is True once `seconds` have passed: the time of a search in one turn."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


def metrics_text(exposition: "Exposition", queries: QueryQueue, clock: Clock) -> MetricsText:
    def text(accept: str) -> tuple[bytes, str]:
        # Without an answer, or with a store that cannot be read, the last metrics of the stores are shown.
        with suppress(BusyError, CorruptStoreError, OSError):
            answer = queries.submit(
                lambda bridge: exposition.read_stores(bridge, clock.now_ms(), deadline(_METRICS_STEP_S))
            )
            try:
                answer.result(_METRICS_TIMEOUT_S)
            finally:
                answer.cancel()  # a question that waits for too long is withdrawn
        return exposition.text(accept)

    return text


@contextmanager
def serving_probes(
    host: str, port: int, status: Status, metrics: MetricsText, known_names: Sequence[str] = ()
) -> Iterator[None]:
    """Serve until the end of the block. Raises SettingsError if the port cannot be opened."""
    with listen(host, port) as listener, _Server(listener, status, metrics, known_names) as server:
        thread = threading.Thread(target=server.serve_forever, name="probes", daemon=True)
        thread.start()
        log.info("answering on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            yield
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        server, path = self.server, self.path.partition("?")[0]
        if "content-length" in self.headers and "transfer-encoding" in self.headers:
            self._send_json({"reason": TWO_LENGTHS}, 400)
        elif not is_known_host(self.headers.get("host"), server.known_names):
            self._send_json({"reason": "Host: not a known name of this bridge; use its IP address or localhost"}, 403)
        elif path == "/health/live":
            self._send_json(*server.status.answer(server.status.live()))
        elif path == "/health/ready":
            self._send_json(*server.status.answer(server.status.ready()))
        elif path == "/metrics":
            self._send(200, *server.metrics(self.headers.get("accept", "")))
        else:
            reason = f"{path}: only /health/live, /health/ready and /metrics; for more, install the extra 'page'"
            self._send_json({"reason": reason}, 404)

    def version_string(self) -> str:
        return "timer-bridge"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the library's name)
        log.debug(format, *args)

    def _send_json(self, answer: dict[str, object], code: int) -> None:
        self._send(code, json.dumps(answer).encode(), "application/json")

    def _send(self, code: int, body: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow client does not delay the end

    def __init__(
        self, listener: socket.socket, status: Status, metrics: MetricsText, known_names: Sequence[str]
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.status = status
        self.metrics = metrics
        self.known_names = known_names
        self._open: deque[socket.socket] = deque()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        if len(self._open) > MAX_CONNECTIONS:
            _end(self._open.popleft())
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        limit = threading.Timer(REQUEST_S, _end, [request])
        limit.daemon = True
        limit.start()
        super().process_request_thread(request, client_address)
        limit.cancel()

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):  # replaced by a newer one
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, _: Any, client_address: Any) -> None:
        log.debug("%s: the request was not answered", client_address, exc_info=True)


def _end(request: socket.socket) -> None:
    """Wake the thread that reads from or writes to the connection."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
