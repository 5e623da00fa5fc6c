"""The routes of the API. FastAPI validates the questions, and describes the operations in /api/v1/openapi.json."""

from collections.abc import Callable, Coroutine
from functools import cache, partial
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from bridge.errors import BridgeError
from bridge.page.api import requests, responses
from bridge.page.api.actions import SELECTION_ACTIONS, TIMER_ACTIONS, TOPIC_ACTIONS, Action, Actions
from bridge.page.api.group_reads import GroupReads
from bridge.page.api.rejected import RejectedTopic
from bridge.page.api.timer_requests import RequestSender
from bridge.page.guard import Operator, Reader, body_of, caller_of, error_response
from bridge.page.sessions import Authenticator

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Api(NamedTuple):
    """Operations, which the page offers too. Each raises HTTPException, BridgeError (503) or ValueError (400)."""

    reads: GroupReads
    requests: RequestSender
    actions: Actions
    rejected: RejectedTopic


def _errors(descriptions: dict[int | str, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": responses.Refused, "description": text} for status, text in descriptions.items()}


def api_routes(api: Api, access: Authenticator, version: str) -> Mount:
    errors: dict[int | str, str] = {
        400: "A request that cannot be parsed.",
        401: "No token, or one that is not known.",
        403: "The token may only read.",
        429: "Too many wrong tokens: try again after Retry-After seconds.",
        503: "The bridge, another instance or Kafka does not answer: ask again.",
        "default": "Any other error.",  # without it, FastAPI describes an answer 422
    }
    handled = (HTTPException, BridgeError, ValueError, RequestValidationError)
    app = FastAPI(
        title="Kafka timer bridge",
        version=version,
        openapi_url=None,
        exception_handlers=dict.fromkeys(handled, error_response),
        generate_unique_id_function=lambda route: route.name,
        responses=_errors(errors),
    )
    app.state.access = access
    app.router.route_class = _AuthenticatedRoute
    _add_reads(app, api)
    _add_changes(app, api)
    description = cache(partial(_description, app))  # rarely requested, and slow to make

    async def openapi(_: Request) -> Response:
        return JSONResponse(description(), headers=_HEADERS)

    app.add_route("/openapi.json", openapi)
    return Mount(requests.API, app)


def _add_reads(app: FastAPI, api: Api) -> None:
    @app.get(
        "/timer",
        summary="Timers under an id, or of the request at a position.",
        responses=_errors({404: "All instances have answered, and no such timer is pending."}),
    )
    async def timer(
        caller: Reader, asked: Annotated[requests.TimerAsked, Query()], response: Response
    ) -> responses.GroupFound:
        found = await api.reads.timer(caller, asked)
        if not (found.timers or found.missing or found.is_local):
            response.status_code = 404
        return found

    for path, read, summary in (
        ("/overview", api.reads.overview, "Partitions and owners, lateness and throughput now, disk and memory."),
        ("/instance", api.reads.instance, "The asked instance alone."),
        ("/pending", api.reads.pending, "Counts by target topic, next due time, histogram of due times."),
        ("/timers", api.reads.timers, "Pending timers in due order, page by page."),
        ("/receipts", api.requests.receipts, "Receipts of an id or of the request at a position, of the latest ones."),
        ("/outcomes", api.requests.outcomes, "The latest receipts of timers that ended and of refused requests."),
        ("/rejected", api.rejected.latest, "Rejected records with their reason, the latest first."),
    ):
        app.get(path, name=path[1:], summary=summary)(read)
    gone = _errors({404: "It is gone."})
    summary = "A rejected record with its content."
    app.get("/rejected/record", name="rejected_record", summary=summary, responses=gone)(api.rejected.record)


def _add_changes(app: FastAPI, api: Api) -> None:
    summary = "Count the timers of a selection, before an action on them."
    app.post("/selection/count", summary=summary)(api.actions.count)
    app.post("/rejected/redrive", summary="Send rejected records again, each once.")(api.rejected.redrive)
    for action in TIMER_ACTIONS + TOPIC_ACTIONS:
        _add_action(app, api, action)
    for action in SELECTION_ACTIONS:
        _add_selection_action(app, api, action)


def _add_action(app: FastAPI, api: Api, action: Action) -> None:
    is_of_both = action.about == "timer" and action.name in {each.name for each in TOPIC_ACTIONS}
    name = f"{action.name}_timer" if is_of_both else action.name

    @app.post(f"/{action.about}/{action.name}", name=name, summary=action.summary)
    async def act(caller: Operator, asked: action.request_model) -> responses.Acted:  # type: ignore[name-defined]
        return await api.actions.act(caller, action, asked)


def _add_selection_action(app: FastAPI, api: Api, action: Action) -> None:
    @app.post(
        f"/selection/{action.name}",
        name=f"{action.name}_selection",
        summary=f"{action.summary} For all timers of a selection that was counted.",
        responses=_errors({409: "Partitions have not answered; or, for a move, uncounted timers match."}),
    )
    async def act(
        caller: Operator,
        asked: action.selection_model,  # type: ignore[name-defined]
    ) -> responses.ActedOnSelection:
        return await api.actions.act_on_selection(caller, action, asked)


def _description(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    found["paths"] = {requests.API + path: each for path, each in found["paths"].items()}
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found | {"security": [{"token": []}, {}]}


class _AuthenticatedRoute(APIRoute):
    """Authenticate before reading the body; FastAPI itself would read all of it first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            request.state.caller = caller_of(request, request.app.state.access)
            MutableHeaders(scope=request.scope)["Content-Type"] = "application/json"  # whatever the client says
            response = await handle(_LimitedRequest(request.scope, request.receive))
            response.headers.update(_HEADERS)
            return response

        return answer


class _LimitedRequest(Request):
    """The body is limited, and parsed as pydantic does: without lone surrogates, which no topic or id can have."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await body_of(self)
        return self._body

    async def json(self) -> Any:
        try:
            return from_json(await self.body())
        except ValueError as error:
            raise HTTPException(400, f"Invalid JSON: {error}") from error
