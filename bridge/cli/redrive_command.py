"""`timer-bridge redrive` and `timer-bridge adopt`: list records; with --apply, send them to their timer topic.

redrive reads the rejected topic; adopt reads the mirror of a lost cluster's timer topic.
"""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option

from bridge.cli.output import escaped, table
from bridge.cli.shared_options import ClusterOptions, command_with, instant_ms
from bridge.config.settings import Settings
from bridge.errors import BridgeError, SettingsError
from bridge.redrive.rules import UNDELIVERABLE, Parked, RedriveFilter, RedrivePlan

if TYPE_CHECKING:
    from bridge.redrive.sender import ConfluentRedrive, RedriveResult


commands = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class MarkOptions(ClusterOptions):
    group: Annotated[str | None, Option(help="The bridge's group; timer-bridge if not given.")] = None
    resent_topic: Annotated[str | None, Option(help="The topic of marks; timer.resent if not given.")] = None

    apply: Annotated[bool, Option("--apply", help="Send them. Without it, only say what would be sent.")] = False
    as_json: Annotated[bool, Option("--json", help="As JSON.")] = False

    def run(
        self, work: "ConfluentRedrive", settings: Settings, look: Callable[[], RedrivePlan], limit: int | None = None
    ) -> None:
        """Show what `look` returns, and with `apply` send it."""
        sent, sent_records = None, list[Parked]()
        if self.apply:
            work.begin()
        found = look()
        found.limit_to(limit)
        if self.apply:
            try:
                sent = work.apply(found.selected, sent_records.extend)
            except BridgeError:
                typer.echo(f"{len(sent_records)} of {len(found.selected)} sent before the error", err=True)
                raise
        for note in found.notes:
            typer.echo(escaped(note), err=True)
        if self.as_json:
            typer.echo(json.dumps(_plan_json(found, sent), indent=2))
        else:
            _show(found, sent, settings)
        if sent is not None and sent.refused:
            record, why = sent.refused[0]
            raise BridgeError(
                f"{len(sent.refused)} were not sent, as {record.partition.topic} does not take them ({why}); the first"
                f" is at {record.name}: fix the topic, then run it again"
            )


@dataclass(frozen=True, kw_only=True)
class RedriveOptions(MarkOptions):
    rejected_topic: Annotated[str | None, Option(help="Their topic; timer.rejected if not given.")] = None
    redriven_topic: Annotated[
        str | None, Option(help="Marks of former versions, only read; timer.redriven if not given.")
    ] = None


@commands.command(
    cls=command_with(RedriveOptions),
    epilog="Example: timer-bridge redrive --topic orders --bootstrap-servers broker:9092 --apply",
)
def redrive(
    context: typer.Context,
    code: Annotated[
        list[str] | None,
        Option(help=f"Rejected with this code; may repeat. (default: {', '.join(sorted(UNDELIVERABLE))})"),
    ] = None,
    topic: Annotated[list[str] | None, Option(help="For this target topic; may repeat.")] = None,
    origin: Annotated[
        list[str] | None, Option(help="This request, as timer-origin has it: topic/partition/offset; may repeat.")
    ] = None,
    from_: Annotated[
        str | None, Option("--from", help="Rejected at or after: ISO 8601 with a zone, or epoch ms.")
    ] = None,
    to: Annotated[str | None, Option(help="Rejected before: ISO 8601 with a zone, or epoch ms.")] = None,
    limit: Annotated[int | None, Option(min=1, help="Most records to send.")] = None,
) -> None:
    """Send rejected records again, from the rejected topic to their timer topic. By default, only list them.

    First fix what kept them from their target topic. Each goes to its own partition as it was first sent, and is read
    again: an absolute time that is past means at once, a relative delay or a level counts from now, and an id ends what
    is pending under it by now. Each record is sent once, however often this is run: what was sent is marked in the same
    transaction. Records that their sender has to fix (bad-header and others) are sent only if --code names them.
    """
    from bridge.redrive.sender import ConfluentRedrive  # only here: --help needs no librdkafka

    chosen: RedriveOptions = context.obj
    settings, _ = chosen.chosen()
    selection = RedriveFilter(
        timer_topics=frozenset({chosen.timer_topic} if chosen.timer_topic else settings.timer_topics()),
        codes=frozenset(code or ()),
        targets=frozenset(topic or ()),
        origins=frozenset(origin or ()),
        from_ms=None if from_ is None else instant_ms("--from", from_),
        to_ms=None if to is None else instant_ms("--to", to),
    )
    with closing(ConfluentRedrive(settings)) as work:
        chosen.run(work, settings, lambda: work.look(selection), limit)


