"""The page: the operations of the API as plain HTML and forms. It works on a phone, and with a keyboard alone.

    GET  /  /timers  /timers/download  /timer?id=  /outcomes  /rejected  /search?q=  /new  /login     reads of the API
    GET  /selection/progress?action=<name>                 an action on a selection that takes more than PROMPT_S
    POST /timer/<action>  /selection/count  /selection/<action>  /topic/<action>  /rejected/redrive  /login  /logout

A form needs the CSRF token of its session (`form_key`). Everything that a sender wrote is shown as text.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from bridge.errors import BridgeError
from bridge.observe.recent_traffic import MINUTE_MS
from bridge.page import guard
from bridge.page.api import requests
from bridge.page.api.actions import SELECTION_ACTIONS, TIMER_ACTIONS, TOPIC_ACTIONS, Action
from bridge.page.api.responses import ActedOnSelection, GroupPending
from bridge.page.api.routes import Api
from bridge.page.api.timer_requests import SendProgress
from bridge.page.lookups import AuditTables, SchemaRegistry
from bridge.page.rendering import SPANS, Span, Timeline, templates, timeline, timers_as_csv, value_text
from bridge.page.sessions import SESSION_S, Authenticator, Caller, Role
from bridge.partition.options import parse_instant_ms
from bridge.query.search import MAX_LISTED, Content, Question, Selector
from schemas.receipts import Kind

Handler = Callable[[Request, Caller], Awaitable[Response]]

COOKIE = "timer_session"
PAGE_ROWS = ("50", "100", "200")
"""Rows of a page of timers. All of them can be ticked: their origins are part of reads of peers."""
_FOLDER = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser does not send the origin of a form
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SELECTOR = tuple(Selector.model_fields)
_WITHOUT_ZONE = re.compile(r"\d+-\d\d-\d\dT[\d:.]+")
"""Form of a time field as a browser sends it. page.js adds the zone."""
_ORIGIN = re.compile(r"[^/]+/\d+/\d+")
_MAX_FIELDS = 2000
_MAX_LOGIN_BYTES = 4 << 10
"""Most bytes of the login form, which needs no session."""
PROMPT_S = 2.0
MAX_KEPT = 100


class BackgroundAction(NamedTuple):
    """An action on a selection, which goes on after the answer. selector: as the form gave it."""

    action: Action
    selector: dict[str, str]
    progress: SendProgress
    task: "asyncio.Task[ActedOnSelection]"


@dataclass
class HtmlPages:
    _api: Api
    _access: Authenticator
    _now_ms: Callable[[], int]
    _registry: SchemaRegistry | None = None
    _audit_tables: AuditTables | None = None

    def __post_init__(self) -> None:
        self._templates = templates(_FOLDER / "templates", self._now_ms)
        self._background: dict[str, BackgroundAction] = {}
        """By name. The latest MAX_KEPT that have ended can be shown; the audit log has all results."""

    def routes(self) -> list[BaseRoute]:
        changes: dict[str, Handler] = {"/rejected/redrive": self._redrive}
        for action in TIMER_ACTIONS + TOPIC_ACTIONS:
            changes[f"/{action.about}/{action.name}"] = partial(self._act, action)
        for action in SELECTION_ACTIONS:
            changes[f"/selection/{action.name}"] = partial(self._act_on_selection, action)
        return [
            Mount("/static", StaticFiles(directory=_FOLDER / "static")),
            Route("/login", self._guarded(self._login), methods=["GET", "POST"]),
            self._route("/", self._overview),
            self._route("/timers", self._timers),
            self._route("/timers/download", self._download),
            self._route("/timer", self._timer),
            self._route("/search", self._search),
            self._route("/outcomes", self._outcomes),
            self._route("/new", self._new, role="operate"),
            self._route("/rejected", self._rejected),
            self._route("/selection/progress", self._progress),
            self._route("/logout", self._logout, "POST"),
            self._route("/selection/count", self._count, "POST"),
            *(self._route(path, change, "POST", "operate") for path, change in changes.items()),
        ]

    # -- authentication

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Turn errors into an error page, and add the headers of every page."""

        async def answer(request: Request) -> Response:
            try:
                _require_own_origin(request)
                response = await handler(request)
            except (HTTPException, BridgeError, ValueError) as raised:
                error = guard.http_error(raised)
                response = self._page(request, "error.html", error.status_code, reason=error.detail)
                response.headers.update(error.headers or {})
            response.headers.update(_HEADERS)
            return response

        return answer

    def _route(self, path: str, handler: Handler, method: str = "GET", role: Role = "read") -> Route:
        """Return a route that needs a session, for a POST the CSRF token of its form, and the role."""

        async def answer(request: Request) -> Response:
            caller = guard.caller_without_token(request, self._access)
            caller = caller or self._access.caller_by_session(_session(request))
            if caller is None:
                asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                back = asked if request.method == "GET" else "/"
                return RedirectResponse(f"/login?{urlencode({'next': back})}", 303)
            caller = request.state.caller = caller._replace(address=guard.address_of(request))
            if request.method == "POST":
                form = await _form(request)
                key = form.pop("form_key", "")
                if not self._access.is_form_key(key, _form_of(request, caller)):
                    raise HTTPException(403, "this form is of another session: go back, reload the page, send it again")
                request.state.form = form
            if role == "operate":
                guard.require_operator(caller)
            return await handler(request, caller)

        return Route(path, self._guarded(answer), methods=[method])

    async def _login(self, request: Request) -> Response:
        back = _own_path(request.query_params.get("next", "/"))
        if request.method == "GET":
            return self._page(request, "login.html", next=back)
        given = (await _form(request, _MAX_LOGIN_BYTES)).get("token", "")
        caller = guard.caller_by_token(request, self._access, given.strip())
        if caller is None:
            guard.log_refusal(request, self._access, "no session: unknown token")
            return self._page(request, "login.html", 401, next=back, is_wrong=True)
        guard.log_action(caller, "login", {}, {})
        response = RedirectResponse(back, 303)
        session, secure = self._access.log_in(caller), _is_behind_tls(request)
        response.set_cookie(COOKIE, session, SESSION_S, httponly=True, samesite="strict", secure=secure)
        return response

    async def _logout(self, request: Request, _: Caller) -> Response:
        self._access.log_out(_session(request))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=_is_behind_tls(request))
        return response

    # -- reads

    async def _overview(self, request: Request, caller: Caller) -> Response:
        asked = _given(request.query_params, "from", "span")
        span = asked["span"] if asked.get("span") in SPANS else "day"
        from_ms = parse_instant_ms(asked["from"]) if "from" in asked else self._now_ms()
        overview = await self._api.reads.overview(caller, Question())
        pending = await self._api.reads.pending(caller, requests.PendingAsked(bucket=SPANS[span].bucket_ms))
        chart = await self._timeline(caller, pending, SPANS[span], from_ms)
        next_due_ms = pending.next_due(but=overview.paused_topics)
        values: dict[str, Any] = {"overview": overview, "pending": pending, "next_due_ms": next_due_ms, "chart": chart}
        return self._page(request, "overview.html", span=span, spans=SPANS, actions=TOPIC_ACTIONS, **values)

    async def _timeline(self, caller: Caller, pending: GroupPending, span: Span, from_ms: int) -> Timeline:
        """Return the chart. Minutes take a search of one hour, as counts are kept by the hour."""
        from_ms -= from_ms % span.step_ms
        total = pending.histogram()
        if span.step_ms > MINUTE_MS:
            topics = {name: own.histogram for name, own in pending.topics.items()}
            return timeline(topics, total, total, span, from_ms)
        asked = requests.TimersAsked(limit=0, due_from=from_ms, due_to=from_ms + span.length_ms, bucket=MINUTE_MS)
        found = await self._api.reads.timers(caller, asked)
        pending.missing = found.missing or pending.missing
        return timeline(found.topics, found.histogram, total, span, from_ms)

    async def _timers(self, request: Request, caller: Caller) -> Response:
        selector, paging = _selector_in(request.query_params), _given(request.query_params, "order", "limit")
        if paging.get("limit", "100") not in PAGE_ROWS:
            del paging["limit"]
        after = _given(request.query_params, "after")
        asked = requests.TimersAsked(**selector, **paging, **after, content=True)
        found = await self._api.reads.timers(caller, asked)
        pending = await self._api.reads.pending(caller, requests.PendingAsked())
        topics = sorted({*pending.topics, *filter(None, [asked.topic])})
        values: dict[str, Any] = {"selector": selector, "paging": paging, "topics": topics, "sizes": PAGE_ROWS}
        return self._page(request, "timers.html", found=found, asked=asked, actions=SELECTION_ACTIONS, **values)

    async def _download(self, request: Request, caller: Caller) -> Response:
        asked = requests.TimersAsked(**_selector_in(request.query_params), limit=MAX_LISTED, content=True)
        found = await self._api.reads.timers(caller, asked)
        if found.missing:
            raise HTTPException(503, f"{found.missing[0].partition}: {found.missing[0].why}; nothing was downloaded")
        if request.query_params.get("format") == "json":
            text, kind = found.model_dump_json(include={"at_ms", "matching", "timers"}), "json"
        else:
            text, kind = timers_as_csv(found.timers), "csv"
        headers = {"Content-Disposition": f'attachment; filename="timers.{kind}"'}
        return Response(text, headers=headers, media_type="application/json" if kind == "json" else "text/csv")

    async def _timer(self, request: Request, caller: Caller) -> Response:
        asked = _given(request.query_params, "id", "id_base64", "origin")
        if not asked:
            return RedirectResponse("/timers", 303)
        with_value = request.query_params.get("value") == "true"
        found = await self._api.reads.timer(caller, requests.TimerAsked(**asked, value=with_value))
        is_told = request.query_params.get("history") == "true"
        history = await self._api.requests.receipts(requests.Named(**asked)) if is_told else None
        status = 200 if found.timers or found.missing else 404
        shown = [await self._value_text(timer.value) for timer in found.timers]
        values: dict[str, Any] = {"asked": asked, "found": found, "shown": shown, "actions": TIMER_ACTIONS}
        if history is not None and self._audit_tables is not None:
            told = (asked.get("origin"), *(each.origin for each in history.receipts))
            origins = {*filter(None, told), *(timer.origin_text for timer in found.timers)}
            values["audited"] = await self._audit_tables.verdicts_of(origins)
        return self._page(request, "timer.html", status, history=history, **values)

    async def _search(self, request: Request, caller: Caller) -> Response:
        """Lead to the timer with this id or position; if there is none, to the timers with this text in their key."""
        text = request.query_params.get("q", "")
        if _ORIGIN.fullmatch(text):
            return RedirectResponse(f"/timer?{urlencode({'origin': text})}", 303)
        if text and (await self._api.reads.timer(caller, requests.TimerAsked(id=text))).timers:
            return RedirectResponse(f"/timer?{urlencode({'id': text})}", 303)
        return RedirectResponse(f"/timers?{urlencode({'key': text} if text else {})}", 303)

    async def _outcomes(self, request: Request, _: Caller) -> Response:
        asked = _given(request.query_params, "kind")
        found = await self._api.requests.outcomes(requests.OutcomesAsked(**asked))
        return self._page(request, "outcomes.html", found=found, asked=asked, kinds=get_args(Kind)[1:])

    async def _value_text(self, value: Content | None) -> tuple[str, str] | None:
        """Return how a value is shown, and its text; None if it was not asked for."""
        if value is None:
            return None
        return value_text(value) if self._registry is None else await self._registry.text_of(value)

    async def _rejected(self, request: Request, caller: Caller) -> Response:
        asked = _given(request.query_params, "code", "topic", "record")
        if "record" in asked:
            each = await self._api.rejected.record(caller, requests.RejectedRecordAsked(record=asked["record"]))
            return self._page(request, "record.html", each=each, shown=await self._value_text(each.value))
        found = await self._api.rejected.latest(requests.RejectedAsked(**asked, limit=200))
        return self._page(request, "rejected.html", found=found, asked=asked)

    async def _new(self, request: Request, caller: Caller) -> Response:
        pending = await self._api.reads.pending(caller, requests.PendingAsked())
        return self._page(request, "new.html", topics=sorted(pending.topics))

    # -- changes

    async def _act(self, action: Action, request: Request, caller: Caller) -> Response:
        form = request.state.form
        asked = {name: _zoned(text) if name == "at" else text for name, text in _given(form, *form).items()}
        if "value" in form:
            asked["value"] = form["value"].replace("\r\n", "\n")  # browsers send \r\n
        if "headers" in asked:
            pairs = (line.partition(":") for line in form["headers"].splitlines() if line.strip())
            asked["headers"] = [{"name": name.strip(), "value": value.strip()} for name, _, value in pairs]
        done = await self._api.actions.act(caller, action, action.request_model(**asked))
        named = _given(form, "id", "id_base64", "origin") or {"origin": done.sent[0]}
        back = "/timer" if action.about == "timer" else "/"
        return self._page(request, "done.html", action=action, done=done, back=back, asked=named)

    async def _count(self, request: Request, caller: Caller) -> Response:
        form = request.state.form
        selector = _given(form, "origins") if form.get("scope") == "ticked" else _selector_in(form)
        if not selector and "scope" in form:
            raise HTTPException(400, "no row is ticked: tick rows, or choose all that match")
        counted = await self._api.actions.count(caller, requests.SelectionAsked(selector=selector))
        actions = [each for each in SELECTION_ACTIONS if form.get("action", each.name) == each.name]
        return self._page(request, "counted.html", counted=counted, selector=selector, actions=actions)

    async def _act_on_selection(self, action: Action, request: Request, caller: Caller) -> Response:
        form = request.state.form
        selector = _given(form, *_SELECTOR)
        asked = action.selection_model(selector=selector, **_given(form, *(form.keys() - _SELECTOR)))
        name, progress = secrets.token_urlsafe(16), SendProgress()
        task = asyncio.ensure_future(self._api.actions.act_on_selection(caller, action, asked, progress))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # the audit log has it
        started = self._background[name] = BackgroundAction(action, selector, progress, task)
        for old in [name for name, each in self._background.items() if each.task.done()][:-MAX_KEPT]:
            del self._background[old]
        await asyncio.wait([task], timeout=PROMPT_S)
        if task.done():
            return self._done(request, started)
        return RedirectResponse(f"/selection/progress?{urlencode({'action': name})}", 303)

    async def _progress(self, request: Request, _: Caller) -> Response:
        started = self._background.get(request.query_params.get("action", ""))
        if started is None:
            raise HTTPException(404, "this instance has no such action any more: the result is in its audit log")
        if not started.task.done():
            return self._page(request, "progress.html", action=started.action, progress=started.progress)
        try:
            return self._done(request, started)
        except (HTTPException, BridgeError, ValueError) as raised:  # of the action: this page itself is as it should be
            return self._page(request, "error.html", reason=guard.http_error(raised).detail)

    def _done(self, request: Request, started: BackgroundAction) -> Response:
        """Show the result. Raises the action's error."""
        done, asked = started.task.result(), started.selector
        return self._page(request, "done.html", action=started.action, done=done, back="/timers", asked=asked)

    async def _redrive(self, request: Request, caller: Caller) -> Response:
        records = [each for each in request.state.form.get("record", "").split("\n") if each]
        done = await self._api.rejected.redrive(caller, requests.RedriveAsked(records=records))
        return self._page(request, "redriven.html", done=done)

    def _page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        caller: Caller | None = getattr(request.state, "caller", None)
        form_key = "" if caller is None else self._access.form_key(_form_of(request, caller))
        always = {"caller": caller, "form_key": form_key, "path": request.url.path, "is_open": self._access.is_open}
        text = self._templates.get_template(template).render(has_session=bool(_session(request)), **always, **values)
        return HTMLResponse(text, status)


