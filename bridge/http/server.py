"""HTTP beside the loop: probes and what is pending, read only, in a thread of its own.

    /health/live    200; 503 where the loop hangs: the process is to be started again    from Status, at once
    /health/ready   200; 503 with the reason                                             from Status, at once
    /pending        counts, first and last due, histogram; ?topic=, ?bucket=6h           from the turn's thread, by Desk
    /pending?id=    the timers under one id; 404 where there is none; a token, if any    the same
                    503 where there is none, but some partitions are not recovered yet
    /metrics        Prometheus; see bridge.observe.metric_definitions   from Metrics, and by the query queue

Whoever reaches the port may read names of topics and numbers of timers, but no key, no value and no setting; whether an
id is pending, only where there are no tokens.
"""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bridge.errors import SettingsError
from bridge.http.async_queries import ANSWER_WITHIN_S, LOOK_S, Asker, soon_over
from bridge.http.connection_limits import BACKLOG, HttpConnection, tell_trouble
from bridge.http.known_hosts import KnownHosts
from bridge.loop.loop import Bridge
from bridge.observe.metrics_snapshot import MetricsSnapshot, see
from bridge.observe.prometheus import Exposition
from bridge.observe.status import Status, Verdict
from bridge.ports import Clock
from bridge.query.query_queue import QueryQueue
from bridge.query.summary import InstanceNamed, InstancePending, named_in_bridge, of_bridge, parse_bucket_ms

log = logging.getLogger(__name__)

SEE_WITHIN_S = 2.0
"""Longer than a turn waits for a message; those who scrape wait 10 s."""
_END_S = 3
_ANY_ADDRESS = Middleware(KnownHosts)
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def application(
    status: Status,
    desk: QueryQueue,
    clock: Clock,
    exposition: Exposition,
    answer_within_s: float = ANSWER_WITHIN_S,
    others: Sequence[BaseRoute] = (),
    demand: Callable[[Request], None] = lambda _: None,
    hosts: Middleware = _ANY_ADDRESS,
) -> Starlette:
    """The routes, and `others` (bridge.http.api). None of them looks into the bridge itself.

    `demand`: who asks about one id has to pass it; raises HTTPException. `hosts`: KnownHosts, for all routes.
    """
    ask = Asker(status, desk, answer_within_s).ask
    see_soon = Asker(status, desk, min(SEE_WITHIN_S, answer_within_s)).ask

    async def live(_: Request) -> Response:
        return _verdict(status.live(), status)

    async def ready(_: Request) -> Response:
        return _verdict(status.ready(), status)

    async def pending(request: Request) -> Response:
        given = request.query_params
        id_, topic = given.get("id"), given.get("topic")
        if id_ is not None:
            demand(request)
            named, recovering = await ask(
                lambda bridge: (named_in_bridge(bridge, id_, clock.now_ms()), status.in_recovery())
            )
            code = 200 if named.timers else 503 if recovering else 404
            return _told(InstanceNamed(**named.model_dump(), recovering=[*map(str, recovering)]), code)
        try:
            bucket_ms = parse_bucket_ms(given.get("bucket", "1h"))
        except ValueError as wrong:
            raise HTTPException(400, f"bucket: {wrong}") from wrong
        told, recovering = await ask(
            lambda bridge: (of_bridge(bridge, clock.now_ms(), bucket_ms, topic, soon_over()), status.in_recovery())
        )
        return _told(InstancePending(**told.model_dump(), recovering=[*map(str, recovering)]), 200)

    async def metrics(request: Request) -> Response:
        def look(bridge: Bridge) -> MetricsSnapshot:
            return see(bridge, exposition.targets, clock.now_ms(), soon_over(LOOK_S))

        with suppress(HTTPException):  # what was seen last stays
            exposition.seen = await see_soon(look)
        body, content_type = exposition.text(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/pending", pending),
            Route("/metrics", metrics),
            *others,
        ],
        middleware=[hosts],
        exception_handlers={HTTPException: _refused},
    )


def _verdict(verdict: Verdict, status: Status) -> Response:
    shards = {str(shard): each.phase for shard, each in sorted(status.shards().items())}
    places: dict[str, object] = {"shards": shards}
    if status.unavailable_targets:
        places["unavailable_targets"] = dict(status.unavailable_targets)
    if not verdict.reason:
        return JSONResponse({"status": "ok", **places})
    return JSONResponse({"status": "not ok", "reason": verdict.reason, "detail": verdict.detail, **places}, 503)


def _told(answer: BaseModel, status_code: int) -> Response:
    return Response(answer.model_dump_json(), status_code, media_type="application/json")


async def _refused(_: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, HTTPException)
    return JSONResponse({"reason": wrong.detail}, wrong.status_code, wrong.headers)


@contextmanager
def serving(
    host: str, port: int, application_: Starlette, protocol: type[HttpConnection] = HttpConnection
) -> Iterator[None]:
    """Answers until it is left. Raises SettingsError where the port is not to be had."""
    with _listening(host, port) as listener:
        config = uvicorn.Config(
            application_,
            http=protocol,
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # anybody may write X-Forwarded-For
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_END_S,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=asyncio.run, args=(_serve(server, listener),), name="http", daemon=True)
        thread.start()
        log.info("answering on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(2 * _END_S)


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_exception_handler(tell_trouble)
    await server.serve([listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as wrong:
        if wrong.errno in _TAKEN:
            raise SettingsError(
                f"http_port {port} on {host}: {wrong.strerror}: give this bridge another --http-port, or 0 for none"
            ) from wrong
        raise SettingsError(
            f"http_host {host}: {wrong.strerror}: give an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from wrong
