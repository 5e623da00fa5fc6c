"""`timer-bridge pending`: what is pending in running bridges, or in the directory of a stopped one.

--http-port 8321                            the bridge on this machine
--url http://a:8321 --url http://b:8321     the instances of a group, each of which knows its own partitions
--data-dir timer-data                       a stopped one, as of its last checkpoint; all partitions in it
--select topic=orders --cancel              all timers that match (bridge.cli.bulk_command)
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bridge.cli.output import escaped
from bridge.cli.pending_sources import PendingSource, RunningInstances, StoppedBridge
from bridge.config.durations import instant_text
from bridge.config.secret_file import read_token
from bridge.errors import BridgeError, SettingsError
from bridge.query.summary import Bucket, Named, Pending, parse_bucket_ms
from schemas.kafka_settings import PREFIX, from_environment

_HTTP_PORT = f"{PREFIX}HTTP_PORT"
_ROWS = 24
_BAR = 40
_BUCKET = "1h"
_INSTEAD = {
    "topic": "say it as --select topic=...",
    "id": "`timer-bridge cancel`, `move` and `release` take an id",
    "data-dir": "only running bridges know a selection, so give --http-port or --url",
    "json": "it is told as text alone",
    "bucket": "it has no histogram",
}
"""Options that --select does not combine with, each with the remedy."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("pending")(pending)


def pending(
    url: Annotated[list[str] | None, typer.Option("--url", help="Of a running bridge; one for each instance.")] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help=f"Of a running bridge on 127.0.0.1. [env var: {_HTTP_PORT}]")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Of a stopped bridge; it is only read.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only timers for this real topic.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="Only the timer with this id; exit code 1 if none.")] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", help="Width of a row of the histogram: 1h, 6h, 1d. [default: 1h]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON; times are epoch ms.")] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select",
            help="Which ones, by topic=, key= (its beginning), due-from=, due-to=, header=name=value; repeat.",
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End those that --select names; counted first.")] = False,
    move_by: Annotated[
        str | None, typer.Option("--move-by", help="Make them due so much later: 1h; -1h is earlier.")
    ] = None,
    release: Annotated[bool, typer.Option("--release", help="Make them due now.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without, they are only counted.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="A token, where the bridge asks for one; to change, an operator's."),
    ] = None,
) -> None:
    """Show what is pending: counts by real topic, when the next is due, how many are due when; or one id.

    With --select: how many timers are so, on all instances; with --cancel, --move-by or --release, and --apply, these
    are cancelled, moved or released.
    """
    wanted = {"cancel": cancel, "move": move_by is not None, "release": release}
    actions = [name for name, is_wanted in wanted.items() if is_wanted]
    if len(actions) > 1:
        raise SettingsError("--cancel, --move-by, --release: give one of them")
    if select:
        _refuse_beside_select(
            {"topic": topic, "id": id_, "data-dir": data_dir, "json": as_json or None, "bucket": bucket}
        )
        action, more = actions[0] if actions else None, {} if move_by is None else {"by": move_by}
        _act_on(select, url or [], http_port, token_file, action, more, apply=apply)
        return
    if actions or apply:
        raise SettingsError(
            "--cancel, --move-by, --release and --apply are about what --select names: give it, such as"
            " --select topic=orders"
        )
    source = _source(url or [], http_port, data_dir, token_file)
    if id_ is not None:
        _show_named(source, id_, as_json=as_json)
        return
    try:
        bucket_ms = parse_bucket_ms(_BUCKET if bucket is None else bucket)
    except ValueError as error:
        raise SettingsError(f"--bucket: {error}") from error
    found = source.pending(bucket_ms, topic)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _show(found, Console())
    if source.unread_partitions:
        typer.echo(f"note: {_unread_text(source)}", err=True)


def _show_named(source: PendingSource, id_: str, *, as_json: bool) -> None:
    named = source.named(id_)
    if as_json:
        typer.echo(named.model_dump_json(indent=2))
    elif named.timers:
        Console().print(_timers(named))
    if not named.timers and source.unread_partitions:
        raise BridgeError(f"nothing was found under {id_!r}, but {_unread_text(source)}")
    if not named.timers:
        raise BridgeError(f"no timer is pending under {id_!r} there")