def _require_own_origin(request: Request) -> None:
    """Refuse a form of another site; browsers send its origin. Raises HTTPException."""
    origin = request.headers.get("origin")
    if request.method == "POST" and origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise HTTPException(403, "this form was sent by another site: open this page by its own address")


def _is_behind_tls(request: Request) -> bool:
    """True if the browser loaded the page over TLS, by its own Origin header. Headers of a proxy are not needed."""
    return request.headers.get("origin", "").startswith("https://")


def _own_path(text: str) -> str:
    """Return where to go after the login: `text` if it is a path of ours, else /."""
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and text.isascii()
    return text if is_own else "/"


def _session(request: Request) -> str:
    return request.cookies.get(COOKIE, "")


def _form_of(request: Request, caller: Caller) -> str:
    """Return whose forms a CSRF token is for: a user of a trusted proxy has no session."""
    return f"{_session(request)} {caller.name}"


async def _form(request: Request, max_bytes: int = guard.MAX_BODY_BYTES) -> dict[str, str]:
    """Parse a form; fields with the same name become lines of one text. Raises HTTPException."""
    body = await guard.body_of(request, max_bytes)
    try:
        found = parse_qs(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HTTPException(413, f"more than {_MAX_FIELDS} fields: send fewer at a time") from None
    return {name: "\n".join(values) for name, values in found.items()}


def _given(fields: Mapping[str, str], *names: str) -> dict[str, Any]:
    """Return the fields of these names that are not empty."""
    return {name: fields[name] for name in names if fields.get(name)}


def _selector_in(fields: Mapping[str, str]) -> dict[str, Any]:
    found = _given(fields, *_SELECTOR)
    return {name: _zoned(text) if name.startswith("due_") else text for name, text in found.items()}


def _zoned(text: str) -> str:
    return f"{text}Z" if _WITHOUT_ZONE.fullmatch(text) else text
