"""`inspect`, `verify` and `export`: read the store of a stopped bridge, and change nothing.

    DIR is a data directory (timer-data), a timer topic's folder in it, or the folder of one partition.

They refuse a directory that a running bridge uses, unless `--force-read` is given.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from bridge import extras
from bridge.cli.offline_stores import for_each_store, locked_stores, store_errors
from bridge.cli.output import table
from bridge.errors import BridgeError, SettingsError
from bridge.partition.options import instant_text
from kafka_timer.durations import duration_text
from kafka_timer.headers import PAUSED_MS
from kafka_timer.origin import TimerPartition
from schemas.progress import NOTHING_SETTLED
from schemas.units import size_text
from timer.disk import ReadOnlyDisk
from timer.format.checkpoint import BODIES, DATABASE, IDS, UNITS
from timer.stopped_store import EmptyStoreError, StoppedStore, StoredTimer, StoreFault
from timer.stopped_store import verify as verify_store

_REMEDY = "stop it first, or give --force-read; what it writes meanwhile may then look like a fault"
_POSITIONS = ("format", "engine", "journal_offset", "pending", "tick_ms", "slots", "units_end", "body_end")
_FLIGHT = ("origin", "rolls", "due_ms", "target", "id_hash", "digest")

Folder = Annotated[Path, Argument(metavar="DIR", help="A data directory, or the folder of one partition in it.")]
AsJson = Annotated[bool, Option("--json", help="As JSON.")]
ForceRead = Annotated[bool, Option("--force-read", help="Read even if a bridge is running on it.")]

commands = typer.Typer()


def _each_store(
    folder: Path, look: Callable[[ReadOnlyDisk], dict[str, Any]], *, force: bool
) -> Iterator[dict[str, Any]]:
    """Yield the report of each store: what `look` returns, or that it is empty."""
    with locked_stores(folder, force=force, remedy=_REMEDY) as stores:
        for partition, path in stores:
            report = {"store": str(partition)}
            try:
                with store_errors(path):
                    yield report | look(ReadOnlyDisk(path))
            except EmptyStoreError as empty:
                yield report | {"empty": str(empty)}


@commands.command(epilog="Example: timer-bridge inspect /var/lib/timer-bridge --limit 20")
def inspect(
    folder: Folder,
    limit: Annotated[int, Option(min=0, help="Most timers and ticks to show of each store.")] = 10,
    id_: Annotated[str | None, Option("--id", help="Only the timer with this id.")] = None,
    as_json: AsJson = False,
    force_read: ForceRead = False,
) -> None:
    """Show the store of a stopped bridge, as of its checkpoint: progress, logs, next ticks, timers."""

    def describe(disk: ReadOnlyDisk) -> dict[str, Any]:
        with StoppedStore(disk) as store:
            if id_ is not None:
                return {"timers": [_timer(timer) for timer in store.with_id(id_.encode())]}
            return _describe(store, limit)

    reports = list(_each_store(folder, describe, force=force_read))
    found = any(one.get("timers") for one in reports)
    if as_json:
        typer.echo(json.dumps({"stores": reports}, indent=2))
    elif id_ is None or found:
        _show(reports, Console())
    if id_ is not None and not found:
        raise BridgeError(f"no timer is pending under {id_!r} in {folder}, as of the last checkpoint")


@commands.command(epilog="Example: timer-bridge verify /var/lib/timer-bridge")
def verify(folder: Folder, as_json: AsJson = False, force_read: ForceRead = False) -> None:
    """Check what a start and deliveries read of a stopped bridge's store. Exit code 1 at a fault, with its place."""
    reports = []
    for one in _each_store(folder, lambda disk: asdict(verify_store(disk)), force=force_read):
        reports.append(one)
        if not as_json:
            _print_result(one)
    if as_json:
        typer.echo(json.dumps({"stores": reports}, indent=2))
    if any(one.get("fault") for one in reports):
        text = "The next start of the bridge repairs it, also from Kafka. Keep the folder: Kafka may lack its timers."
        typer.echo(text, err=True)
        raise typer.Exit(1)


def _print_result(one: dict[str, Any]) -> None:
    if "empty" in one:
        typer.echo(f"{one['store']}: {one['empty']}")
    elif one["fault"] is not None:
        typer.echo(f"{one['store']}: FAULT: {StoreFault(**one['fault'])}", err=True)
    else:
        closed = "closed cleanly" if one["closed"] else "not closed cleanly"
        typer.echo(f"{one['store']}: sound: {one['live']} live timers in {one['ticks']} ticks; {closed}")


@commands.command(epilog="Example: timer-bridge export /var/lib/timer-bridge pending.parquet")
def export(
    folder: Folder,
    out: Annotated[Path, Argument(metavar="OUT.parquet", help="The file to write; an existing one is replaced.")],
    force_read: ForceRead = False,
) -> None:
    """Write the pending timers of a stopped bridge into a Parquet file, as of its checkpoint.

    Export each of several instances to its own file. One import reads all, and takes each partition from the newest.
    """
    if out.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(f"{out} lies in the data directory: write it somewhere else")
    extras.require("export", "export")
    # only here: pyarrow takes 25 MB, which a running bridge would keep
    from bridge.cli.parquet_export import pending_file

    rows = flights = 0
    with locked_stores(folder, force=force_read, remedy=_REMEDY) as stores, pending_file(out) as write:

        def take(partition: TimerPartition, store: StoppedStore) -> None:
            nonlocal rows, flights
            rows += write(partition, store)
            flights += len(store.checkpoint.flights)

        unfinished = for_each_store(stores, take)
    typer.echo(f"{rows} pending timers written to {out}")
    if flights:
        typer.echo(f"note: {flights} copies in flight are not in it", err=True)
    if unfinished:
        raise BridgeError(
            f"{', '.join(map(str, unfinished))}: not in the file, as the bridge ended before their first checkpoint,"
            f" perhaps while it rebuilt them: let it run until it is ready, stop it, and export again"
        )


