"""`timer-bridge send`, `cancel`, `replace`, `move`, `release`, `pause`, `resume`, `skip`: bridge.client as commands."""

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.cli.option_groups import with_groups
from bridge.client import Sent, TimerProducer
from bridge.config.settings import Settings, load_around
from bridge.errors import SettingsError
from bridge.observe import logs
from schemas.kafka_settings import PREFIX

Servers = Annotated[
    str | None, typer.Option("--bootstrap-servers", envvar=f"{PREFIX}BOOTSTRAP_SERVERS", help="host:port")
]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings, the bridge's own for example.")]
TimerTopic = Annotated[
    str | None,
    typer.Option("--timer-topic", envvar=f"{PREFIX}TIMER_TOPIC", help="Where requests go. [default: timer.requests]"),
]
Kafka = Annotated[list[str] | None, typer.Option("--kafka", help="A librdkafka setting, name=value; may repeat.")]
Topic = Annotated[str, typer.Argument(help="The real topic.")]
Value = Annotated[str, typer.Argument(help="The message, or - for standard input.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The timer-id of what is pending.")]
In = Annotated[str | None, typer.Option("--in", help="When: from now, such as 5s or 2h30m.")]
At = Annotated[str | None, typer.Option("--at", help="When: ISO 8601 with a zone, or epoch ms.")]
Level = Annotated[int | None, typer.Option("--level", help="When: a delay level, such as 3 for 10 s.")]
Key = Annotated[str | None, typer.Option("--key", help="The record's key.")]
Partition = Annotated[int | None, typer.Option("--partition", help="The real topic's, if the key is not to choose.")]
Expire = Annotated[str | None, typer.Option("--expire-at", help="From when on it is not delivered: as --at.")]
HeaderPairs = Annotated[list[str] | None, typer.Option("-H", "--header", help="name=value; may repeat.")]
Everywhere = Annotated[
    bool,
    typer.Option("--all-partitions", help="Where the timer's partition was not chosen by its id (murmur2)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Where each request was acknowledged, as JSON.")]
_SEND_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class MessageOptions:
    """The message of `send` and `replace`."""

    topic: Topic
    value: Value
    in_: In = None
    at: At = None
    level: Level = None
    key: Key = None
    partition: Partition = None
    expire_at: Expire = None
    header: HeaderPairs = None

    def raw(self) -> bytes:
        return sys.stdin.buffer.read() if self.value == "-" else self.value.encode(errors="surrogateescape")

    def asked(self) -> dict[str, Any]:
        """Return the arguments of TimerProducer. Raises SettingsError."""
        if [self.in_, self.at, self.level].count(None) != 2:
            raise SettingsError("give one of --in, --at and --level")
        return {
            "delay": self.in_,
            "at": self.at,
            "level": self.level,
            "key": self.key,
            "partition": self.partition,
            "expire_at": self.expire_at,
            "headers": pairs(self.header),
        }


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster and the timer topic."""

    bootstrap_servers: Servers = None
    timer_topic: TimerTopic = None
    config: Config = None
    kafka: Kafka = None

    def chosen(self) -> tuple[Settings, str]:
        """Return the settings and the timer topic. Raises SettingsError."""
        flags = {**vars(self), "kafka": kafka_settings(self.kafka)}
        settings = load_around({name: flags[name] for name in flags if name != "config"}, os.environ, self.config)
        logs.hide(settings.kafka)
        return settings, self.timer_topic or settings.timer_topic


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (send, cancel, replace, move, release, pause, resume, skip):
        app.command()(with_groups(command))


def send(
    request: MessageOptions,
    cluster: ClusterOptions,
    id_: Annotated[
        str | None, typer.Option("--id", help="For cancel and replace; ends what is pending under it.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send a message, or each line of one, to be delivered later."""
    if lines and id_ is not None:
        raise SettingsError("--id with --lines: each line would replace the one before it; leave one of them out")
    asked, raw = request.asked(), request.raw()
    values = lines_of(raw) if lines else [raw]
    settings, timer_topic = cluster.chosen()
    sent: list[Future[Sent]] = []
    with _client(settings, timer_topic) as client:
        for each in values:
            future = client.schedule(request.topic, each, id=id_, **asked)
            sent += [future] if as_json else []
    _print_sent(f"{len(values)} sent to {timer_topic}", sent, as_json=as_json)


