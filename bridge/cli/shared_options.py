"""Options that several commands share: a dataclass is a group, each of its fields an option.

app.command(cls=command_with(ClusterOptions))(cancel)

def cancel(context: Context, id_: Id)      timer-bridge cancel ID --bootstrap-servers ...
                                           context.obj is a ClusterOptions
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer import Option
from typer.core import TyperCommand
from typer.main import get_command

from bridge.config.settings import REMOVED, Given, Settings, collect, validated
from bridge.errors import SettingsError
from bridge.observe import logs
from bridge.partition.options import milliseconds
from kafka_timer.durations import duration_text, parse_duration_ms
from kafka_timer.instants import parse_instant_ms
from schemas.kafka_settings import PREFIX

_GROUP_OF = {
    **dict.fromkeys(("config", "kafka", "bootstrap_servers", "timer_topic"), "Cluster"),
    **dict.fromkeys(("in_", "at", "level", "expire_at"), "When"),
    **dict.fromkeys(("cron", "every", "zone", "until", "count", "missed"), "Again and again"),
}
"""Title of an option's group in the help, by the name of its parameter; others are under Options."""
_PATIENCE_S = 3.0  # a command that waits for a broker says so after this


def _say_if_no_broker(options: "ClusterOptions") -> None:
    servers = str(options.given()["bootstrap_servers"].value)
    for address in servers.split(","):
        host, _, port = address.rpartition(":")
        with suppress(OSError, ValueError), socket.create_connection((host.strip("[] "), int(port)), timeout=1):
            return
    typer.echo(f"waiting for broker at {servers}", err=True)


def duration_ms(option: str, text: str, least_ms: int) -> int:
    """Return the duration that an option gives, in ms. Raises SettingsError."""
    try:
        ms = parse_duration_ms(text)
    except ValueError as wrong:
        raise SettingsError(f"{option}: {wrong}") from wrong
    if ms < least_ms:
        raise SettingsError(f"{option} is {text}: give {duration_text(least_ms)} or more")
    return ms


def instant_ms(option: str, text: str) -> int:
    """Return the instant that an option gives, in epoch ms. Raises SettingsError."""
    try:
        return parse_instant_ms(text)
    except ValueError as wrong:
        raise SettingsError(f"{option}: {wrong}") from wrong


def command_with(group: type[Any]) -> type[TyperCommand]:
    """Return the class of a command that also takes the options of `group`."""
    maker = typer.Typer(add_completion=False)
    maker.command()(group)
    options = get_command(maker)

    class Command(TyperCommand):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.params = [*self.params, *options.params]

        def format_options(self, ctx: Any, formatter: Any) -> None:
            groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
            for each in self.get_params(ctx):
                title = "Arguments" if each.param_type_name == "argument" else _GROUP_OF.get(str(each.name), "Options")
                if record := each.get_help_record(ctx):
                    groups.setdefault(getattr(each, "rich_help_panel", None) or title, []).append(record)
            for title, records in groups.items():
                if records:
                    with formatter.section(title):
                        formatter.write_dl(records)

        def invoke(self, ctx: Any) -> Any:
            assert options.callback is not None
            ctx.obj = options.callback(**{str(each.name): ctx.params.pop(str(each.name)) for each in options.params})
            waiting = threading.Timer(_PATIENCE_S, _say_if_no_broker, [ctx.obj])
            waiting.daemon = True
            if isinstance(ctx.obj, ClusterOptions):  # `run` logs it
                waiting.start()
            try:
                return super().invoke(ctx)
            finally:
                waiting.cancel()

    return Command


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    config: Annotated[Path | None, Option(help="A TOML file of settings, such as the bridge's.")] = None
    kafka: Annotated[list[str] | None, Option(help="A librdkafka setting, name=value; may repeat.")] = None

    def given(self, *, about_topic: bool = False) -> dict[str, Given]:
        """Return the settings of these options, the environment and the file. Raises SettingsError."""
        if any("=" not in pair for pair in self.kafka or []):
            raise SettingsError("--kafka: write name=value")  # without the text, which may be a secret
        flags = {name: value for name, value in vars(self).items() if name in Settings.model_fields or name in REMOVED}
        flags["kafka"] = dict(pairs(self.kafka)) or None
        return collect(flags, os.environ, self.config, about_topic=about_topic)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ConfigOptions):
    bootstrap_servers: Annotated[str | None, Option(envvar=f"{PREFIX}BOOTSTRAP_SERVERS", help="host:port")] = None
    timer_topic: Annotated[str | None, Option(envvar=f"{PREFIX}TIMER_TOPIC", help="(default: timer.requests)")] = None

    def chosen(self) -> tuple[Settings, str]:
        """Return the settings and the timer topic, and hide secrets in all output. Raises SettingsError."""
        settings = validated(self.given(about_topic=True))
        logs.hide(settings.kafka)
        return settings, self.timer_topic or settings.timer_topic


GROUPS = {
    "bootstrap_servers": "Cluster",
    "workers": "Instances and their group",
    "timer_topic": "Topics, policy and limits",
    "max_delay": "Requests",
    "engine": "Store and delivery",
    "adopt_progress": "Start",
    "http_port": "HTTP",
    "page": "Page",
    "log_format": "Logs and clients",
}
"""First setting of each group, and its title."""


def kind_of(name: str, field: FieldInfo) -> str:
    """Return duration, size, int, bool, path, list, table or str, or the choices as a|b."""
    types = [field.annotation, *get_args(field.annotation)]
    if any(getattr(each, "func", None) is milliseconds for each in field.metadata):
        return "duration"
    if choices := [each for each in types if isinstance(each, str)]:
        return "|".join(choices)
    if name.endswith("_bytes"):
        return "size"
    names = {bool: "bool", int: "int", Path: "path", tuple: "list", dict: "table", str: "str"}
    return next(text for type_, text in names.items() if type_ in (*types, get_origin(field.annotation)))


def default_of(field: FieldInfo) -> str:
    """Return the default as a flag has it, or `none` or `required`."""
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    if isinstance(default, bool):
        return "on" if default else "off"
    is_shown = default not in (None, "", PydanticUndefined)
    return str(default) if is_shown else "required" if field.is_required() else "none"


def _options() -> Iterator[tuple[str, Any, None]]:
    group = ""
    for name, field in Settings.model_fields.items():
        group, kind, default = GROUPS.get(name, group), kind_of(name, field), default_of(field)
        help_ = f"{field.description} ({'' if field.is_required() else 'default: '}{default})"
        shown: dict[str, Any] = {"help": help_, "rich_help_panel": group}
        if kind == "bool":
            yield name, Annotated[bool | None, Option(**shown)], None
        elif kind != "table":
            yield name, Annotated[str | None, Option(metavar=f"<{kind}>", **shown)], None
    for name in REMOVED:
        if "." not in name:
            yield name, Annotated[str | None, Option(hidden=True)], None


RunOptions = make_dataclass("RunOptions", _options(), bases=(ConfigOptions,), frozen=True, kw_only=True)
"""One option for each setting, and hidden ones for removed settings, which are refused with what to do instead."""


def pairs(given: list[str] | None) -> list[tuple[str, str]]:
    """Parse name=value pairs; order and duplicates are kept. Raises SettingsError."""
    if wrong := [pair for pair in given or () if "=" not in pair]:
        raise SettingsError(f"{wrong[0]!r}: write name=value")
    return [(name, value) for name, _, value in (pair.partition("=") for pair in given or ())]
