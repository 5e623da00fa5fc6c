"""`timer-bridge next`: the next times of a rule, before a recurring timer is sent. It needs no broker."""

import time
from datetime import datetime
from zoneinfo import ZoneInfo

import typer

from bridge.cli.client_commands import Count, Cron, Every, Until, Zone
from bridge.cli.shared_options import duration_ms
from bridge.errors import SettingsError
from bridge.partition.options import instant_text
from kafka_timer import Repeat
from kafka_timer.headers import recurrence_of
from schemas.recurrence import Occurrence, due_times, problem_of

commands = typer.Typer()


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
