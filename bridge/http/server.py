"""HTTP server in a thread of its own: probes, metrics and pending timers, read only.

    /health/live    200; 503 if the loop hangs: restart the process          from Status, at once
    /health/ready   200; 503 with the reason                                 from Status, at once
    /pending        counts, first and last due, histogram; ?topic=, ?bucket  from the loop's thread, by QueryQueue
    /pending?id=    the timers under one id; needs a token if there are any  the same
                    404 if there is none; 503 if some partitions are still recovering
    /metrics        Prometheus; see bridge.observe.prometheus                from Metrics, and the same

Without a token one can read names of topics and numbers of timers, but no key, value or setting. If there are tokens,
a question about an id needs one.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bridge.config.http_address import listen
from bridge.errors import BridgeError, SettingsError
from bridge.http.async_queries import ANSWER_TIMEOUT_S, LoopQueries
from bridge.http.auth.callers import caller_of
from bridge.http.auth.sessions import Authenticator
from bridge.http.connection_limits import BACKLOG, HttpConnection, log_loop_error
from bridge.http.errors import error_response
from bridge.http.known_hosts import KnownHosts
from bridge.observe.prometheus import Exposition
from bridge.observe.status import Status
from bridge.ports import Clock
from bridge.probes import METRICS_STEP_S, METRICS_TIMEOUT_S, deadline
from bridge.query.query_queue import QueryQueue
from bridge.query.summary import InstanceNamed, InstancePending, named_in_bridge, parse_bucket_ms, pending_in_bridge

log = logging.getLogger(__name__)

_SHUTDOWN_S = 3
_TICK_S = 1.0
_ANY_ADDRESS = Middleware(KnownHosts)


def application(
    status: Status,
    query_queue: QueryQueue,
    clock: Clock,
    exposition: Exposition,
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
    extra_routes: Sequence[BaseRoute] = (),
    access: Authenticator | None = None,
    hosts: Middleware = _ANY_ADDRESS,
) -> Starlette:
    """Return the server's routes and `extra_routes` (bridge.http.api). No route touches the bridge directly.

    access: who may ask about one id; None: everybody. hosts: KnownHosts, for all routes.
    """
    ask = LoopQueries(status, query_queue, answer_timeout_s).ask
    ask_soon = LoopQueries(status, query_queue, min(METRICS_TIMEOUT_S, answer_timeout_s)).ask

    async def live(_: Request) -> Response:
        return JSONResponse(*status.answer(status.live()))

    async def ready(_: Request) -> Response:
        return JSONResponse(*status.answer(status.ready()))

    async def pending(request: Request) -> Response:
        given = request.query_params
        id_, topic = given.get("id"), given.get("topic")
        if id_ is not None:
            if access is not None and not access.is_open:
                caller_of(request, access)
            named, recovering = await ask(
                lambda bridge: (named_in_bridge(bridge, id_, clock.now_ms()), status.in_recovery())
            )
            code = 200 if named.timers else 503 if recovering else 404
            return _json(InstanceNamed(**named.model_dump(), recovering=[*map(str, recovering)]), code)
        try:
            bucket_ms = parse_bucket_ms(given.get("bucket", "1h"))
        except ValueError as error:
            raise HTTPException(400, f"bucket: {error}") from error
        counts, recovering = await ask(
            lambda bridge: (
                pending_in_bridge(bridge, clock.now_ms(), bucket_ms, topic, deadline()),
                status.in_recovery(),
            )
        )
        return _json(InstancePending(**counts.model_dump(), recovering=[*map(str, recovering)]), 200)

    async def metrics(request: Request) -> Response:
        with suppress(HTTPException):  # without an answer, the last metrics of the stores are shown
            await ask_soon(lambda bridge: exposition.read_stores(bridge, clock.now_ms(), deadline(METRICS_STEP_S)))
        body, content_type = exposition.text(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/pending", pending),
            Route("/metrics", metrics),
            *extra_routes,
        ],
        middleware=[hosts],
        exception_handlers={HTTPException: error_response},
    )


def _json(answer: BaseModel, status_code: int) -> Response:
    return Response(answer.model_dump_json(), status_code, media_type="application/json")


@contextmanager
def serving(
    host: str, port: int, application_: Starlette, protocol: type[HttpConnection] = HttpConnection
) -> Iterator[None]:
    """Serve until the end of the block. Raises SettingsError if the port cannot be opened."""
    with listen(host, port) as listener, _serving_on(listener, application_, protocol, is_behind_proxy=False):
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
        with _serving_on(listener, application_, HttpConnection, is_behind_proxy=True):
            yield


@contextmanager
def _serving_on(
    listener: socket.socket, application_: Starlette, protocol: type[HttpConnection], *, is_behind_proxy: bool
) -> Iterator[None]:
    config = uvicorn.Config(
        application_,
        http=protocol,
        backlog=BACKLOG,
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
    server = _Server(config)
    thread = threading.Thread(target=asyncio.run, args=(_serve(server, listener),), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join(2 * _SHUTDOWN_S)


class _Server(uvicorn.Server):
    """Wakes up once a second; uvicorn's own does ten times, which is a seventh of an idle bridge's CPU."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), _TICK_S)

    def stop(self) -> None:
        """End the server. Any thread may call this."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stopped.set)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    await server.serve([listener])
