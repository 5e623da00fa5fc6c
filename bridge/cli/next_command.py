"""`timer-bridge next`: the next times of a rule, before a recurring timer is sent. It needs no broker."""

import time
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from bridge.cli.shared_options import duration_ms
from bridge.errors import SettingsError
from bridge.partition.options import instant_text
from kafka_timer import Repeat
from kafka_timer.headers import recurrence_of
from schemas.recurrence import Occurrence, due_times, problem_of

_SHOWN = 5

commands = typer.Typer()


@commands.command("next", epilog="Example: timer-bridge next --cron '0 9 * * MON-FRI' --zone Europe/Berlin")
def next_times(
    cron: Annotated[str | None, typer.Option("--cron", help="Five fields, such as 0 9 * * *.")] = None,
    every: Annotated[str | None, typer.Option("--every", help="An interval, such as 15m.")] = None,
    zone: Annotated[str | None, typer.Option("--zone", help="Time zone of --cron, such as Europe/Berlin.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="No occurrence is due later: as --at of send.")] = None,
    count: Annotated[int | None, typer.Option("--count", help="Occurrences at most.")] = None,
) -> None:
    """Show the next five times of a rule, in its time zone and in UTC."""
    if every is not None:
        duration_ms("--every", every, 1)
    now_ms = time.time_ns() // 1_000_000
    try:
        rule = recurrence_of(dict(Repeat(cron=cron, every=every, zone=zone, until=until, count=count).headers()))
    except ValueError as wrong:
        raise SettingsError(f"{wrong}") from wrong
    if rule is None:
        raise SettingsError("give --cron or --every")
    if (problem := problem_of(rule, now_ms, now_ms, 0)) is not None:
        raise SettingsError(problem.detail)
    first_ms = now_ms + rule.every_ms
    for due_ms in due_times(Occurrence(rule, 0 if rule.needs_first else 1, first_ms, first_ms), _SHOWN):
        local = datetime.fromtimestamp(due_ms / 1000, ZoneInfo(rule.zone)).isoformat(timespec="seconds")
        typer.echo(f"{local}  {instant_text(due_ms)}")
