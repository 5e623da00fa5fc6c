"""`timer-bridge pending --select topic=orders --cancel [--apply]`: timers by what they are like, counted first.

So do --move-by 1h and --release. Any instance does, as its API asks the others: --page true, and an operator's token
from a file where there are tokens.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console

from bridge.console import shown
from bridge.errors import BridgeError, SettingsError
from bridge.page.actions import NO_ID
from bridge.page.answers import ActedOnSelection, Counted, Refused
from bridge.page.operations import API
from bridge.page.questions import Selector
from bridge.page.service import explained
from bridge.token_file import read_token

Answer = TypeVar("Answer", bound=BaseModel)

_TIMEOUT_S = 180.0
_NAMES = {"topic": "topic", "key": "key_prefix", "due-from": "due_from", "due-to": "due_to", "header": "header"}
"""As they are written behind --select: as the API has them."""


def parse_selector(given: list[str]) -> Selector:
    """Raises SettingsError."""
    found: dict[str, str] = {}
    for part in given:
        name, equals, value = part.partition("=")
        if not equals or name not in _NAMES:
            raise SettingsError(f"--select {part!r}: write one of {', '.join(f'{each}=...' for each in _NAMES)}")
        if _NAMES[name] in found:
            raise SettingsError(f"--select {name} is given twice: give it once")
        found[_NAMES[name]] = value
    try:
        return Selector.model_validate(found)
    except ValidationError as wrong:
        raise SettingsError(f"--select: {explained(wrong)}") from wrong


def act_on(
    url: str, token_file: Path | None, selector: Selector, action: str | None, more: Mapping[str, str], *, apply: bool
) -> None:
    """Counts; with `apply` acts on those that were counted, part by part, and on no other. Tells what came of it.

    `more`: what the action asks for.
    """
    api = _Api(url, token_file)
    asked: dict[str, Any] = {"selector": selector.model_dump(exclude_none=True)}
    first = api.post("selection/count", asked, Counted)
    _demand_all(first)
    if action is None or not apply:
        _tell(first, action)
        return
    later = without_id = 0
    for after, counted in _parts(api, asked, first):
        done = api.post(
            f"selection/{action}", {**asked, **more, "after": after, "token": counted.token}, ActedOnSelection
        )
        _tell_done(action, done)
        later += max(0, done.left - (counted.matching - counted.taken))
        without_id += done.without_id
    left = [f"{later} more match that were not counted: look at them, then run it again"] if later else []
    left += [f"{without_id} have no id, so no request can name them and they are left: {NO_ID}"] if without_id else []
    if left:
        raise BridgeError("; ".join(left))


def _parts(api: "_Api", asked: dict[str, Any], first: Counted) -> list[tuple[str | None, Counted]]:
    """All is counted before anything is done, so what comes meanwhile is in no part. Each with where it begins."""
    parts: list[tuple[str | None, Counted]] = [(None, first)]
    while parts[-1][1].after is not None:
        after = parts[-1][1].after
        counted = api.post("selection/count", {**asked, "after": after}, Counted)
        _demand_all(counted)
        parts.append((after, counted))
    return parts


def _tell_done(action: str, done: ActedOnSelection) -> None:
    came = ", ".join(f"{count} {kind}" for kind, count in sorted(done.outcomes.items()))
    typer.echo(f"{action}: {len(done.sent)} requests sent; {came or 'no receipts'}")
    if done.unanswered:
        typer.echo(f"{done.unanswered} without a receipt so far: they are done when the bridge reads them", err=True)


def _demand_all(counted: Counted) -> None:
    if counted.missing:
        first = counted.missing[0]
        raise BridgeError(
            f"{len(counted.missing)} partitions have not answered; {first.partition}: {first.why}. Nothing was done:"
            f" run it again when all answer"
        )


def _tell(counted: Counted, action: str | None) -> None:
    typer.echo(f"{counted.matching} timers match")
    if counted.without_id:
        typer.echo(f"{counted.without_id} of the first {counted.taken} have no id: no request can name them", err=True)
    for each in counted.first:
        Console().print(f"  {shown(each)}")
    if action is not None:
        typer.echo(f"nothing was sent: give --apply to {action} them")


class _Api:
    def __init__(self, url: str, token_file: Path | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--url {url}: write http://host:port")
        self._url = url.rstrip("/")
        self._token = None if token_file is None else read_token(token_file)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(self, path: str, asked: dict[str, Any], kind: type[Answer]) -> Answer:
        where = f"{self._url}{API}/{path}"
        request = urllib.request.Request(where, json.dumps(asked).encode())  # noqa: S310  (http or https, as checked)
        request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return kind.model_validate_json(answer.read())
        except urllib.error.HTTPError as refused:
            raise BridgeError(f"{self._url}: {_reason(refused)}") from refused
        except (OSError, ValidationError) as wrong:
            why = getattr(wrong, "reason", "it does not answer as a bridge does")
            raise BridgeError(f"{self._url}: {why}: is a bridge running there, with --page true?") from wrong


def _reason(refused: urllib.error.HTTPError) -> str:
    text = refused.read()
    if refused.code == 401:
        return "give a token of it in a file, --token-file"
    try:
        return Refused.model_validate_json(text).reason
    except ValidationError:
        return f"{refused}: start it with --page true"