# -- output


def _describe(store: StoppedStore, limit: int) -> dict[str, Any]:
    checkpoint = store.checkpoint
    visit_ms, origin_offset = checkpoint.progress.settled
    return {
        "closed": store.closed,
        "checkpoint": {
            **{name: getattr(checkpoint, name) for name in _POSITIONS},
            "next_offset": checkpoint.progress.next_offset,
            "settled": {"visit_ms": visit_ms, "origin": origin_offset},
            "low_offset": checkpoint.progress.low_offset,
            "held": list(checkpoint.held),
            "flights": [dict(zip(_FLIGHT, flight, strict=True)) | _due(flight.due_ms) for flight in checkpoint.flights],
            "ended_flights": list(checkpoint.ended_flights),
        },
        "files": [{"name": name, "size": size} for name, size in store.files().items()],
        "ticks": [{"from_ms": start_ms, "timers": count} for start_ms, count in store.ticks(limit)],
        "timers": [_timer(timer) for timer in store.soonest(limit)],
    }


def _timer(timer: StoredTimer) -> dict[str, Any]:
    body = timer.body
    return {
        "origin": body.origin_offset,
        **_due(body.due_ms),
        "visit_ms": timer.visit_ms,
        "target": body.target,
        "target_partition": None if body.partition < 0 else body.partition,
        "id": None if body.id is None else body.id.decode("utf-8", "backslashreplace"),
        "rolls": body.rolls,
        "key_bytes": None if body.key is None else len(body.key),
        "value_bytes": None if body.value is None else len(body.value),
        "header_bytes": len(body.headers),
    }


def _due(due_ms: int) -> dict[str, Any]:
    return {"due_ms": due_ms % PAUSED_MS, "is_paused": due_ms >= PAUSED_MS}


def _show(reports: list[dict[str, Any]], console: Console) -> None:
    for one in reports:
        console.rule(one["store"], align="left")
        if "empty" in one:
            console.print(one["empty"])
            continue
        if "checkpoint" in one:
            console.print(table(("", "", ""), _checkpoint_rows(one), title="checkpoint"))
            ticks = [(instant_text(tick["from_ms"]), tick["timers"]) for tick in one["ticks"]]
            console.print(table(("", ""), ticks, title="next ticks"))
        if one["timers"]:
            columns = ("origin", "due", "target", "id", "rolls", "size")
            console.print(table(columns, map(_timer_row, one["timers"]), title="timers", unbroken=("origin", "due")))


def _checkpoint_rows(one: dict[str, Any]) -> Iterator[tuple[object, object, object]]:
    checkpoint = one["checkpoint"]
    settled = checkpoint["settled"]["visit_ms"], checkpoint["settled"]["origin"]
    yield "C, next offset", checkpoint["next_offset"], ""
    upto = ("nothing yet", "") if settled == NOTHING_SETTLED else (instant_text(settled[0]), f"origin {settled[1]}")
    yield "K, settled up to", *upto
    yield "L, lowest pending offset", checkpoint["low_offset"], ""
    yield "pending", checkpoint["pending"], f"{len(checkpoint['held'])} held"
    yield "copies in flight", len(checkpoint["flights"]), f"{len(checkpoint['ended_flights'])} of them ended"
    if checkpoint["engine"] == "wheel":
        yield "wheel", f"{checkpoint['slots']} slots of {duration_text(checkpoint['tick_ms'])}", ""
        ends = {UNITS: f"{checkpoint['units_end']} units", IDS: "", BODIES: f"to {checkpoint['body_end']}"}
    else:
        ends = {DATABASE: ""}
    yield "closed cleanly", "yes" if one["closed"] else "no", ""
    for folder, end in ends.items():
        sizes = [file["size"] for file in one["files"] if file["name"].startswith(f"{folder}/")]
        yield f"{folder}/", f"{len(sizes)} files, {size_text(sum(sizes))}", end


def _timer_row(timer: dict[str, Any]) -> tuple[object, ...]:
    is_rolled = timer["is_paused"] or timer["visit_ms"] < timer["due_ms"]
    due = instant_text(timer["due_ms"]) + ("\npaused" if timer["is_paused"] else "")
    return (
        timer["origin"],
        Text(due + (f"\nrolls at {instant_text(timer['visit_ms'])}" if is_rolled else "")),
        timer["target"] + ("" if timer["target_partition"] is None else f"/{timer['target_partition']}"),
        timer["id"] or "",
        timer["rolls"],
        size_text(sum(timer[part] or 0 for part in ("key_bytes", "value_bytes", "header_bytes"))),
    )
