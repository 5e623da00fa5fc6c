"""`timer-bridge send`, `cancel` and `replace`: bridge.client on the command line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.client import TimerProducer
from bridge.errors import SettingsError
from bridge.settings import PREFIX, Settings, load

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
HeaderPairs = Annotated[list[str] | None, typer.Option("-H", "--header", help="name=value; may repeat.")]
Everywhere = Annotated[
    bool,
    typer.Option("--all-partitions", help="Where the timer's partition was not chosen by its id (murmur2)."),
]
_SEND_TIMEOUT_MS = 30_000


def register(app: typer.Typer) -> None:
    """Puts the commands on `app`."""
    for command in (send, cancel, replace):
        app.command()(command)


def send(
    topic: Topic,
    value: Value,
    bootstrap_servers: Servers = None,
    in_: In = None,
    at: At = None,
    level: Level = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="For cancel and replace; ends what is pending under it.")
    ] = None,
    key: Key = None,
    partition: Partition = None,
    header: HeaderPairs = None,
    timer_topic: TimerTopic = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message.")] = False,
    config: Config = None,
    kafka: Kafka = None,
) -> None:
    """Send a message, or each line of one, to be delivered later."""
    if lines and id_ is not None:
        raise SettingsError("--id with --lines: each line would replace the one before it; leave one of them out")
    text = _text(value)
    values = text.splitlines() if lines else [text]
    asked = _asked(in_, at, level, key, partition, header)
    settings = _settings(bootstrap_servers, timer_topic, config, kafka)
    with _client(settings) as client:
        for each in values:
            client.schedule(topic, each, id=id_, **asked)
    typer.echo(f"{len(values)} sent to {settings.timer_topic}")


def cancel(
    id_: Id,
    bootstrap_servers: Servers = None,
    all_partitions: Everywhere = False,
    timer_topic: TimerTopic = None,
    config: Config = None,
    kafka: Kafka = None,
) -> None:
    """End what is pending under an id. Whether something was, its receipt tells."""
    settings = _settings(bootstrap_servers, timer_topic, config, kafka)
    with _client(settings) as client:
        sent = client.cancel_everywhere(id_) if all_partitions else [client.cancel(id_)]
    typer.echo(f"cancel of {id_} sent to {_places(settings.timer_topic, [each.result().partition for each in sent])}")


def replace(
    id_: Id,
    topic: Topic,
    value: Value,
    bootstrap_servers: Servers = None,
    in_: In = None,
    at: At = None,
    level: Level = None,
    key: Key = None,
    partition: Partition = None,
    header: HeaderPairs = None,
    all_partitions: Everywhere = False,
    timer_topic: TimerTopic = None,
    config: Config = None,
    kafka: Kafka = None,
) -> None:
    """Send a message in the place of what is pending under an id; it goes out whether or not something was."""
    asked = _asked(in_, at, level, key, partition, header)
    text = _text(value)
    settings = _settings(bootstrap_servers, timer_topic, config, kafka)
    with _client(settings) as client:
        if all_partitions:
            client.cancel_everywhere(id_)
        sent = client.replace(id_, topic, text, **asked)
    typer.echo(f"replacement of {id_} sent to {_places(settings.timer_topic, [sent.result().partition])}")


def pairs(given: list[str] | None) -> list[tuple[str, str]]:
    """name=value, in order, doubles too. Raises SettingsError."""
    found = []
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"{pair!r}: write name=value")
        found.append((name, value))
    return found


def kafka_settings(given: list[str] | None) -> dict[str, str] | None:
    """librdkafka's, as `--kafka` has them. Raises SettingsError without the text, which may be a secret."""
    if any("=" not in pair for pair in given or []):
        raise SettingsError("--kafka: write name=value")
    return dict(pairs(given)) or None


def _asked(
    in_: str | None,
    at: str | None,
    level: int | None,
    key: str | None,
    partition: int | None,
    header: list[str] | None,
) -> dict[str, Any]:
    if [in_, at, level].count(None) != 2:
        raise SettingsError("give one of --in, --at and --level")
    return {
        "delay": in_,
        "at": at,
        "level": level,
        "key": key,
        "partition": partition,
        "headers": pairs(header),
    }


def _text(value: str) -> str:
    return sys.stdin.read() if value == "-" else value


def _places(topic: str, partitions: list[int]) -> str:
    return ", ".join(f"{topic}/{number}" for number in partitions)


def _settings(
    bootstrap_servers: str | None, timer_topic: str | None, config: Path | None, kafka: list[str] | None
) -> Settings:
    flags = {"bootstrap_servers": bootstrap_servers, "timer_topic": timer_topic, "kafka": kafka_settings(kafka)}
    return load(flags, os.environ, config)


@contextmanager
def _client(settings: Settings) -> Iterator[TimerProducer]:
    """Its requests are acknowledged when it is left. What it finds wrong in a call is the caller's to mend."""
    where = {"bootstrap.servers": settings.bootstrap_servers}
    config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **settings.kafka, **where}
    with TimerProducer(config, timer_topic=settings.timer_topic) as client:
        try:
            yield client
        except ValueError as wrong:
            raise SettingsError(str(wrong)) from wrong