@commands.command(
    cls=command_with(MarkOptions),
    epilog="Example: timer-bridge adopt primary.timer.requests --prefix primary. --due-from 2026-01-31T09:00:00Z"
    " --bootstrap-servers broker:9092 --apply",
)
def adopt(
    context: typer.Context,
    mirror: Annotated[str, Argument(metavar="MIRROR", help="The mirror of the lost cluster's timer topic.")],
    due_from: Annotated[str, Option(help="Timers due earlier have left: ISO 8601 with a zone, or epoch ms.")],
    prefix: Annotated[str, Option(help="Prefix of the names of mirrored topics; '' if there is none.")],
) -> None:
    """Send timers that were pending in a lost cluster, from mirrors of its topics. By default, only count them.

    A timer is sent if it was due at --due-from or later, no later request ended it, on the mirror or on the timer
    topic, and its delivery is not on the mirror of its target topic. Each is sent once, however often this is run.
    """
    from bridge.redrive.adoption import ConfluentAdoption, Mirror

    chosen: MarkOptions = context.obj
    settings, timer_topic = chosen.chosen()
    if mirror == timer_topic or not mirror.startswith(prefix):
        raise SettingsError(f"{mirror}: name a mirror that begins with --prefix, and is not the timer topic itself")
    source = Mirror(mirror, prefix, timer_topic, instant_ms("--due-from", due_from))
    with closing(ConfluentAdoption(settings)) as work:
        chosen.run(work, settings, lambda: work.look_at(source))


def _plan_json(found: RedrivePlan, sent: "RedriveResult | None") -> dict[str, Any]:
    refused = sent.refused if sent else ()
    return {
        "records": [row._asdict() for row in found.rows()],
        "selected": len(found.selected),
        "sent": None if sent is None else sent.count,
        "refused": [{"parked": each.name, "code": code} for each, code in refused],
        "other_timer_topics": dict(found.other_topics),
        "foreign": found.foreign,
        "bare": [record.origin_text for record in found.bare],
    }


def _show(found: RedrivePlan, sent: "RedriveResult | None", settings: Settings) -> None:
    Console().print(table(("code", "target topic", ">records", ">sent before", ">selected"), found.rows()))
    for topic, count in sorted(found.other_topics.items()):
        doubt = "" if topic in settings.timer_topics() else ", if that is a timer topic of yours"
        typer.echo(f"{count} more are of {escaped(topic)}: give --timer-topic {escaped(topic)}{doubt}", err=True)
    if found.bare:
        typer.echo(
            f"{len(found.bare)} cannot be sent from there: they were too large for {settings.rejected_topic}, or"
            f" undecodable, so it has only their positions; the first is {found.bare[0].origin_text}",
            err=True,
        )
    if found.foreign:
        typer.echo(f"{found.foreign} records on {settings.rejected_topic} were not written by a bridge", err=True)
    if sent is None:
        typer.echo(f"{len(found.selected)} would be sent: give --apply to send them")
        return
    typer.echo(f"{sent.count} sent")
    if sent.gone:
        typer.echo(f"{sent.gone} were gone by then: retention deleted them", err=True)
