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
    """What `send` and `replace` say of the message."""

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
        """As TimerProducer has it. Raises SettingsError."""
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
class Where:
    """Which cluster, and which timer topic there."""

    bootstrap_servers: Servers = None
    timer_topic: TimerTopic = None
    config: Config = None
    kafka: Kafka = None

    def chosen(self) -> tuple[Settings, str]:
        """And which of the timer topics. Raises SettingsError."""
        flags = {**vars(self), "kafka": kafka_settings(self.kafka)}
        settings = load_around({name: flags[name] for name in flags if name != "config"}, os.environ, self.config)
        logs.hide(settings.kafka)
        return settings, self.timer_topic or settings.timer_topic


def register(app: typer.Typer) -> None:
    """Puts the commands on `app`."""
    for command in (send, cancel, replace, move, release, pause, resume, skip):
        app.command()(with_groups(command))


def send(
    request: MessageOptions,
    where: Where,
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
    settings, timer_topic = where.chosen()
    sent: list[Future[Sent]] = []
    with _client(settings, timer_topic) as client:
        for each in values:
            future = client.schedule(request.topic, each, id=id_, **asked)
            sent += [future] if as_json else []
    _tell(f"{len(values)} sent to {timer_topic}", sent, as_json=as_json)


def lines_of(raw: bytes) -> list[bytes]:
    """Lines end with LF, or CR and LF: whatever else ends one somewhere (U+2028 and others) may stand in a message."""
    return [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")] if raw else []


def cancel(id_: Id, where: Where, all_partitions: Everywhere = False, as_json: AsJson = False) -> None:
    """End what is pending under an id. Whether something was, its receipt tells."""
    with _client(*where.chosen()) as client:
        sent = client.cancel_everywhere(id_) if all_partitions else [client.cancel(id_)]
    _tell(f"cancel of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def replace(
    id_: Id, request: MessageOptions, where: Where, all_partitions: Everywhere = False, as_json: AsJson = False
) -> None:
    """Send a message in the place of what is pending under an id; it goes out whether or not something was."""
    asked, raw = request.asked(), request.raw()
    with _client(*where.chosen()) as client:
        if all_partitions:
            sent = client.replace_everywhere(id_, request.topic, raw, **asked)[:1]
        else:
            sent = [client.replace(id_, request.topic, raw, **asked)]
    _tell(f"replacement of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def move(id_: Id, where: Where, in_: In = None, at: At = None, level: Level = None, as_json: AsJson = False) -> None:
    """Give what is pending under an id another time. Whether something was, its receipt tells."""
    if [in_, at, level].count(None) != 2:
        raise SettingsError("give one of --in, --at and --level")
    with _client(*where.chosen()) as client:
        sent = [client.move(id_, at=at, delay=in_, level=level)]
    _tell(f"move of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def release(id_: Id, where: Where, as_json: AsJson = False) -> None:
    """Release what is pending under an id now."""
    with _client(*where.chosen()) as client:
        sent = [client.release(id_)]
    _tell(f"release of {id_} sent to {_places(sent)}", sent, as_json=as_json)


def pause(topic: Topic, where: Where, as_json: AsJson = False) -> None:
    """Let timers of a real topic wait when they are due, until `resume`. Cancels and replacements go on."""
    with _client(*where.chosen()) as client:
        sent = client.pause(topic)
    _tell(f"pause of {topic} sent to {_places(sent)}", sent, as_json=as_json)


def resume(topic: Topic, where: Where, as_json: AsJson = False) -> None:
    """Let the timers of a paused topic go on."""
    with _client(*where.chosen()) as client:
        sent = client.resume(topic)
    _tell(f"resumption of {topic} sent to {_places(sent)}", sent, as_json=as_json)


def skip(
    topic: Annotated[str, typer.Argument(help="The timer topic.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="Of the record.")],
    where: Where,
    as_json: AsJson = False,
) -> None:
    """Park one record of a timer topic that cannot be decoded, and go on behind it."""
    settings, _ = where.chosen()
    if topic not in settings.timer_topics():
        known = ", ".join(settings.timer_topics())
        raise SettingsError(f"{topic}: no timer topic of this bridge, which has {known}: give its --config")
    with _client(settings, topic) as client:
        sent = [client.skip(partition, offset)]
    place, rejected = f"{topic}/{partition}/{offset}", settings.rejected_topic
    told = "if it cannot be decoded, the instance that has the partition parks it without its contents on"
    _tell(f"skip of {place} sent: {told} {rejected} and goes on", sent, as_json=as_json)


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


def _tell(text: str, sent: "list[Future[Sent]]", *, as_json: bool) -> None:
    """All of `sent` are acknowledged."""
    typer.echo(json.dumps({"sent": [each.result()._asdict() for each in sent]}) if as_json else text)


def _places(sent: "list[Future[Sent]]") -> str:
    return ", ".join(f"{each.result().topic}/{each.result().partition}" for each in sent)


@contextmanager
def _client(settings: Settings, timer_topic: str) -> Iterator[TimerProducer]:
    """Its requests are acknowledged when it is left. What it finds wrong in a call is the caller's to mend."""
    where = {"bootstrap.servers": settings.bootstrap_servers}
    config = {"message.timeout.ms": _SEND_TIMEOUT_MS, **settings.kafka, **where}
    with TimerProducer(config, timer_topic=timer_topic, control_topic=settings.control_topic) as client:
        try:
            yield client
        except ValueError as wrong:
            raise SettingsError(str(wrong)) from wrong
