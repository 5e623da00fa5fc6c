"""kafka_timer as commands: `send`, `cancel`, `pause` and others. `next` shows times of a rule, without Kafka."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoOutcomeError
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from typer import Argument, Context, Option

from bridge.cli.output import visible
from bridge.cli.shared_options import ClusterOptions, command_with, duration_ms, instant_ms, pairs
from bridge.config.settings import Settings
from bridge.errors import SettingsError
from bridge.partition.options import instant_text
from kafka_timer import Outcomes, Repeat, Sent, TimerOperator
from kafka_timer.durations import duration_text
from kafka_timer.headers import DELIVER_MS, ERROR, ERROR_DETAIL, RELEASED_MS, decoded_headers, recurrence_of
from schemas.receipts import printable
from schemas.recurrence import Occurrence, due_times, problem_of

Topic = Annotated[str, Argument(help="The target topic.")]
Id = Annotated[str, Argument(metavar="ID", help="The timer-id of what is pending.")]
In = Annotated[str | None, Option("--in", help="From now, such as 5s or 2h30m.")]
At = Annotated[str | None, Option("--at", help="ISO 8601 with a zone, or epoch ms.")]
Level = Annotated[int | None, Option("--level", help="A delay level, such as 3 for 10 s.")]
Cron = Annotated[str | None, Option("--cron", help="Five fields, such as 0 9 * * *.")]
Every = Annotated[str | None, Option("--every", help="An interval, such as 15m.")]
Zone = Annotated[str | None, Option("--zone", help="Time zone of --cron, such as Europe/Berlin.")]
Until = Annotated[str | None, Option("--until", help="No occurrence is due later: ISO 8601 with a zone, or epoch ms.")]
Count = Annotated[int | None, Option("--count", help="Occurrences at most.")]
Everywhere = Annotated[
    bool, Option("--all-partitions", help="If the timer's partition was not chosen by its id (murmur2).")
]
Name = str | Sent
_SEND_TIMEOUT_MS = 30_000
_POLL_S = 0.5

commands = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ClusterOptions):
    as_json: Annotated[
        bool, Option("--json", help="Print JSON: positions of acknowledged requests, outcomes, or records read.")
    ] = False

    def print_sent(self, what: str, sent: "list[Future[Sent]]", tail: str | None = None) -> None:
        """Print what was sent, by default with the partitions as its tail. As JSON: the positions of the requests."""
        results = [each.result() for each in sent]
        places = " to " + ", ".join(f"{each.topic}/{each.partition}" for each in results)
        positions = {"sent": [each._asdict() for each in results]}
        typer.echo(json.dumps(positions) if self.as_json else f"{what} sent{places if tail is None else tail}")


@dataclass(frozen=True, kw_only=True)
class OutcomeOptions(RequestOptions):
    wait: Annotated[
        bool, Option("--wait", help="Wait for the outcome. Exit code 4: not what was asked for; 5: none in time.")
    ] = False
    timeout: Annotated[str, Option(help="The longest --wait.")] = "1m"

    def client(self, settings: Settings, timer_topic: str, *targets: str) -> AbstractContextManager[TimerOperator]:
        duration_ms("--timeout", self.timeout, 1)
        return client_of(settings, timer_topic, targets if self.wait else None)

    def report(
        self, client: TimerOperator, expected: str, what: str, sent: "list[Future[Sent]]", tail: str | None = None
    ) -> None:
        """Print what was sent or, with --wait, what became of it. See `print_sent`.

        One of several requests about an id has to find the timer. Raises typer.Exit: 5 if an outcome is missing, 4 if
        it is not as `expected`.
        """
        client.flush()
        if not self.wait:
            self.print_sent(what, sent, tail)
            return
        ask, enough = (client.outcome, all) if expected == "delivered" else (client.answer, any)
        futures = [ask(each.result()) for each in sent]
        end_s, states = time.monotonic() + duration_ms("--timeout", self.timeout, 1) / 1000, []
        for future in futures:
            try:
                outcome = future.result(max(0.0, end_s - time.monotonic()))
            except NoOutcomeError:
                typer.echo(f"no outcome within {self.timeout}: the timer is pending, or no bridge runs", err=True)
                raise typer.Exit(5) from None
            states.append(outcome.state)
            text = "".join(f": {each}" for each in (outcome.code, outcome.detail) if each)
            if outcome.state == "delivered" and outcome.due_ms is not None:
                text = f", {duration_text(outcome.at_ms - outcome.due_ms)} late"
            typer.echo(json.dumps({"outcome": outcome._asdict()}) if self.as_json else f"{outcome.state}{text}")
        if expected == "replaced":  # in another partition, a cancel has ended it
            states = [expected if state == "cancelled" else state for state in states]
        if not enough(state == expected for state in states):
            raise typer.Exit(4)


@dataclass(frozen=True, kw_only=True)
class TimerOptions(OutcomeOptions):
    id_: Annotated[str | None, Argument(metavar="[ID]", help="The timer-id of what is pending.")] = None
    origin: Annotated[str | None, Option(help="Instead of an ID: topic/partition/offset of the timer's request.")] = (
        None
    )

    def change(self, what: str, expected: str, send: "Callable[[TimerOperator, Name], list[Future[Sent]]]") -> None:
        """Send requests about the timer, which `send` gets by name, and report them. Raises SettingsError."""
        settings, timer_topic = self.chosen()
        try:
            sent = None if self.origin is None else Sent.parse(self.origin)
        except ValueError as error:
            raise SettingsError(f"--{error}") from error
        name = self.id_ if sent is None else sent
        if name is None or (self.id_ is not None and sent is not None):
            raise SettingsError("give an ID or --origin")
        with self.client(settings, timer_topic if sent is None else sent.topic) as client:
            self.report(client, expected, f"{what} of {self.id_ or self.origin}", send(client, name))


@dataclass(frozen=True, kw_only=True)
class PauseOptions(TimerOptions):
    id_: Annotated[str | None, Option("--id", help="One timer: its timer-id.")] = None
    topic: Annotated[str | None, Argument(metavar="[TOPIC]", help="The target topic.")] = None

    def switch(self, *, on: bool) -> None:
        """Pause (`on`) or resume the topic or the timer, and report it. Raises SettingsError."""
        what, expected = ("pause", "paused") if on else ("resumption", "resumed")
        if [self.topic, self.id_, self.origin].count(None) != 2:
            raise SettingsError("give one of TOPIC, --id and --origin")
        if self.topic is None:
            self.change(
                what, expected, lambda client, name: [client.pause_timer(name) if on else client.resume_timer(name)]
            )
            return
        if self.wait:
            raise SettingsError("--wait: only a single timer has an outcome: leave it out")
        with client_of(*self.chosen()) as client:
            sent = client.pause(self.topic) if on else client.resume(self.topic)
        self.print_sent(f"{what} of {self.topic}", sent)


@dataclass(frozen=True, kw_only=True)
class MessageOptions(OutcomeOptions):
    topic: Topic
    value: Annotated[str, Argument(help="The message, or - for standard input.")]
    in_: In = None
    at: At = None
    level: Level = None
    key: Annotated[str | None, Option(help="The record's key.")] = None
    partition: Annotated[int | None, Option(help="Partition of the target topic; by default the key chooses.")] = None
    expire_at: Annotated[str | None, Option(help="Reject it from this time on: as --at.")] = None
    cron: Cron = None
    every: Every = None
    zone: Zone = None
    until: Until = None
    count: Count = None
    missed: Annotated[str | None, Option(help="Of those missed in downtime: one (default), all or none.")] = None
    header: Annotated[list[str] | None, Option("-H", "--header", help="name=value; may repeat.")] = None

    def raw(self) -> bytes:
        return sys.stdin.buffer.read() if self.value == "-" else self.value.encode(errors="surrogateescape")

    def asked(self) -> dict[str, Any]:
        """Return the arguments of TimerProducer. Raises SettingsError."""
        if self.every is not None:
            duration_ms("--every", self.every, 1)
        for option, text in (("--expire-at", self.expire_at), ("--until", self.until)):
            if text is not None:
                instant_ms(option, text)
        rule = {name: getattr(self, name) for name in ("cron", "every", "zone", "until", "count", "missed")}
        repeat = None if all(value is None for value in rule.values()) else Repeat(**rule)
        has_time = repeat is None or [self.in_, self.at, self.level].count(None) < 3
        when = _when(self.in_, self.at, self.level) if has_time else {}
        more = {"key": self.key, "partition": self.partition, "expire_at": self.expire_at, "repeat": repeat}
        return {**when, **more, "headers": pairs(self.header)}


def _when(in_: str | None, at: str | None, level: int | None) -> dict[str, Any]:
    if [in_, at, level].count(None) != 2:
        raise SettingsError("give one of --in, --at and --level")
    if in_ is not None:
        duration_ms("--in", in_, 0)
    if at is not None:
        instant_ms("--at", at)
    return {"delay": in_, "at": at, "level": level}


_WithMessage, _OfTimer, _OfEither = map(command_with, (MessageOptions, TimerOptions, PauseOptions))
_OfTopic = command_with(RequestOptions)
_SERVERS = "--bootstrap-servers broker:9092"


@commands.command(cls=_WithMessage, epilog=f"Example: timer-bridge send orders --in 5s 'hello' {_SERVERS}")
def send(
    context: Context,
    id_: Annotated[str | None, Option("--id", help="For cancel and replace; ends what is pending under it.")] = None,
    lines: Annotated[bool, Option("--lines", help="Each line is a message.")] = False,
) -> None:
    """Send a message, or each line of one, to be delivered later."""
    if lines and id_ is not None:
        raise SettingsError("--id with --lines: each line would replace the one before it; leave one of them out")
    message: MessageOptions = context.obj
    asked, raw = message.asked(), message.raw()
    values = lines_of(raw) if lines else [raw]
    settings, timer_topic = message.chosen()
    sent: list[Future[Sent]] = []
    with message.client(settings, timer_topic, message.topic) as client:
        for each in values:
            future = client.schedule(message.topic, each, id=id_, **asked)
            sent += [future] if message.as_json or message.wait else []
        message.report(client, "delivered", str(len(values)), sent, f" to {timer_topic}")


@commands.command(cls=_OfTopic, epilog=f"Example: timer-bridge read orders --from-beginning --count 1 {_SERVERS}")
def read(
    context: Context,
    topic: Topic,
    count: Annotated[int | None, Option(min=1, help="End after so many records; by default at Ctrl-C.")] = None,
    from_beginning: Annotated[bool, Option("--from-beginning", help="Also what the topic has already.")] = False,
) -> None:
    """Show the records of a topic: position, lateness or refusal, key and value. Only committed ones."""
    from kafka_timer.kafka_client import polled, topic_consumer

    options, (settings, _) = context.obj, context.obj.chosen()
    source = topic_consumer(config_of(settings), [topic], from_beginning=from_beginning)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts a background command with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    typer.echo(f"reading {topic}; Ctrl-C ends it", err=True)
    with closing(source) as consumer, suppress(KeyboardInterrupt):
        for message in islice(filter(None, iter(lambda: polled(consumer, _POLL_S), ())), count):
            typer.echo(_record_text(message, as_json=options.as_json))


def _record_text(message: Any, *, as_json: bool) -> str:
    """Return one line; bytes that are not UTF-8 are written as \\xNN. JSON has all headers."""
    key, value = (None if raw is None else printable(raw) for raw in (message.key(), message.value()))
    headers = {name: None if raw is None else printable(raw) for name, raw in decoded_headers(message)}
    place, late_ms = Sent(message.topic(), message.partition(), message.offset()), None
    with suppress(KeyError, ValueError):  # not delivered by a bridge
        late_ms = int(headers[RELEASED_MS] or "") - int(headers[DELIVER_MS] or "")
    if as_json:
        return json.dumps({**place._asdict(), "late_ms": late_ms, "key": key, "value": value, "headers": headers})
    words = ["/".join(map(str, place)), *([] if late_ms is None else [f"{duration_text(late_ms)} late"])]
    words += [f"{headers[ERROR]}: {headers.get(ERROR_DETAIL)}"] if ERROR in headers else []
    words += [] if key is None else [f"key {key}"]
    return visible("  ".join([*words, "null" if value is None else value]))


def lines_of(raw: bytes) -> list[bytes]:
    """Split at LF and CR LF only: other line ends (U+2028 and others) may be part of a message."""
    return [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")] if raw else []


@commands.command(cls=_OfTimer, epilog=f"Example: timer-bridge cancel reminder-7 {_SERVERS}")
def cancel(context: Context, all_partitions: Everywhere = False) -> None:
    """End what is pending under an id. Its receipt tells whether something was."""

    def send_all(client: TimerOperator, name: Name) -> "list[Future[Sent]]":
        if not all_partitions:
            return [client.cancel(name)]
        if isinstance(name, Sent):
            raise SettingsError("--all-partitions with --origin: an origin has one partition; leave one of them out")
        return client.cancel_everywhere(name)

    context.obj.change("cancel", "cancelled", send_all)


@commands.command(
    cls=_WithMessage, epilog=f"Example: timer-bridge replace reminder-7 orders --in 2h 'later' {_SERVERS}"
)
def replace(context: Context, id_: Id, all_partitions: Everywhere = False) -> None:
    """Replace what is pending under an id. If nothing is, the message is still scheduled."""
    message: MessageOptions = context.obj
    asked, raw = message.asked(), message.raw()
    with message.client(*message.chosen()) as client:
        if all_partitions:
            replacement, *cancels = client.replace_everywhere(id_, message.topic, raw, **asked)
            sent = [replacement, *cancels] if message.wait else [replacement]  # any of them may find the timer
        else:
            sent = [client.replace(id_, message.topic, raw, **asked)]
        message.report(client, "replaced", f"replacement of {id_}", sent)


@commands.command(cls=_OfTimer, epilog=f"Example: timer-bridge move reminder-7 --in 2h {_SERVERS}")
def move(context: Context, in_: In = None, at: At = None, level: Level = None) -> None:
    """Give what is pending under an id another time. Its receipt tells whether something was."""
    asked = _when(in_, at, level)
    context.obj.change("move", "moved", lambda client, name: [client.move(name, **asked)])


@commands.command(cls=_OfTimer, epilog=f"Example: timer-bridge release --origin timer.requests/3/4711 {_SERVERS}")
def release(context: Context) -> None:
    """Release what is pending under an id now."""
    context.obj.change("release", "moved", lambda client, name: [client.release(name)])


@commands.command(cls=_OfEither, epilog=f"Example: timer-bridge pause orders {_SERVERS}")
def pause(context: Context) -> None:
    """Let one timer, or all due ones for a target topic, wait until `resume`. Cancels and replacements go on."""
    context.obj.switch(on=True)


@commands.command(cls=_OfEither, epilog=f"Example: timer-bridge resume --id reminder-7 {_SERVERS}")
def resume(context: Context) -> None:
    """Resume a paused timer or the timers of a paused topic. Overdue timers leave at once."""
    context.obj.switch(on=False)


@commands.command(cls=_OfTopic, epilog=f"Example: timer-bridge skip timer.requests 3 4711 {_SERVERS}")
def skip(
    context: Context,
    topic: Annotated[str, Argument(help="The timer topic.")],
    partition: Annotated[int, Argument(help="Its partition.")],
    offset: Annotated[int, Argument(help="The record's offset.")],
) -> None:
    """Reject one record of a timer topic that cannot be decoded, and go on after it."""
    settings, _ = context.obj.chosen()
    known = settings.timer_topics()
    if topic not in known:
        raise SettingsError(f"{topic}: not a timer topic of this bridge, which has {', '.join(known)}: give --config")
    with client_of(settings, topic) as client:
        sent = [client.skip(partition, offset)]
    context.obj.print_sent(
        f"skip of {topic}/{partition}/{offset}",
        sent,
        ": if it cannot be decoded, the instance that has the partition rejects it without its contents on"
        f" {settings.rejected_topic} and goes on",
    )


@commands.command("next", epilog="Example: timer-bridge next --cron '0 9 * * MON-FRI' --zone Europe/Berlin")
def next_times(
    cron: Cron = None, every: Every = None, zone: Zone = None, until: Until = None, count: Count = None
) -> None:
    """Show the next five times of a rule, in its time zone and in UTC."""
    if every is not None:
        duration_ms("--every", every, 1)
    now_ms = time.time_ns() // 1_000_000
    try:
        rule = recurrence_of(dict(Repeat(cron=cron, every=every, zone=zone, until=until, count=count).headers()))
    except ValueError as wrong:
        raise SettingsError(str(wrong)) from wrong
    if rule is None:
        raise SettingsError("give --cron or --every")
    if (problem := problem_of(rule, now_ms, now_ms, 0)) is not None:
        raise SettingsError(problem.detail)
    first_ms = now_ms + rule.every_ms
    for due_ms in due_times(Occurrence(rule, 0 if rule.needs_first else 1, first_ms, first_ms)):
        local = datetime.fromtimestamp(due_ms / 1000, ZoneInfo(rule.zone)).isoformat(timespec="seconds")
        typer.echo(f"{local}  {instant_text(due_ms)}")


@contextmanager
def client_of(settings: Settings, timer_topic: str, follow: Sequence[str] | None = None) -> Iterator[TimerOperator]:
    """Yield a producer that is flushed at the end. Its ValueErrors become SettingsErrors: the call is to be fixed.

    follow: target topics; None: no outcomes are followed.
    """
    config, outcomes = config_of(settings), None
    if follow is not None:
        receipts = None if settings.receipts == "none" else settings.receipts_topic
        rejected = settings.rejected_topic
        outcomes = Outcomes(config, receipts_topic=receipts, rejected_topic=rejected, targets=follow)
    topic = settings.control_topic
    with TimerOperator(config, timer_topic=timer_topic, control_topic=topic, outcomes=outcomes) as client:
        try:
            yield client
        except ValueError as error:
            raise SettingsError(str(error)) from error


def config_of(settings: Settings) -> dict[str, Any]:
    servers = {"bootstrap.servers": settings.bootstrap_servers}
    return {"message.timeout.ms": _SEND_TIMEOUT_MS, **settings.kafka, **servers}
