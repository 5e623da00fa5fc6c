"""`timer-bridge pending`: what is pending in running bridges, or in the directory of a stopped one."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from typer import Option

from bridge.cli.api_client import Answer, ApiClient
from bridge.cli.offline_stores import for_each_store, locked_stores
from bridge.cli.output import escaped, table
from bridge.config.secret_file import read_token
from bridge.errors import BridgeError, SettingsError
from bridge.partition.options import instant_text
from bridge.query.summary import (
    Named,
    Pending,
    Timer,
    merge_named,
    merge_pending,
    named_in_store,
    parse_bucket_ms,
    pending_in_store,
)
from kafka_timer.durations import duration_text
from kafka_timer.origin import TimerPartition
from schemas.kafka_settings import PREFIX, from_environment
from timer.stopped_store import StoppedStore

_HTTP_PORT = f"{PREFIX}HTTP_PORT"
_STOP_OR_ASK = "ask it by its --http-port (or --url); if it was started without one, stop it first"
_ROWS = 24
_BAR = 40
_INSTEAD = {
    "topic": "write --select topic=...",
    "id": "`timer-bridge cancel`, `move`, `release`, `pause` and `resume` take an id",
    "data-dir": "only running bridges know a selection, so give --http-port or --url",
    "json": "it is printed as text only",
    "bucket": "it has no histogram",
}
"""Options that --select does not combine with, each with the remedy."""


commands = typer.Typer()


class Source(NamedTuple):
    """The instances of a group or, if `folder` is given, the stores of a stopped bridge, as of their checkpoints."""

    bridges: list[ApiClient]
    folder: Path | None

    def ask(
        self, asked: dict[str, str], nothing: Answer, look: Callable[[TimerPartition, StoppedStore], Answer]
    ) -> list[Answer]:
        """Return each instance's answer; or what `look` returns for each store, and `nothing` with the unread ones.

        Raises BridgeError and SettingsError.
        """
        if self.folder is None:
            return [each.get("/pending", asked, type(nothing)) for each in self.bridges]
        found: list[Answer] = []
        with locked_stores(self.folder, remedy=_STOP_OR_ASK) as stores:
            unfinished = for_each_store(stores, lambda partition, store: found.append(look(partition, store)))
        return [nothing.model_copy(update={"recovering": [*map(str, unfinished)]}), *found]


@commands.command(epilog="Example: timer-bridge pending --http-port 8321 --select topic=orders --cancel")
def pending(
    url: Annotated[list[str] | None, Option(help="A running bridge's; one for each instance.")] = None,
    http_port: Annotated[int | None, Option(help=f"A running bridge's on 127.0.0.1. (env var: {_HTTP_PORT})")] = None,
    data_dir: Annotated[Path | None, Option(help="A stopped bridge's; it is only read.")] = None,
    topic: Annotated[str | None, Option(help="Only timers for this target topic.")] = None,
    id_: Annotated[str | None, Option("--id", help="Only the timer with this id; exit code 1 if none.")] = None,
    bucket: Annotated[str | None, Option(help="Width of a row of the histogram: 1h, 6h, 1d. (default: 1h)")] = None,
    as_json: Annotated[bool, Option("--json", help="As JSON; times are epoch ms.")] = False,
    select: Annotated[
        list[str] | None,
        Option(
            help="Only timers with topic=, key= (a prefix), due-from=, due-to=, header=name=value, rule=, paused=yes;"
            " may repeat."
        ),
    ] = None,
    cancel: Annotated[bool, Option("--cancel", help="Cancel those that --select names.")] = False,
    move_by: Annotated[str | None, Option(help="Make them due this much later: 1h; -1h is earlier.")] = None,
    release: Annotated[bool, Option("--release", help="Make them due now.")] = False,
    pause: Annotated[bool, Option("--pause", help="Pause them until they are resumed.")] = False,
    resume: Annotated[bool, Option("--resume", help="Resume them.")] = False,
    apply: Annotated[bool, Option("--apply", help="Act on them; without it, they are only counted.")] = False,
    token_file: Annotated[
        Path | None, Option(help="File with a token, if the bridge needs one; an operator's for changes.")
    ] = None,
) -> None:
    """Show what is pending: counts by target topic, next due time, histogram of due times; or one id.

    With --select: count the matching timers of all instances; with --apply and one of --cancel, --move-by, --release,
    --pause and --resume, act on them.
    """
    wanted = {"cancel": cancel, "move": move_by is not None, "release": release, "pause": pause, "resume": resume}
    actions = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(actions) > 1:
        raise SettingsError("--cancel, --move-by, --release, --pause, --resume: give one of them")
    if select:
        beside = {"topic": topic, "id": id_, "data-dir": data_dir, "json": as_json or None, "bucket": bucket}
        if name := next((name for name, value in beside.items() if value is not None), None):
            raise SettingsError(f"--{name}: leave it out if --select is given: {_INSTEAD[name]}")
        more = {} if move_by is None else {"by": move_by}
        from bridge.cli.bulk_command import act_on  # only here: it needs the API's models

        act_on(select, _urls(url, http_port), token_file, actions[0] if actions else None, more, apply=apply)
        return
    if actions or apply:
        text = "--cancel, --move-by, --release, --pause, --resume and --apply act on what --select names"
        raise SettingsError(f"{text}: give it, such as --select topic=orders")
    source, now_ms = _source(url, http_port, data_dir, token_file), time.time_ns() // 1_000_000
    if id_ is not None:
        none = Named(at_ms=now_ms, id=id_, timers=[])
        named = source.ask({"id": id_}, none, lambda at, store: named_in_store(at, store, id_, now_ms))
        _show_named(merge_named(named), as_json=as_json)
        return
    try:
        bucket_ms = parse_bucket_ms("1h" if bucket is None else bucket)
    except ValueError as error:
        raise SettingsError(f"--bucket: {error}") from error
    nothing = Pending(at_ms=now_ms, pending=0, topics={}, shards={})
    asked = {"bucket": duration_text(bucket_ms)} | ({} if topic is None else {"topic": topic})
    found = merge_pending(
        source.ask(asked, nothing, lambda at, store: pending_in_store(at, store, now_ms, bucket_ms, topic))
    )
    if as_json:
        typer.echo(found.model_dump_json(indent=2, exclude={"recovering"}))
    else:
        _show(found, Console())
    if found.recovering:
        typer.echo(f"note: {_unread_text(found)}", err=True)


def _show_named(named: Named, *, as_json: bool) -> None:
    if as_json:
        typer.echo(named.model_dump_json(indent=2, exclude={"recovering"}))
    elif named.timers:
        columns = ("state", "partition", "origin", "offset", "target", "due", "rolls")
        Console().print(table(columns, map(_row, named.timers), title=named.id))
    if not named.timers and named.recovering:
        raise BridgeError(f"nothing was found under {named.id!r}, but {_unread_text(named)}")
    if not named.timers:
        raise BridgeError(f"no timer is pending under {named.id!r} there")


def _unread_text(found: Pending | Named) -> str:
    names = ", ".join(found.recovering)
    return f"{names} could not be read, as not recovered yet: ask again when the bridge is ready"


def _source(url: list[str] | None, http_port: int | None, data_dir: Path | None, token_file: Path | None) -> Source:
    if url and data_dir is not None:
        raise SettingsError("--url asks a running bridge, --data-dir reads a stopped one: give one of them")
    urls = _urls(url, http_port) if data_dir is None else []
    if data_dir is None and not urls:
        raise SettingsError("give --http-port or --url of a running bridge, or --data-dir of a stopped one")
    token = None if token_file is None or data_dir is not None else read_token(token_file)
    return Source([ApiClient(each, "--http-port", token) for each in urls], data_dir)


def _urls(url: list[str] | None, http_port: int | None) -> list[str]:
    """Return `url`, else that of the bridge on this machine if its port is given."""
    if url:
        return url
    in_environment = from_environment(os.environ).get("http_port")
    try:
        port = http_port if http_port is not None else int(str(in_environment or 0))
    except ValueError:
        raise SettingsError(f"{_HTTP_PORT} is {in_environment!r}: give a port, such as 8321") from None
    return [f"http://127.0.0.1:{port}"] if port else []


# -- output


def _show(found: Pending, console: Console) -> None:
    partitions = ", ".join(f"{partition} {count}" for partition, count in found.shards.items())
    at = instant_text(found.at_ms)
    console.print(f"{found.pending} pending at {at}; by partition: {escaped(partitions or 'none')}")
    if not found.topics:
        return
    console.print(f"next due: {_due_text(found.next_due())}")
    rows = [
        (topic, own.pending, own.paused, _due_text(own.first_due_ms), _due_text(own.last_due_ms))
        for topic, own in found.topics.items()
    ]
    console.print(table(("topic", ">pending", ">paused", "first due", "last due"), rows))
    buckets = found.histogram()
    if not buckets:
        return
    first, rest = buckets[:_ROWS], buckets[_ROWS:]
    most = max(each.timers for each in first)
    bars = [(instant_text(each.from_ms), each.timers, "#" * max(1, each.timers * _BAR // most)) for each in first]
    console.print(table(("due from", ">timers", ""), bars))
    if rest:
        console.print(f"{sum(each.timers for each in rest)} later")


def _due_text(due_ms: int | None) -> str:
    return "none" if due_ms is None else instant_text(due_ms)


def _row(timer: Timer) -> tuple[object, ...]:
    target = timer.topic if timer.partition is None else f"{timer.topic}/{timer.partition}"
    offset = "" if timer.offset is None else timer.offset
    state = f"{timer.state}, paused" if timer.is_paused else timer.state
    return state, timer.partition, timer.origin, offset, target, instant_text(timer.due_ms), timer.rolls
