"""`make demo`: a day of departures from New York runs through the bridge in 30 s, and Spark audits it.

    flights -> timer.requests -> timer-bridge run -> departures.EWR | .JFK | .LGA -> counted here, read_committed
                     |           (its own process)              |
                     +-------------- Spark audit ---------------+--> .run/demo/audit/report.html

Kafka is embedded, on a free port, and ends with the demo; so does the bridge, at Ctrl-C too.
Exit codes: 0 every flight came once and none early, 1 failed, 2 wrong call, 3 the audit found a fault.
"""

import argparse
import sys
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bridge.dev.embedded_kafka import EmbeddedKafka
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin
from scripts.common.processes import BridgeProcess
from scripts.demo.departures import stream
from scripts.demo.flights import DEFAULT_DATE, TOPICS, booked
from spark_jobs.audit import run_audit
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.report.summary import AuditVerdict

FOLDER = Path(".run/demo")
TIMER_TOPIC = "timer.requests"

BY_HAND = f"""\
[bold]By hand[/], with the demo's data (each in its own terminal; --help lists more):
  .venv/bin/timer-bridge dev --folder {FOLDER}/kafka
  .venv/bin/timer-bridge run --bootstrap-servers localhost:9092 --data-dir {FOLDER}/timer-data
  .venv/bin/timer-bridge send --bootstrap-servers localhost:9092 departures.JFK --in 5s --key N123 'hello'
  .venv/bin/timer-bridge audit --bootstrap-servers localhost:9092 --out {FOLDER}/audit"""


def demo(args: argparse.Namespace, console: Console) -> int:
    flights = booked(args.date, args.days, seconds=args.seconds)
    days = "1 day" if args.days == 1 else f"{args.days} days"
    console.print(f"{len(flights):,} flights of {days} from {args.date}, compressed into {args.seconds:g} s")
    with command.fresh(FOLDER) as folder, EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        Admin(servers).create_topics(TOPICS, partitions=1, settings=BROKER_CLOCK)
        console.print(f"Kafka is ready at {servers}; starting the bridge", highlight=False)
        with BridgeProcess(folder, servers):
            counts = stream(servers, TIMER_TOPIC, flights, console)
        console.print("The bridge has delivered everything and ended. Spark now reads Kafka's topics alone.")
        verdict = run_audit(AuditArguments(access=KafkaAccess(servers), out=folder / "audit"))
    return conclude(counts.sent, verdict, console)


def conclude(sent: int, verdict: AuditVerdict, console: Console) -> int:
    """Print the verdict and return the exit code. In a demo, a rejected or pending timer is a fault, too."""
    console.print(_table(verdict))
    for note in verdict.notes:
        console.print(note)
    delivered, fault = verdict.counts["delivered"], ""
    if not verdict.clean:
        fault = verdict.headline
    elif delivered != sent:
        fault = f"{sent:,} flights were sent, but {delivered:,} delivered: see the report"
    console.print(
        f"[bold red]{fault}[/]" if fault else f"[bold green]{verdict.headline}[/]: each came once, none early."
    )
    console.print(f"Report: {verdict.report}", soft_wrap=True)
    console.print(BY_HAND, soft_wrap=True)
    return command.FAULT_FOUND if fault else 0


def _table(verdict: AuditVerdict) -> Table:
    table = Table("topic", title="Spark's audit; late in ms, by the broker's clock")
    for name in ("requests", "delivered", "faults", "late p50", "p99", "max"):
        table.add_column(name, justify="right")
    for topic in sorted(verdict.topics, key=lambda found: found.topic or ""):
        counts = (f"{number:,}" for number in (topic.requests, topic.delivered, topic.faults))
        times = (
            "-" if ms is None else f"{ms:,}"
            for ms in (topic.lateness_p50_ms, topic.lateness_p99_ms, topic.lateness_max_ms)
        )
        table.add_row(topic.topic or "(none)", *counts, *times, style="red" if topic.faults else "")
    return table


def main() -> int:
    parser = command.parser("Flights of 2013 as timers, through the bridge.")
    parser.add_argument("--date", type=date.fromisoformat, default=DEFAULT_DATE, help="first day")
    parser.add_argument("--days", type=int, default=1, help="days of flights, at most 365")
    parser.add_argument("--seconds", type=float, default=30.0, help="first to last departure")
    args = parser.parse_args()
    if args.seconds <= 0:
        parser.error(f"--seconds is {args.seconds:g}: give more than 0")
    return command.run("demo", lambda: demo(args, Console()))


if __name__ == "__main__":
    sys.exit(main())