def _unread_text(source: PendingSource) -> str:
    names = ", ".join(source.unread_partitions)
    return f"{names} could not be looked into, as not recovered yet: ask again when the bridge is ready"


def _refuse_beside_select(given: Mapping[str, object]) -> None:
    """Refuse options that --select would ignore. Raises SettingsError."""
    for name, value in given.items():
        if value is not None:
            raise SettingsError(f"--{name}: leave it out where --select is given: {_INSTEAD[name]}")


def _act_on(
    select: list[str],
    urls: list[str],
    http_port: int | None,
    token_file: Path | None,
    action: str | None,
    more: Mapping[str, str],
    *,
    apply: bool,
) -> None:
    from bridge.cli.bulk_command import act_on, parse_selector  # only here: it needs the API's models

    selector = parse_selector(select)
    asked = _urls(urls, http_port)
    if not asked:
        raise SettingsError("--select: give --http-port or --url of a running bridge that has --page true")
    act_on(asked[0], token_file, selector, action, more, apply=apply)


def _source(urls: list[str], http_port: int | None, data_dir: Path | None, token_file: Path | None) -> PendingSource:
    if urls and data_dir is not None:
        raise SettingsError("--url asks a running bridge, --data-dir reads a stopped one: give one of them")
    if data_dir is not None:
        return StoppedBridge(data_dir)
    asked = _urls(urls, http_port)
    if not asked:
        raise SettingsError("give --http-port or --url of a running bridge, or --data-dir of a stopped one")
    token = None if token_file is None else read_token(token_file)
    return RunningInstances(asked, token)


def _urls(urls: list[str], http_port: int | None) -> list[str]:
    """Return `urls`, else that of the bridge on this machine if its port is given."""
    port = http_port if urls or http_port is not None else _port_of_environment()
    return urls or ([f"http://127.0.0.1:{port}"] if port else [])


def _port_of_environment() -> int | None:
    port = from_environment(os.environ).get("http_port")
    try:
        return int(str(port)) if port else None
    except ValueError:
        raise SettingsError(f"{_HTTP_PORT} is {port!r}: give a port, such as 8321") from None


# -- output


def _show(found: Pending, console: Console) -> None:
    shards = ", ".join(f"{shard} {count}" for shard, count in found.shards.items())
    console.print(f"{found.pending} pending at {instant_text(found.at_ms)}; by partition: {escaped(shards or 'none')}")
    if not found.topics:
        return
    console.print(f"next due: {instant_text(min(each.first_due_ms for each in found.topics.values()))}")
    table = Table()
    for column in ("topic", "pending", "first due", "last due"):
        table.add_column(column, justify="right" if column == "pending" else "left", overflow="fold")
    for topic, own in found.topics.items():
        first, last = instant_text(own.first_due_ms), instant_text(own.last_due_ms)
        table.add_row(escaped(topic), str(own.pending), first, last)
    console.print(table)
    console.print(_histogram(found))


def _histogram(found: Pending) -> Table:
    """Return the first buckets of all topics together; the caption counts the rest."""
    buckets = found.histogram()
    first, rest = buckets[:_ROWS], buckets[_ROWS:]
    table = Table(caption=f"{sum(each.timers for each in rest)} later" if rest else None)
    table.add_column("due from")
    table.add_column("timers", justify="right")
    table.add_column("")
    most = max(each.timers for each in first)
    for each in first:
        table.add_row(instant_text(each.from_ms), str(each.timers), _bar(each, most))
    return table


def _bar(bucket: Bucket, most: int) -> str:
    return "#" * max(1, bucket.timers * _BAR // most)


def _timers(named: Named) -> Table:
    table = Table(title=escaped(named.id), title_justify="left")
    for column in ("state", "partition", "origin", "offset", "target", "due", "rolls"):
        table.add_column(column, overflow="fold")
    for timer in named.timers:
        target = timer.topic if timer.partition is None else f"{timer.topic}/{timer.partition}"
        offset = "" if timer.offset is None else str(timer.offset)
        due = instant_text(timer.due_ms)
        table.add_row(timer.state, timer.shard, str(timer.origin), offset, escaped(target), due, str(timer.rolls))
    return table
