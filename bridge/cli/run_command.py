"""`timer-bridge run` and `check-config`: all settings as options, which are made of the fields of `Settings`.

`check-config` lists every setting as `run` would use it, and its source:

    setting               value                                source
    bootstrap_servers     kafka:9092                           environment TIMER_BRIDGE_BOOTSTRAP_SERVERS
    roll_window           2d                                   default
    kafka.sasl.password   (hidden), file:/run/secrets/kafka    file bridge.toml

Librdkafka settings that may be secrets are hidden, and so are the contents of `file:` values.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer
from pydantic import BaseModel
from typer import Option

from bridge.cli.shared_options import RunOptions, command_with
from bridge.config.data_directory import unused_folders
from bridge.config.settings import TABLES, Given, Settings, validated
from bridge.errors import BridgeError, SettingsError, exit_code_of
from bridge.observe import logs
from schemas.kafka_settings import IN_A_FILE

log = logging.getLogger(__name__)
commands = typer.Typer()
_ARGUMENTS = {"allow_extra_args": True}


def _given(context: typer.Context) -> Mapping[str, Given]:
    if context.args:
        raise SettingsError(f"{context.args[0]}: not an option; write a switch without a value: --page or --no-page")
    given: Mapping[str, Given] = context.obj.given()
    return given


@commands.command(
    cls=command_with(RunOptions),
    context_settings=_ARGUMENTS,
    epilog="Example: timer-bridge run --bootstrap-servers broker:9092 --data-dir timer-data --http-port 8321",
)
def run(context: typer.Context) -> None:
    """Run the bridge until SIGTERM or Ctrl-C."""
    from bridge.process import run as run_bridge  # not for check-config
    from bridge.workers.supervisor import supervise

    settings = validated(_given(context))
    logs.configure(settings.log_format, settings.log_level, settings.kafka)
    for folder in unused_folders(settings.data_dir, settings.workers):
        log.warning("%s: no worker uses it; delete it when all partitions have recovered", folder)
    try:
        if settings.workers > 1:
            raise typer.Exit(supervise(settings))
        run_bridge(settings)
    except BridgeError as error:
        if settings.log_format == "json":
            log.critical("%s", error)
        else:
            typer.echo(f"timer-bridge: {logs.redact(str(error))}", err=True)
        raise typer.Exit(exit_code_of(error)) from error


@commands.command(
    "check-config",
    cls=command_with(RunOptions),
    context_settings=_ARGUMENTS,
    epilog="Example: timer-bridge check-config --config bridge.toml --connect",
)
def check_config(
    context: typer.Context,
    connect: Annotated[
        bool, Option("--connect", help="Also check the cluster: rights, topics, group. Changes nothing.")
    ] = False,
    target: Annotated[list[str] | None, Option(help="A target topic to check; implies --connect; may repeat.")] = None,
) -> None:
    """Check settings as `run` does and print each with its source; with --connect, the cluster too. Hide secrets."""
    from bridge.process import check

    given = _given(context)
    settings = validated(given)
    logs.hide(settings.kafka)
    check(settings)
    typer.echo(_report(settings, given))
    if connect or target:
        from bridge.kafka.topics import findings

        typer.echo()
        user = str(given.get("kafka.sasl.username", Given("NAME", "")).value)
        for line in findings(settings, target or [], "NAME" if user.startswith(IN_A_FILE) else user):
            typer.echo(line)
        typer.echo("cluster: a start finds what it needs, as far as was tried")


def _report(settings: Settings, given: Mapping[str, Given]) -> str:
    """Return the lines. given: what the settings were made of, by `collect`."""
    rows = [("setting", "value", "source"), *_rows(settings, given)]
    name_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = (f"{name:{name_width}}  {value:{value_width}}  {source}" for name, value, source in rows)
    return logs.without_secrets("\n".join(lines), settings.kafka)


def _rows(settings: Settings, given: Mapping[str, Given]) -> Iterator[tuple[str, str, str]]:
    for name in [name for name in Settings.model_fields if name not in TABLES]:
        yield name, _shown(settings, name), given[name].source if name in given else "default"
    effective: dict[str, Mapping[str, BaseModel]] = {"topics": settings.timer_topics(), "targets": settings.targets}
    for tables, of_name in effective.items():
        for name, in_file in getattr(settings, tables).items():
            for key in type(in_file).model_fields:
                source = given[tables].source if key in in_file.model_fields_set else "default"
                yield f'{tables}."{name}".{key}', _shown(of_name[name], key), source
    for name, value in sorted(settings.kafka.items()):
        raw, source = given[f"kafka.{name}"]
        is_file = str(raw).startswith(IN_A_FILE)
        shown = f"{logs.HIDDEN}, {raw}" if is_file else logs.HIDDEN if logs.is_secret(name) else value
        yield f"kafka.{name}", shown, source


def _shown(model: BaseModel, name: str) -> str:
    value = getattr(model, name)
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(model.model_dump(include={name})[name])