def lines_of(raw: bytes) -> list[bytes]:
    """Split at LF and CR LF only: other line ends (U+2028 and others) may be part of a message."""
    return [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")] if raw else []


def cancel(id_: Id, cluster: ClusterOptions, all_partitions: Everywhere = False, as_json: AsJson = False) -> None:
    """End what is pending under an id. Whether something was, its receipt tells."""
    with _client(*cluster.chosen()) as client:
        sent = client.cancel_everywhere(id_) if all_partitions else [client.cancel(id_)]
    _print_sent(f"cancel of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def replace(
    id_: Id,
    request: MessageOptions,
    cluster: ClusterOptions,
    all_partitions: Everywhere = False,
    as_json: AsJson = False,
) -> None:
    """Send a message in the place of what is pending under an id; it goes out whether or not something was."""
    asked, raw = request.asked(), request.raw()
    with _client(*cluster.chosen()) as client:
        if all_partitions:
            sent = client.replace_everywhere(id_, request.topic, raw, **asked)[:1]
        else:
            sent = [client.replace(id_, request.topic, raw, **asked)]
    _print_sent(f"replacement of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def move(
    id_: Id, cluster: ClusterOptions, in_: In = None, at: At = None, level: Level = None, as_json: AsJson = False
) -> None:
    """Give what is pending under an id another time. Whether something was, its receipt tells."""
    if [in_, at, level].count(None) != 2:
        raise SettingsError("give one of --in, --at and --level")
    with _client(*cluster.chosen()) as client:
        sent = [client.move(id_, at=at, delay=in_, level=level)]
    _print_sent(f"move of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def release(id_: Id, cluster: ClusterOptions, as_json: AsJson = False) -> None:
    """Release what is pending under an id now."""
    with _client(*cluster.chosen()) as client:
        sent = [client.release(id_)]
    _print_sent(f"release of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def pause(topic: Topic, cluster: ClusterOptions, as_json: AsJson = False) -> None:
    """Let timers of a real topic wait when they are due, until `resume`. Cancels and replacements go on."""
    with _client(*cluster.chosen()) as client:
        sent = client.pause(topic)
    _print_sent(f"pause of {topic} sent to {_places(sent)}", sent, as_json=as_json)


def resume(topic: Topic, cluster: ClusterOptions, as_json: AsJson = False) -> None:
    """Let the timers of a paused topic go on."""
    with _client(*cluster.chosen()) as client:
        sent = client.resume(topic)
    _print_sent(f"resumption of {topic} sent to {_places(sent)}", sent, as_json=as_json)


def skip(
    topic: Annotated[str, typer.Argument(help="The timer topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="Of the record.")],
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """Park one record of a timer topic that cannot be decoded, and go on behind it."""
    settings, _ = cluster.chosen()
    if topic not in settings.timer_topics():
        known = ", ".join(settings.timer_topics())
        raise SettingsError(f"{topic}: no timer topic of this bridge, which has {known}: give its --config")
    with _client(settings, topic) as client:
        sent = [client.skip(partition, offset)]
    text = (
        f"skip of {topic}/{partition}/{offset} sent: if it cannot be decoded, the instance that has the partition parks"
        f" it without its contents on {settings.rejected_topic} and goes on"
    )
    _print_sent(text, sent, as_json=as_json)


def pairs(given: list[str] | None) -> list[tuple[str, str]]:
    """Parse name=value pairs; order and duplicates are kept. Raises SettingsError."""
    found = []
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"{pair!r}: write name=value")
        found.append((name, value))
    return found


def kafka_settings(given: list[str] | None) -> dict[str, str] | None:
    """Parse `--kafka`. Raises SettingsError without the text, which may be a secret."""
    if any("=" not in pair for pair in given or []):
        raise SettingsError("--kafka: write name=value")
    return dict(pairs(given)) or None


def _print_sent(text: str, sent: "list[Future[Sent]]", *, as_json: bool) -> None:
    """Print `text`, or as JSON the positions of the acknowledged requests."""
    typer.echo(json.dumps({"sent": [each.result()._asdict() for each in sent]}) if as_json else text)


def _places(sent: "list[Future[Sent]]") -> str:
    return ", ".join(f"{each.result().topic}/{each.result().partition}" for each in sent)


@contextmanager
def _client(settings: Settings, timer_topic: str) -> Iterator[TimerProducer]:
    """Yield a producer that is flushed at the end. Its ValueErrors become SettingsErrors: the call is to be fixed."""
    servers = {"bootstrap.servers": settings.bootstrap_servers}
    config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **settings.kafka, **servers}
    with TimerProducer(config, timer_topic=timer_topic, control_topic=settings.control_topic) as client:
        try:
            yield client
        except ValueError as error:
            raise SettingsError(str(error)) from error
