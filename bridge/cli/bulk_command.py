"""`timer-bridge pending --select topic=orders --cancel [--apply]`: timers by what they are like, counted first.

So do --move-by 1h and --release. Any instance does, as its API asks the others: --page true, and an operator's token
from a file where there are tokens.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from bridge.cli.api_client import RunningBridge
from bridge.cli.output import shown
from bridge.config.secret_file import read_token
from bridge.errors import BridgeError, SettingsError
from bridge.http.api.actions import NO_ID
from bridge.http.api.operation import API
from bridge.http.api.requests import Selector
from bridge.http.api.responses import ActedOnSelection, Counted
from bridge.http.api.routes import explained

_WITHIN_S = 180.0
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
    token = None if token_file is None else read_token(token_file)
    api = RunningBridge(url, "--page true", token, within_s=_WITHIN_S)
    asked: dict[str, Any] = {"selector": selector.model_dump(exclude_none=True)}
    first = api.post(f"{API}/selection/count", asked, Counted)
    _demand_all(first)
    if action is None or not apply:
        _tell(first, action)
        return
    later = without_id = 0
    for after, counted in _parts(api, asked, first):
        done = api.post(
            f"{API}/selection/{action}", {**asked, **more, "after": after, "token": counted.token}, ActedOnSelection
        )
        _tell_done(action, done)
        later += max(0, done.left - (counted.matching - counted.taken))
        without_id += done.without_id
    left = [f"{later} more match that were not counted: look at them, then run it again"] if later else []
    left += [f"{without_id} have no id, so no request can name them and they are left: {NO_ID}"] if without_id else []
    if left:
        raise BridgeError("; ".join(left))


def _parts(api: RunningBridge, asked: dict[str, Any], first: Counted) -> list[tuple[str | None, Counted]]:
    """All is counted before anything is done, so what comes meanwhile is in no part. Each with where it begins."""
    parts: list[tuple[str | None, Counted]] = [(None, first)]
    while parts[-1][1].after is not None:
        after = parts[-1][1].after
        counted = api.post(f"{API}/selection/count", {**asked, "after": after}, Counted)
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
