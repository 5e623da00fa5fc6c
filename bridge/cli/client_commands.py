"""`timer-bridge send`, `cancel`, `replace`, `move`, `release`, `pause`, `resume`, `skip`: kafka_timer as commands."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import Context

from bridge.cli.shared_options import ClusterOptions, command_with, pairs
from bridge.config.settings import Settings
from bridge.errors import SettingsError
from kafka_timer import Repeat, Sent, TimerProducer

Topic = Annotated[str, typer.Argument(help="The target topic.")]
Value = Annotated[str, typer.Argument(help="The message, or - for standard input.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The timer-id of what is pending.")]
IdIfAny = Annotated[str | None, typer.Argument(metavar="[ID]", help="The timer-id of what is pending.")]
Origin = Annotated[
    str | None, typer.Option("--origin", help="Instead of an ID: topic/partition/offset of the timer's request.")
]
In = Annotated[str | None, typer.Option("--in", help="When: from now, such as 5s or 2h30m.")]
At = Annotated[str | None, typer.Option("--at", help="When: ISO 8601 with a zone, or epoch ms.")]
Level = Annotated[int | None, typer.Option("--level", help="When: a delay level, such as 3 for 10 s.")]
Everywhere = Annotated[
    bool,
    typer.Option("--all-partitions", help="If the timer's partition was not chosen by its id (murmur2)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the position of each acknowledged request, as JSON.")]
_SEND_TIMEOUT_MS = 30_000

commands = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class MessageOptions(ClusterOptions):
    """The message of `send` and `replace`."""

    topic: Topic
    value: Value
    in_: In = None
    at: At = None
    level: Level = None
    key: Annotated[str | None, typer.Option("--key", help="The record's key.")] = None
    partition: Annotated[
        int | None, typer.Option("--partition", help="Partition of the target topic; by default the key chooses.")
    ] = None
    expire_at: Annotated[str | None, typer.Option("--expire-at", help="Reject it from this time on: as --at.")] = None
    cron: Annotated[str | None, typer.Option("--cron", help="Again and again: five fields, such as 0 9 * * *.")] = None
    every: Annotated[str | None, typer.Option("--every", help="Again and again: an interval, such as 15m.")] = None
    zone: Annotated[str | None, typer.Option("--zone", help="Time zone of --cron, such as Europe/Berlin.")] = None
    until: Annotated[str | None, typer.Option("--until", help="No occurrence is due later: as --at.")] = None
    count: Annotated[int | None, typer.Option("--count", help="Occurrences at most.")] = None
    missed: Annotated[
        str | None, typer.Option("--missed", help="Of those missed in downtime: one (default), all or none.")
    ] = None
    header: Annotated[list[str] | None, typer.Option("-H", "--header", help="name=value; may repeat.")] = None

    def raw(self) -> bytes:
        return sys.stdin.buffer.read() if self.value == "-" else self.value.encode(errors="surrogateescape")

    def asked(self) -> dict[str, Any]:
        """Return the arguments of TimerProducer. Raises SettingsError."""
        rule = {name: getattr(self, name) for name in ("cron", "every", "zone", "until", "count", "missed")}
        repeat = None if all(value is None for value in rule.values()) else Repeat(**rule)
        has_time = repeat is None or [self.in_, self.at, self.level].count(None) < 3
        when = _when(self.in_, self.at, self.level) if has_time else {}
        more = {"key": self.key, "partition": self.partition, "expire_at": self.expire_at, "repeat": repeat}
        return {**when, **more, "headers": pairs(self.header)}


def _when(in_: str | None, at: str | None, level: int | None) -> dict[str, Any]:
    if [in_, at, level].count(None) != 2:
        raise SettingsError("give one of --in, --at and --level")
    return {"delay": in_, "at": at, "level": level}


_WithMessage, _OfCluster = command_with(MessageOptions), command_with(ClusterOptions)


@commands.command(
    cls=_WithMessage, epilog="Example: timer-bridge send orders --in 5s 'hello' --bootstrap-servers broker:9092"
)
def send(
    context: Context,
    id_: Annotated[
        str | None, typer.Option("--id", help="For cancel and replace; ends what is pending under it.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a message, or each line of one, to be delivered later."""
    if lines and id_ is not None:
        raise SettingsError("--id with --lines: each line would replace the one before it; leave one of them out")
    message: MessageOptions = context.obj
    asked, raw = message.asked(), message.raw()
    values = lines_of(raw) if lines else [raw]
    settings, timer_topic = message.chosen()
    sent: list[Future[Sent]] = []
    with client_of(settings, timer_topic) as client:
        for each in values:
            future = client.schedule(message.topic, each, id=id_, **asked)
            sent += [future] if as_json else []
    _print_sent(f"{len(values)} sent to {timer_topic}", sent, as_json=as_json)


