"""Serve `http_port` for all workers. Each worker serves a Unix socket in its data directory.

    /health/live, /health/ready    200 if all workers are well; the reason names the worker
    /metrics                       of all workers, with the label worker
    /pending                       of all workers, added up
    /worker-2/api/v1/...           passed on to worker 2: reads of its partitions, by other instances and workers
    anything else                  passed on to the first worker that runs: page and API

The client's address is sent in X-Forwarded-For, and what a client wrote there is dropped.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from bridge.page.api.requests import API
from bridge.page.guard import error_response
from bridge.page.peers import HttpResponse, exchange
from bridge.page.server import ANSWER_S, json_answer, named_answer
from bridge.query.summary import Named, Pending, merge_named, merge_pending

_QUICK_S, _PENDING_S = 5.0, 15.0
"""For probes and metrics; Prometheus waits 10 s. For /pending, which waits for the loop for 10 s."""
_OF_CONNECTION = b"connection keep-alive expect te upgrade forwarded x-forwarded-for x-forwarded-proto".split()
_OF_RESPONSE = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date")


def _unavailable(reason: str) -> HttpResponse:
    return HttpResponse(503, json.dumps({"reason": reason}).encode(), [(b"content-type", b"application/json")])


DOWN, SILENT = _unavailable("the worker does not run: ask again"), _unavailable("the worker does not answer: ask again")


@dataclass
class ReverseProxy:
    """paths: sockets of worker 1, 2, ..."""

    _paths: Sequence[Path]

    def application(self, hosts: Middleware) -> Starlette:
        """Return the endpoints. hosts: KnownHosts, for all paths."""
        routes = [
            Route("/health/live", self._probe),
            Route("/health/ready", self._probe),
            Route("/metrics", self._metrics),
            Route("/pending", self._pending),
            Route(f"/worker-{{number:int}}{API}/{{_:path}}", self._of_worker),
            Mount("/", self._anything),
        ]
        return Starlette(routes=routes, middleware=[hosts], exception_handlers={HTTPException: error_response})

    async def probe(self, path: str) -> dict[str, Any]:
        """Return the joined answers of /health/live or /health/ready.

        A worker that does not run is alive, as the supervisor starts it again, but not ready.
        """
        joined: dict[str, Any] = {"status": "ok", "shards": {}}
        for number, answer in enumerate(await self._ask_all(_get(path), _QUICK_S), 1):
            told = {} if answer is DOWN and path == "/health/live" else json.loads(answer.body)
            joined["shards"] |= told.get("shards", {})
            if unavailable := told.get("unavailable_targets"):
                joined["unavailable_targets"] = joined.get("unavailable_targets", {}) | unavailable
            if "reason" in told and "reason" not in joined:
                reason = f"worker {number}: {told['reason']}"
                joined |= {"status": "not ok", "reason": reason, "detail": told.get("detail", "")}
        return joined

    async def _probe(self, request: Request) -> Response:
        told = await self.probe(request.url.path)
        return JSONResponse(told, 503 if "reason" in told else 200)

    async def _ask_all(self, asked: h11.Request, timeout_s: float) -> list[HttpResponse]:
        return await asyncio.gather(*(_ask(path, asked, timeout_s) for path in self._paths))

    async def _metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "").encode()
        answers = await self._ask_all(_get("/metrics", (b"accept", accept)), _QUICK_S)
        told = next((answer for answer in answers if answer.status == 200), None)
        if told is None:
            return _response(DOWN)
        texts = [answer.body.decode() if answer.status == 200 else "" for answer in answers]
        return _response(told._replace(body=merge_metrics(texts).encode()))

    async def _pending(self, request: Request) -> Response:
        is_named = "id" in request.query_params
        parts: list[Any] = []
        for answer in await self._ask_all(_passed_on(request), _PENDING_S):
            try:
                parts.append((Named if is_named else Pending).model_validate_json(answer.body))
            except ValidationError:  # an error, such as a wrong token
                return _response(answer)
        return named_answer(merge_named(parts)) if is_named else json_answer(merge_pending(parts))

    async def _of_worker(self, request: Request) -> Response:
        """Pass on a read of another instance, but no token or session: their limits hold for a whole instance."""
        number = request.path_params["number"]
        if not 0 < number <= len(self._paths):
            raise HTTPException(404)
        asked = _passed_on(request)
        headers = [
            (name, value)
            for name, value in asked.headers
            if name != b"cookie" and (name != b"authorization" or value.startswith(b"Pass "))
        ]
        target = asked.target.removeprefix(b"/worker-%d" % number)
        read = h11.Request(method="GET", target=target, headers=headers)
        return _response(await _ask(self._paths[number - 1], read, ANSWER_S))

    async def _anything(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, answer = Request(scope, receive), DOWN
        for path in self._paths:
            if answer is DOWN:
                answer = await _ask(path, _passed_on(request), ANSWER_S, request.stream())
        await _response(answer)(scope, receive, send)


async def _ask(
    path: Path, asked: h11.Request, timeout_s: float, body: AsyncIterable[bytes] | None = None
) -> HttpResponse:
    """Return the response; DOWN if the worker does not run, SILENT if it does not answer in time."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return DOWN
    try:
        async with asyncio.timeout(timeout_s):
            return await exchange(reader, writer, asked, sys.maxsize, body)
    except (TimeoutError, OSError, h11.ProtocolError):
        return SILENT


def merge_metrics(texts: Sequence[str]) -> str:
    """Join the expositions of worker 1, 2, ..., of one format, with the label `worker`.

    An empty text is that of a worker that does not answer: it is not ready.
    """
    families: dict[str, list[str]] = {}
    for number, text in enumerate(texts, 1):
        for family in f"\n{text}".removesuffix("# EOF\n").split("\n# HELP ")[1:]:
            lines = f"# HELP {family}".strip("\n").split("\n")
            head = "\n".join(line for line in lines if line.startswith("# "))
            samples = families.setdefault(head, [])
            samples += (_labelled(line, number) for line in lines if not line.startswith("# "))
    for head, samples in families.items():
        if head.startswith("# HELP timer_bridge_ready "):
            silent = (number for number, text in enumerate(texts, 1) if not text)
            samples += (f'timer_bridge_ready{{worker="{number}"}} 0.0' for number in silent)
    end = "# EOF\n" if any(text.endswith("# EOF\n") for text in texts) else ""
    return "".join(f"{line}\n" for head, samples in families.items() for line in (head, *samples)) + end


def _labelled(sample: str, number: int) -> str:
    name, _, value = sample.rpartition(" ")
    labels = f"{name[:-1]}," if name.endswith("}") else f"{name}{{"
    return f'{labels}worker="{number}"}} {value}'


def _get(path: str, *headers: tuple[bytes, bytes]) -> h11.Request:
    return h11.Request(method="GET", target=path, headers=[(b"host", b"localhost"), *headers])


def _passed_on(request: Request) -> h11.Request:
    kept = [(name, value) for name, value in request.headers.raw if name not in _OF_CONNECTION]
    if "host" not in request.headers:
        kept.append((b"host", b"localhost"))
    kept.append((b"x-forwarded-for", request.client.host.encode() if request.client else b""))
    query = request.scope["query_string"]
    target = request.scope["raw_path"] + (b"?" + query if query else b"")
    return h11.Request(method=request.method, target=target, headers=kept)


def _response(answer: HttpResponse) -> Response:
    response = Response(answer.body, answer.status)
    length = [(b"content-length", b"%d" % len(answer.body))] if answer.body else []  # not of a HEAD
    response.raw_headers = [*(each for each in answer.headers if each[0] not in _OF_RESPONSE), *length]
    return response
