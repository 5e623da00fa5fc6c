"""`timer-bridge`: the commands. Exit codes: 0 well, 1 trouble outside, 2 a wrong setting or call, 3 a bad audit.

`run` has one option for each field of `Settings`; there is no second list of them.
"""

import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge import config_report, logs
from bridge.client_commands import kafka_settings
from bridge.client_commands import register as register_client_commands
from bridge.embedded import EmbeddedKafka
from bridge.errors import BridgeError
from bridge.pending_command import register as register_pending_command
from bridge.redrive_commands import register as register_redrive
from bridge.settings import Layers, Settings, load
from bridge.store_commands import register as register_store_commands
from bridge.token_file import new_token

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=__doc__)
register_client_commands(app)
register_pending_command(app)
register_store_commands(app)
register_redrive(app)


def main() -> None:
    """The console script: errors of ours become one line and an exit code."""
    logs.configure()
    try:
        app()
    except BridgeError as wrong:
        print(f"timer-bridge: {logs.discreet(str(wrong))}", file=sys.stderr)  # noqa: T201
        sys.exit(wrong.exit_code)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  (typer's way)
    if wanted:
        typer.echo(f"timer-bridge {installed_version('kafka-timer-bridge')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and end.")
    ] = False,
) -> None:
    """Delayed messages for an existing Kafka."""


def _with_settings(function: Callable[[Settings, Layers], None]) -> Callable[..., None]:
    """`function(settings, layers)` as a command with an option for each setting, and --config."""
    config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
    parameters = [_parameter("config", config)]
    for name, field in Settings.model_fields.items():
        if name not in ("kafka", "topics", "targets"):  # tables of the config
            default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
            shown = f"default: {'none' if default in (None, '') else default}"
            help_ = f"{field.description} [{'required' if field.is_required() else shown}]"
            option = typer.Option(f"--{name.replace('_', '-')}", help=help_, show_default=False)
            parameters.append(_parameter(name, Annotated[str | None, option]))
    kafka = Annotated[list[str] | None, typer.Option("--kafka", help="A librdkafka setting, name=value; may repeat.")]
    parameters.append(_parameter("kafka", kafka))

    def command(**given: Any) -> None:
        file = given.pop("config")
        given["kafka"] = kafka_settings(given.pop("kafka"))
        layers = Layers(given, os.environ, file)
        function(load(*layers), layers)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@app.command()
@_with_settings
def run(settings: Settings, _: Layers) -> None:
    """Run the bridge until SIGTERM or Ctrl-C."""
    from bridge.run import run as run_bridge

    logs.configure(settings.log_format, settings.log_level, settings.kafka)
    try:
        run_bridge(settings)
    except BridgeError as wrong:
        if settings.log_format == "json":
            log.critical("%s", wrong)
        else:
            typer.echo(f"timer-bridge: {logs.discreet(str(wrong))}", err=True)
        raise typer.Exit(wrong.exit_code) from wrong


@app.command("check-config")
@_with_settings
def check_config(settings: Settings, layers: Layers) -> None:
    """Check settings as `run` does, without a broker, and print each with its source. Secrets are hidden."""
    logs.hide(settings.kafka)
    config_report.check(settings)
    typer.echo(config_report.report(settings, layers))


@app.command()
def token(name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: for the audit log.")]) -> None:
    """Make a token for the page and its API, and the line of a tokens file, which holds only its hash."""
    made, line = new_token(name)
    typer.echo(f"token, shown only now, for the login and --token-file: {made}")
    typer.echo(f"line for page_operator_tokens or page_read_tokens: {line}")


@app.command()
def dev(
    folder: Annotated[Path, typer.Option(help="Where its data lies.")] = Path(".run/dev-kafka"),
    port: Annotated[int, typer.Option(help="On 127.0.0.1.")] = 9092,
    topic: Annotated[list[str] | None, typer.Option(help="A topic to make if it is not there; may repeat.")] = None,
) -> None:
    """An embedded single-node Kafka for development, until Ctrl-C.

    Not for production: one broker, no replication, no security, bound to loopback.
    """
    with EmbeddedKafka(folder, port=port) as kafka:
        if topic:
            _make_topics(kafka.bootstrap_servers, topic)
        typer.echo(f"Kafka is ready at {kafka.bootstrap_servers}; Ctrl-C ends it")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            typer.echo("ending")


def _make_topics(bootstrap_servers: str, names: list[str]) -> None:
    """Of one partition each."""
    from bridge.confluent import ConfluentTopics, Patience
    from bridge.connection import Connection

    topics = ConfluentTopics(Connection(bootstrap_servers), Patience())
    for name in names:
        if topics.partitions(name) is None:
            topics.create(name, 1, 1, {})


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=_PASSED_ON)
def audit(context: typer.Context) -> None:
    """Judge, from Kafka's topics alone, what became of every request (Spark). Options: timer-bridge audit --help."""
    with _needs_spark():
        from spark_jobs.audit import main as audit_main
    raise typer.Exit(audit_main(context.args))


@app.command(context_settings=_PASSED_ON)
def backfill(context: typer.Context) -> None:
    """Deliver what an audit found missing, each once (Spark). Options: timer-bridge backfill --help."""
    with _needs_spark():
        from spark_jobs.backfill import main as backfill_main
    raise typer.Exit(backfill_main(context.args))


@app.command(context_settings=_PASSED_ON)
def archive(context: typer.Context) -> None:
    """Keep the timer topic as Parquet by day (Spark). Options: timer-bridge archive --help."""
    with _needs_spark():
        from spark_jobs.archive import main as archive_main
    raise typer.Exit(archive_main(context.args))


@app.command("import", context_settings=_PASSED_ON)
def import_(context: typer.Context) -> None:
    """Send the rows of Parquet, CSV or JSON lines as timers, each once (Spark). Options: timer-bridge import --help."""
    with _needs_spark():
        from spark_jobs.bulk_import import main as import_main
    raise typer.Exit(import_main(context.args))


@contextmanager
def _needs_spark() -> Iterator[None]:
    try:
        yield
    except ImportError as missing:
        raise BridgeError(f"this needs Spark ({missing}): install with pip install '.[spark]'") from missing
