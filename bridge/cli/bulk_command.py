"""`timer-bridge pending --select topic=orders --cancel [--apply]`: act on all timers that match, counted first.

--move-by 1h and --release work the same way. Any instance can be asked, because its API asks the others. It needs
--page and, if the page has tokens, an operator's token from a file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from bridge.cli.api_client import ApiClient
from bridge.cli.output import escaped
from bridge.config.secret_file import read_token
from bridge.errors import BridgeError, SettingsError
from bridge.page.api.requests import API, error_text
from bridge.page.api.responses import ActedOnSelection, Counted
from bridge.query.search import Selector

_TIMEOUT_S = 180.0
_NAMES = ("topic", "key", "due-from", "due-to", "header", "rule", "paused")
"""Names in --select: fields of the API's Selector, where `key` is `key_prefix`."""


def parse_selector(given: list[str]) -> Selector:
    """Parse the values of --select. Raises SettingsError."""
    found: dict[str, str] = {}
    for part in given:
        name, equals, value = part.partition("=")
        if not equals or name not in _NAMES:
            raise SettingsError(f"--select {part!r}: write one of {', '.join(f'{each}=...' for each in _NAMES)}")
        field = "key_prefix" if name == "key" else name.replace("-", "_")
        if field in found:
            raise SettingsError(f"--select {name} is given twice: give it once")
        found[field] = value
    try:
        return Selector.model_validate(found)
    except ValidationError as error:
        raise SettingsError(f"--select: {error_text(error)}") from error


def act_on(
    select: list[str],
    urls: list[str],
    token_file: Path | None,
    action: str | None,
    more: Mapping[str, str],
    *,
    apply: bool,
) -> None:
    """Count the matching timers; with `apply` act on the counted ones, part by part, and on no other. Print the result.

    select: values of --select. urls: only the first is used. more: the action's own parameters. Raises SettingsError.
    """
    selector = parse_selector(select)
    if not urls:
        raise SettingsError("--select: give --http-port or --url of a running bridge that has --page")
    token = None if token_file is None else read_token(token_file)
    api = ApiClient(urls[0], "--page", token, timeout_s=_TIMEOUT_S)
    asked: dict[str, Any] = {"selector": selector.model_dump(exclude_none=True)}
    parts = [_count(api, asked, None)]
    if action is None or not apply:
        typer.echo(f"{parts[0].matching} timers match")
        for each in parts[0].first:
            Console().print(f"  {escaped(each)}")
        if action is not None:
            typer.echo(f"nothing was sent: give --apply to {action} them")
        return
    while parts[-1].after is not None:  # all parts are counted first, so timers that arrive meanwhile are in no part
        parts.append(_count(api, asked, parts[-1].after))
    later = 0
    for after, counted in zip([None, *(part.after for part in parts)], parts, strict=False):
        body = {**asked, **more, "after": after, "token": counted.token}
        done = api.post(f"{API}/selection/{action}", body, ActedOnSelection)
        came = ", ".join(f"{count} {kind}" for kind, count in sorted(done.outcomes.items()))
        typer.echo(f"{action}: {len(done.sent)} requests sent; {came or 'no receipts'}")
        if late := done.unanswered:
            typer.echo(f"{late} without a receipt so far: they are done when the bridge reads them", err=True)
        later += max(0, done.left - (counted.matching - counted.taken))
    if later:
        raise BridgeError(f"{later} more match that were not counted: look at them, then run it again")


def _count(api: ApiClient, asked: dict[str, Any], after: str | None) -> Counted:
    """Count the next part of the matching timers. Raises BridgeError if a partition is missing."""
    counted = api.post(f"{API}/selection/count", {**asked, "after": after}, Counted)
    if counted.missing:
        first = counted.missing[0]
        raise BridgeError(
            f"{len(counted.missing)} partitions have not answered; {first.partition}: {first.why}. Nothing was done:"
            f" run it again when all answer"
        )
    return counted
