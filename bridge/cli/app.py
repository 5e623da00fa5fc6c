"""`timer-bridge`: the commands.

A command's module is imported only if the command is called (or for the help of all): numpy alone takes 0.2 s of CPU.
"""

import signal
import sys
import threading
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup
from typer.main import get_group

from bridge.errors import BridgeError, SettingsError, exit_code_of
from bridge.observe import logs

_MODULES = {
    "run_command": ("run", "check-config"),
    "client_commands": ("send", "read", "cancel", "replace", "move", "release", "pause", "resume", "skip", "next"),
    "pending_command": ("pending",),
    "store_commands": ("inspect", "verify", "export"),
    "redrive_command": ("redrive", "adopt"),
    "canary_command": ("canary",),
}
_MODULE_OF = {command: module for module, commands in _MODULES.items() for command in commands}
_GROUPS = {
    "Use": ("send", "read", "cancel", "replace", "move", "release", "pending", "next", "dev"),
    "Operate": ("run", "check-config", "token", "pause", "resume", "skip", "redrive", "adopt", "canary"),
    "Read the store of a stopped bridge": ("inspect", "verify", "export"),
    "Prove and move with Spark": ("audit", "backfill", "archive", "import"),
}


class _Commands(TyperGroup):
    """The commands of `_GROUPS`: those of this module, and those of `_MODULES`."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  (typer calls it so)
        return [name for names in _GROUPS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.get_command(ctx, name).get_short_help_str(120)) for name in names])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name == "size":
            raise SettingsError(
                "the command size was removed: docs/operations.md has a table of loads; the chart has values-small.yaml"
                " and values-large.yaml"
            )
        module = _MODULE_OF.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        command: Any = get_group(import_module(f"bridge.cli.{module}").commands).get_command(ctx, cmd_name)
        command.rich_markup_mode = None  # rich cuts long names of options at 80 columns
        return command


app = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def main() -> None:
    """Run the console script: a BridgeError becomes one line on stderr and an exit code."""
    logs.configure()
    try:
        app()
    except BridgeError as error:
        print(f"timer-bridge: {logs.redact(str(error))}", file=sys.stderr)  # noqa: T201
        sys.exit(exit_code_of(error))


def _show_version(wanted: bool) -> None:  # noqa: FBT001  (typer calls it so)
    if wanted:
        typer.echo(f"timer-bridge {installed_version('kafka-timer-bridge')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Delayed messages for an existing Kafka.

    Exit codes: 0 success, 1 an external failure, 2 a wrong setting or call, 3 a failed audit,
    4 another outcome than was asked for (--wait), 5 no outcome in time.
    """


@app.command(epilog="Example: timer-bridge token alice")
def token(name: Annotated[str, Argument(metavar="NAME", help="Its name in the audit log.")]) -> None:
    """Make a token for the page and its API, and a line with its hash for a tokens file."""
    from bridge.config.secret_file import new_token

    made, line = new_token(name)
    typer.echo(f"token, shown only now, for the login and --token-file: {made}")
    typer.echo(f"line for page_operator_tokens or page_read_tokens: {line}")


@app.command(epilog="Example: timer-bridge dev --topic orders")
def dev(
    folder: Annotated[Path, Option(help="Folder of its data.")] = Path(".run/dev-kafka"),
    port: Annotated[int, Option(help="Port on 127.0.0.1.")] = 9092,
    topic: Annotated[list[str] | None, Option(help="A topic to create if it is missing; may repeat.")] = None,
) -> None:
    """Run an embedded single-node Kafka for development until Ctrl-C.

    Not for production: one broker, no replication, no security, bound to loopback.
    """
    from bridge.config.kafka_config import Connection
    from bridge.dev.embedded_kafka import EmbeddedKafka
    from bridge.kafka import ConfluentTopics, Retrier

    with EmbeddedKafka(folder, port=port) as kafka:
        for name in topic or ():
            topics = ConfluentTopics(Connection(kafka.bootstrap_servers), Retrier())
            if topics.partitions(name) is None:
                topics.create(name, 1, 1, {})
            del topics  # its client would log the end of the broker
        ended = threading.Event()
        # SIGINT too: a shell starts a background command with SIGINT ignored
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        typer.echo(f"Kafka is ready at {kafka.bootstrap_servers}; Ctrl-C ends it")
        ended.wait()
        typer.echo("ending")


def _register_spark_job(name: str, module: str, summary: str) -> None:
    """Make `timer-bridge NAME` pass its arguments on to `spark_jobs.MODULE`, which parses them."""

    def command(context: typer.Context) -> None:
        from bridge import extras

        extras.require("spark", name)
        job = import_module(f"spark_jobs.{module}")
        raise typer.Exit(job.main(context.args))

    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, context_settings=passed_on, help=summary)(command)


_register_spark_job("audit", "audit", "Judge, from Kafka's topics alone, what became of every request")
_register_spark_job("backfill", "backfill.job", "Deliver what an audit found missing, each once")
_register_spark_job("archive", "archive", "Keep the timer topic as Parquet by day")
_register_spark_job("import", "importer.job", "Send the rows of Parquet, CSV or JSON lines as timers, each once")
