"""`timer-bridge run` and `check-config`: all settings as options, which are made of the fields of `Settings`."""

import logging
from collections.abc import Mapping
from typing import Annotated

import typer
from typer import Option

from bridge.cli import config_report
from bridge.cli.shared_options import RunOptions, command_with
from bridge.config.data_directory import unused_folders
from bridge.config.settings import Given, validated
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
    typer.echo(config_report.report(settings, given))
    if connect or target:
        from bridge.kafka.cluster_check import findings

        typer.echo()
        user = str(given.get("kafka.sasl.username", Given("NAME", "")).value)
        for line in findings(settings, target or [], "NAME" if user.startswith(IN_A_FILE) else user):
            typer.echo(line)
        typer.echo("cluster: a start finds what it needs, as far as was tried")
