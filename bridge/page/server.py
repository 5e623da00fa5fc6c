"""HTTP server in a thread of its own: probes, metrics and pending timers, read only.

    /health/live    200; 503 if the loop hangs: restart the process          from Status, at once
    /health/ready   200; 503 with the reason                                 from Status, at once
    /pending        counts, first and last due, histogram; ?topic=, ?bucket  from the loop's thread, by QueryQueue
    /pending?id=    the timers under one id; needs a token if there are any  the same
                    404 if there is none; 503 if some partitions are still recovering
    /metrics        Prometheus; see bridge.observe.prometheus                from Metrics, and the same

Without a token one can read names of topics and numbers of timers, but no key, value or setting. If there are tokens,
a question about an id needs one.

Number and duration of connections are limited, so that stores and broker sockets always get file handles:

    accepted -> request_s for a whole request -> answer_s for its answer -> kept for the next one, or closed

At the limit a new connection replaces the one that has waited longest without a whole request, so idle connections keep
no probe out. If all are being answered, the new one is closed.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h11
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.config.http_address import listen
from bridge.errors import BridgeError, SettingsError
from bridge.loop.loop import Bridge
from bridge.observe.log_rate_limit import LogRateLimit
from bridge.observe.status import Status
from bridge.page.guard import caller_of, error_response
from bridge.page.sessions import Authenticator
from bridge.ports import Clock
from bridge.probes import MetricsText, deadline
from bridge.query.query_queue import BusyError, QueryQueue
from bridge.query.search import Listing, Search
from bridge.query.summary import Named, named_in_bridge, parse_bucket_ms, pending_in_bridge
from timer.errors import CorruptStoreError

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

_MAX_SEARCH_S = 60.0
_BACKLOG = 32
"""Connections accepted at a time, for a moment beyond the limit; also the most errors of `accept` at a time."""
ANSWER_S = 120.0
"""Longer than the longest search."""
_warnings = LogRateLimit(log)
_SHUTDOWN_S = 3


@dataclass(frozen=True)
class LoopQueries:
    """Ask the loop's thread. Raises HTTPException 503 with the reason."""

    status: Status
    _query_queue: QueryQueue
    timeout_s: float = 10.0

    async def ask(self, question: Callable[[Bridge], T]) -> T:
        try:
            answer = asyncio.wrap_future(self._query_queue.submit(question))
            return await asyncio.wait_for(answer, self.timeout_s)
        except BusyError:
            raise HTTPException(503, "too many requests at a time: ask again") from None
        except TimeoutError:
            raise HTTPException(503, self.status.ready().reason or "the bridge is busy: ask again") from None
        except (CorruptStoreError, OSError) as error:
            raise HTTPException(503, f"a store cannot be read: {error}") from error

    async def search(self, search: Search, now_ms: Callable[[], int]) -> Listing:
        """Run the search to its end, over as many turns as it takes."""
        end_s = time.monotonic() + _MAX_SEARCH_S
        while not await self.ask(lambda bridge: search.step(bridge, now_ms(), deadline())):
            if time.monotonic() >= end_s:
                raise HTTPException(503, f"the search was not done in {_MAX_SEARCH_S:.0f} s: narrow it, or ask again")
        return search.listing()


class HttpConnection(H11Protocol):
    max_connections = 64
    """A process may usually open 1024 files; nearly all of them stay free for stores and brokers."""
    request_s = 10.0
    """Time limit of a whole request with its body, 2 MB at most."""
    answer_s = ANSWER_S

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

    def _evict_idle(self) -> None:
        others = [each for each in self.connections if isinstance(each, HttpConnection) and each is not self]
        idle = [each for each in others if not each._has_request or each.cycle.response_complete]  # noqa: SLF001
        evicted = min(idle, key=lambda each: each._timer.when(), default=self)  # noqa: SLF001
        text = "%d connections are open, more are asked for: those without a whole request are closed"
        _warnings.warn(int(time.monotonic() * 1000), "most", text, self.max_connections)
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
        text = "no connection can be accepted: %s: raise ulimit -n"
        _warnings.warn(int(time.monotonic() * 1000), "accept", text, error.strerror)
    else:
        loop.default_exception_handler(context)


def application(
    queries: LoopQueries,
    clock: Clock,
    metrics: MetricsText,
    access: Authenticator,
    hosts: Middleware,
    extra_routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the server's routes and `extra_routes` (bridge.page.api). No route touches the bridge directly.

    access: who may ask about one id. hosts: KnownHosts, for all routes.
    """
    status, ask = queries.status, queries.ask

    async def probe(request: Request) -> Response:
        verdict = status.live() if request.url.path == "/health/live" else status.ready()
        return JSONResponse(*status.answer(verdict))

    async def read(look: Callable[[Bridge], Answer]) -> Answer:
        """Also name the recovering partitions, as of the same turn."""
        return await ask(lambda own: look(own).model_copy(update={"recovering": [*map(str, status.in_recovery())]}))

    async def pending(request: Request) -> Response:
        given = request.query_params
        id_, topic = given.get("id"), given.get("topic")
        if id_ is not None:
            if not access.is_open:
                caller_of(request, access)
            return named_answer(await read(lambda bridge: named_in_bridge(bridge, id_, clock.now_ms())))
        try:
            bucket_ms = parse_bucket_ms(given.get("bucket", "1h"))
        except ValueError as error:
            raise HTTPException(400, f"bucket: {error}") from error
        counts = await read(lambda bridge: pending_in_bridge(bridge, clock.now_ms(), bucket_ms, topic, deadline()))
        return json_answer(counts)

    def all_metrics(request: Request) -> Response:  # in a thread, as it is no coroutine
        body, content_type = metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    own = {"/health/live": probe, "/health/ready": probe, "/pending": pending, "/metrics": all_metrics}
    routes = [*(Route(path, answer) for path, answer in own.items()), *extra_routes]
    return Starlette(routes=routes, middleware=[hosts], exception_handlers={HTTPException: error_response})


def json_answer(answer: BaseModel, status_code: int = 200) -> Response:
    return Response(answer.model_dump_json(), status_code, media_type="application/json")


def named_answer(found: Named) -> Response:
    return json_answer(found, 200 if found.timers else 503 if found.recovering else 404)


@contextmanager
def serving(host: str, port: int, application_: Starlette) -> Iterator[None]:
    """Serve until the end of the block. Raises SettingsError if the port cannot be opened."""
    with listen(host, port) as listener, _serving_on(listener, application_, is_behind_proxy=False):
        log.info("answering on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        yield


@contextmanager
def serving_worker(path: Path, application_: Starlette) -> Iterator[None]:
    """Serve a worker's requests, which the supervisor passes on, on a Unix socket. Raises BridgeError.

    X-Forwarded-For is believed, as only our user may connect.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            if error.errno is None:
                raise SettingsError(f"data_dir: {path}: {error}: give a folder with a shorter path") from error
            raise BridgeError(f"{path}: {error.strerror}; no socket for the worker's HTTP server") from error
        listener.listen()
        with _serving_on(listener, application_, is_behind_proxy=True):
            yield


@contextmanager
def _serving_on(listener: socket.socket, application_: Starlette, *, is_behind_proxy: bool) -> Iterator[None]:
    config = uvicorn.Config(
        application_,
        http=HttpConnection,
        backlog=_BACKLOG,
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=is_behind_proxy,  # on a port, any client can write X-Forwarded-For
        forwarded_allow_ips="*",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=asyncio.run, args=(_serve(server, listener),), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * _SHUTDOWN_S)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    await server.serve([listener])
