"""Options that several commands share: a dataclass is a group, each of its fields an option.

app.command(cls=command_with(ClusterOptions))(cancel)

def cancel(context: Context, id_: Id)      timer-bridge cancel ID --bootstrap-servers ...
                                           context.obj is a ClusterOptions
"""

import os
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand
from typer.main import get_command

from bridge.config.settings import REMOVED, TABLES, Given, Settings, collect, validated
from bridge.errors import SettingsError
from bridge.observe import logs
from kafka_timer.durations import duration_text, parse_duration_ms
from schemas.kafka_settings import PREFIX


def duration_ms(option: str, text: str, least_ms: int) -> int:
    """Return the duration that an option gives, in ms. Raises SettingsError."""
    try:
        ms = parse_duration_ms(text)
    except ValueError as wrong:
        raise SettingsError(f"{option}: {wrong}") from wrong
    if ms < least_ms:
        raise SettingsError(f"{option} is {text}: give {duration_text(least_ms)} or more")
    return ms


def command_with(group: type[Any]) -> type[TyperCommand]:
    """Return the class of a command that also takes the options of `group`."""
    maker = typer.Typer(add_completion=False)
    maker.command()(group)
    options = get_command(maker)

    class Command(TyperCommand):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self.params = [*self.params, *options.params]

        def invoke(self, ctx: Any) -> Any:
            assert options.callback is not None
            ctx.obj = options.callback(**{str(each.name): ctx.params.pop(str(each.name)) for each in options.params})
            return super().invoke(ctx)

    return Command


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The TOML file, and librdkafka's settings."""

    config: Annotated[Path | None, typer.Option("--config", help="A TOML file of settings, such as the bridge's.")] = (
        None
    )
    kafka: Annotated[
        list[str] | None, typer.Option("--kafka", help="A librdkafka setting, name=value; may repeat.")
    ] = None

    def given(self, *, about_topic: bool = False) -> dict[str, Given]:
        """Return the settings of these options, the environment and the file. Raises SettingsError."""
        if any("=" not in pair for pair in self.kafka or []):
            raise SettingsError("--kafka: write name=value")  # without the text, which may be a secret
        flags = {name: value for name, value in vars(self).items() if name in Settings.model_fields or name in REMOVED}
        flags["kafka"] = dict(pairs(self.kafka)) or None
        return collect(flags, os.environ, self.config, about_topic=about_topic)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ConfigOptions):
    """The cluster and the timer topic."""

    bootstrap_servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", envvar=f"{PREFIX}BOOTSTRAP_SERVERS", help="host:port")
    ] = None
    timer_topic: Annotated[
        str | None,
        typer.Option(
            "--timer-topic", envvar=f"{PREFIX}TIMER_TOPIC", help="Topic of requests. (default: timer.requests)"
        ),
    ] = None

    def chosen(self) -> tuple[Settings, str]:
        """Return the settings and the timer topic, and hide secrets in all output. Raises SettingsError."""
        settings = validated(self.given(about_topic=True))
        logs.hide(settings.kafka)
        return settings, self.timer_topic or settings.timer_topic


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _option(name: str, field: FieldInfo) -> Any:
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    shown = f"default: {'none' if default in (None, '') else default}"
    help_ = f"{field.description} ({'required' if field.is_required() else shown})"
    return Annotated[str | None, typer.Option(_flag(name), help=help_, show_default=False)]


RunOptions = make_dataclass(
    "RunOptions",
    [
        *((name, _option(name, field), None) for name, field in Settings.model_fields.items() if name not in TABLES),
        *(
            (name, Annotated[str | None, typer.Option(_flag(name), hidden=True)], None)
            for name in REMOVED
            if "." not in name
        ),
    ],
    bases=(ConfigOptions,),
    frozen=True,
    kw_only=True,
)
"""One option for each setting, and hidden ones for removed settings, which are refused with what to do instead."""


def pairs(given: list[str] | None) -> list[tuple[str, str]]:
    """Parse name=value pairs; order and duplicates are kept. Raises SettingsError."""
    found = []
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SettingsError(f"{pair!r}: write name=value")
        found.append((name, value))
    return found