def lines_of(raw: bytes) -> list[bytes]:
    """Split at LF and CR LF only: other line ends (U+2028 and others) may be part of a message."""
    return [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")] if raw else []


@commands.command(cls=_OfCluster, epilog="Example: timer-bridge cancel reminder-7 --bootstrap-servers broker:9092")
def cancel(
    context: Context,
    id_: IdIfAny = None,
    origin: Origin = None,
    all_partitions: Everywhere = False,
    as_json: AsJson = False,
) -> None:
    """End what is pending under an id. Its receipt tells whether something was."""
    with _client_for(context, id_, origin) as (client, name):
        if not all_partitions:
            sent = [client.cancel(name)]
        elif isinstance(name, Sent):
            raise SettingsError("--all-partitions with --origin: an origin has one partition; leave one of them out")
        else:
            sent = client.cancel_everywhere(name)
    _print_sent(f"cancel of {id_ or origin} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(
    cls=_WithMessage,
    epilog="Example: timer-bridge replace reminder-7 orders --in 2h 'later' --bootstrap-servers broker:9092",
)
def replace(context: Context, id_: Id, all_partitions: Everywhere = False, as_json: AsJson = False) -> None:
    """Replace what is pending under an id. If nothing is, the message is still scheduled."""
    message: MessageOptions = context.obj
    asked, raw = message.asked(), message.raw()
    with client_of(*message.chosen()) as client:
        if all_partitions:
            sent = client.replace_everywhere(id_, message.topic, raw, **asked)[:1]
        else:
            sent = [client.replace(id_, message.topic, raw, **asked)]
    _print_sent(f"replacement of {id_} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(
    cls=_OfCluster, epilog="Example: timer-bridge move reminder-7 --in 2h --bootstrap-servers broker:9092"
)
def move(
    context: Context,
    id_: IdIfAny = None,
    origin: Origin = None,
    in_: In = None,
    at: At = None,
    level: Level = None,
    as_json: AsJson = False,
) -> None:
    """Give what is pending under an id another time. Its receipt tells whether something was."""
    asked = _when(in_, at, level)
    with _client_for(context, id_, origin) as (client, name):
        sent = [client.move(name, **asked)]
    _print_sent(f"move of {id_ or origin} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(
    cls=_OfCluster,
    epilog="Example: timer-bridge release --origin timer.requests/3/4711 --bootstrap-servers broker:9092",
)
def release(context: Context, id_: IdIfAny = None, origin: Origin = None, as_json: AsJson = False) -> None:
    """Release what is pending under an id now."""
    with _client_for(context, id_, origin) as (client, name):
        sent = [client.release(name)]
    _print_sent(f"release of {id_ or origin} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(cls=_OfCluster, epilog="Example: timer-bridge pause orders --bootstrap-servers broker:9092")
def pause(context: Context, topic: Topic, as_json: AsJson = False) -> None:
    """Let timers for a target topic wait when they are due, until `resume`. Cancels and replacements go on."""
    with client_of(*context.obj.chosen()) as client:
        sent = client.pause(topic)
    _print_sent(f"pause of {topic} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(cls=_OfCluster, epilog="Example: timer-bridge resume orders --bootstrap-servers broker:9092")
def resume(context: Context, topic: Topic, as_json: AsJson = False) -> None:
    """Let the timers of a paused topic go on."""
    with client_of(*context.obj.chosen()) as client:
        sent = client.resume(topic)
    _print_sent(f"resumption of {topic} sent to {_places(sent)}", sent, as_json=as_json)


@commands.command(
    cls=_OfCluster, epilog="Example: timer-bridge skip timer.requests 3 4711 --bootstrap-servers broker:9092"
)
def skip(
    context: Context,
    topic: Annotated[str, typer.Argument(help="The timer topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="The record's offset.")],
    as_json: AsJson = False,
) -> None:
    """Reject one record of a timer topic that cannot be decoded, and go on after it."""
    settings, _ = context.obj.chosen()
    known = settings.timer_topics()
    if topic not in known:
        raise SettingsError(f"{topic}: not a timer topic of this bridge, which has {', '.join(known)}: give --config")
    with client_of(settings, topic) as client:
        sent = [client.skip(partition, offset)]
    text = (
        f"skip of {topic}/{partition}/{offset} sent: if it cannot be decoded, the instance that has the partition parks"
        f" it without its contents on {settings.rejected_topic} and goes on"
    )
    _print_sent(text, sent, as_json=as_json)


def _print_sent(text: str, sent: "list[Future[Sent]]", *, as_json: bool) -> None:
    """Print `text`, or as JSON the positions of the acknowledged requests."""
    typer.echo(json.dumps({"sent": [each.result()._asdict() for each in sent]}) if as_json else text)


def _places(sent: "list[Future[Sent]]") -> str:
    return ", ".join(f"{each.result().topic}/{each.result().partition}" for each in sent)


@contextmanager
def _client_for(context: Context, id_: str | None, origin: str | None) -> Iterator[tuple[TimerProducer, str | Sent]]:
    """Yield a producer for the timer that is named by its id or its origin, and that name."""
    settings, timer_topic = context.obj.chosen()
    try:
        sent = None if origin is None else Sent.parse(origin)
    except ValueError as error:
        raise SettingsError(f"--{error}") from error
    name = id_ if sent is None else sent
    if name is None or (id_ is not None and sent is not None):
        raise SettingsError("give an ID or --origin")
    with client_of(settings, timer_topic if sent is None else sent.topic) as client:
        yield client, name


@contextmanager
def client_of(settings: Settings, timer_topic: str) -> Iterator[TimerProducer]:
    """Yield a producer that is flushed at the end. Its ValueErrors become SettingsErrors: the call is to be fixed."""
    servers = {"bootstrap.servers": settings.bootstrap_servers}
    config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **settings.kafka, **servers}
    with TimerProducer(config, timer_topic=timer_topic, control_topic=settings.control_topic) as client:
        try:
            yield client
        except ValueError as error:
            raise SettingsError(str(error)) from error
