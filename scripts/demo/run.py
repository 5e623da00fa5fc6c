"""`make demo`: a day of departures from New York runs through the bridge in 30 s, and Spark audits it.

    flights -> timer.requests -> timer-bridge run -> departures.EWR | .JFK | .LGA -> counted here, read_committed
                     |           (its own process)              |
                     +-------------- Spark audit ---------------+--> .run/demo/audit/report.html

Kafka is embedded, on a free port, and ends with the demo; so does the bridge, at Ctrl-C too.
Exit codes: 0 every flight came once and none early, 1 trouble, 2 wrong call, 3 the audit found a fault.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bridge.dev.embedded_kafka import EmbeddedKafka
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess
from scripts.demo.departures import DepartureCounts, stream
from scripts.demo.flights import TOPICS, booked
from spark_jobs.audit import run_audit
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.report.summary import AuditVerdict, TopicVerdict

FOLDER = Path(".run/demo")
TIMER_TOPIC = "timer.requests"

BY_HAND = f"""\
[bold]By hand[/], on what the demo left behind (each in a terminal of its own; --help tells the rest):
  .venv/bin/timer-bridge dev --folder {FOLDER}/kafka
  .venv/bin/timer-bridge run --bootstrap-servers localhost:9092 --data-dir {FOLDER}/timer-data
  .venv/bin/timer-bridge send --bootstrap-servers localhost:9092 departures.JFK --in 5s --key N123 'hello'
  .venv/bin/timer-bridge audit --bootstrap-servers localhost:9092 --out {FOLDER}/audit"""


def demo(asked: argparse.Namespace, console: Console) -> int:
    flights = booked(asked.date, asked.days, seconds=asked.seconds)
    days = "1 day" if asked.days == 1 else f"{asked.days} days"
    console.print(f"{len(flights):,} flights of {days} from {asked.date}, compressed into {asked.seconds:g} s")
    with command.fresh(FOLDER) as folder, EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        Admin(servers).create_topics(TOPICS, partitions=1, settings=BROKER_CLOCK)
        console.print(f"Kafka is ready at {servers}; starting the bridge", highlight=False)
        with BridgeProcess(folder, servers):
            tally = stream(servers, TIMER_TOPIC, flights, console)
        console.print("The bridge has drained and ended. Spark now reads Kafka's topics alone.")
        verdict = run_audit(AuditArguments(access=KafkaAccess(servers), out=folder / "audit"))
    return conclude(tally, verdict, console)


def conclude(tally: DepartureCounts, verdict: AuditVerdict, console: Console) -> int:
    console.print(_table(verdict))
    for note in verdict.notes:
        console.print(note)
    fault = _fault(tally, verdict)
    console.print(
        f"[bold red]{fault}[/]" if fault else f"[bold green]{verdict.headline}[/]: each came once, none early."
    )
    console.print(f"Report: {verdict.report}", soft_wrap=True)
    console.print(BY_HAND, soft_wrap=True)
    return command.FAULT_FOUND if fault else 0


def _fault(tally: DepartureCounts, verdict: AuditVerdict) -> str:
    """Return the fault, or an empty text. In a demo, a rejected or pending timer is a fault, too."""
    if not verdict.clean:
        return verdict.headline
    delivered = verdict.counts["delivered"]
    if delivered != tally.sent:
        return f"{tally.sent:,} flights were sent, but {delivered:,} delivered: see the report"
    return ""


def _table(verdict: AuditVerdict) -> Table:
    table = Table("topic", title="Spark's audit; late in ms, by the broker's clock")
    for name in ("requests", "delivered", "faults", "late p50", "p99", "max"):
        table.add_column(name, justify="right")
    for topic in sorted(verdict.topics, key=lambda found: found.topic or ""):
        table.add_row(*_row(topic), style="red" if topic.faults else "")
    return table


def _row(found: TopicVerdict) -> list[str]:
    late = found.lateness
    counts = (f"{number:,}" for number in (found.requests, found.counts["delivered"], found.faults))
    times = ("-" if ms is None else f"{ms:,}" for ms in (late.p50_ms, late.p99_ms, late.max_ms))
    return [found.topic or "(none)", *counts, *times]


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="Flights of 2013 as timers, through the bridge.")
    parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 7, 10), help="first day; 2013-07-10")
    parser.add_argument("--days", type=int, default=1, help="how many days of flights; default 1, at most 365")
    parser.add_argument("--seconds", type=float, default=30.0, help="first to last departure; default 30")
    asked = parser.parse_args(argv)
    if asked.seconds <= 0:
        parser.error(f"--seconds is {asked.seconds:g}: give more than 0")
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parse(argv)
    return command.run("demo", lambda: demo(asked, Console()))


if __name__ == "__main__":
    sys.exit(main())
