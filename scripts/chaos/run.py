"""`make chaos`: random faults in two bridges and three brokers under load, then an audit by Spark.

load ----------------> timer.requests -> bridge one, two -> chaos.orders, chaos.bills
attacks (seeded) ----> timer.evil     -> the same bridges          first alone: how late are a neighbour's timers then?
faults (seeded) -> processes, links, brokers, disks, clocks        .run/chaos/report.json, audit/
at the end: everything is repaired, and the audit finds each timer delivered once; exceptions.jsonl has the others

python -m scripts.chaos.run --minutes 20 --seed 7        exit codes: 0 exactly once, 1 failed, 2 wrong call, 3 a fault
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from bridge.errors import BridgeError
from schemas.tables import AuditClass
from scripts.chaos.faults import ChaosFault, FaultSchedule, Victim
from scripts.chaos.load import LIMITS, LONGEST_MS, TARGETS, ChaosLoad
from scripts.chaos.strangers import CONFIG, GOOD, Neighbour, Strangers
from scripts.chaos.three_brokers import ThreeBrokers
from scripts.common import command
from scripts.common.kafka_io import Admin
from spark_jobs.audit import run_audit
from spark_jobs.audit_run.arguments import AuditArguments
from spark_jobs.kafka.security import KafkaAccess
from spark_jobs.report.summary import AuditVerdict

FOLDER = Path(".run/chaos")
TIMER_TOPIC = "timer.requests"
PARTITIONS = 4
TOLERANCE_MS = 60_000
"""Longest delay of a cancel's intake, by a bridge that is stopped during a transaction."""
_ARGUMENTS = (
    f"--partitions {PARTITIONS} --replication-factor 3 --roll-window 3s --receipts all --startup-timeout 600s"
    " --min-free-bytes 2000000"
).split()
_PAUSE_S = (0.3, 4.0)
_LOOK_S = 0.1
_QUIET_S = 30.0
"""Longer than session and transaction timeouts."""
_GIVE_UP_S = 1200.0
"""The limited target alone may need half of it."""
_MOST_ROWS = 20
_ATTACKS = 3
"""Before the faults."""
_REST_S = 3.0
"""After these attacks, still beside the neighbour."""
MOST_LATE_MS = 10_000
"""For a neighbour of the attacks: three cold brokers, two bridges and the attackers share two cores here."""
UNDECIDED = (AuditClass.PENDING, AuditClass.UNJUDGED)


class Chaos:
    """One run. `skipped`: kinds of faults that are impossible here, and why."""

    def __init__(self, folder: Path, minutes: float, seed: int, *, workers: int = 1) -> None:
        self._folder, self._minutes, self._seed, self._workers = folder, minutes, seed, workers
        self._victims: list[Victim] = []
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.latest_ms = 0
        """Lateness of the latest of a neighbour's timers beside attacks, before the first fault."""

    def run(self) -> AuditVerdict:
        with ExitStack() as ends:
            brokers = ends.enter_context(ThreeBrokers(self._folder / "kafka", links=2))
            servers = brokers.bootstrap_servers
            Admin(servers).create_topics([*TARGETS, GOOD], partitions=2, copies=3)
            (config := self._folder / "limits.toml").write_text(LIMITS + CONFIG)
            arguments = [*_ARGUMENTS, "--config", str(config), "--workers", str(self._workers)]
            for link, name in enumerate(("one", "two")):
                victim = Victim(name, self._folder / name, brokers.bootstrap_of(link), arguments)
                ends.callback(victim.close)
                victim.launch()
                self._victims.append(victim)
            for victim in self._victims:
                victim.await_ready()
            command.say("two bridges are ready; the load begins")
            strangers = Strangers(servers, self._seed)
            with ChaosLoad(servers, TIMER_TOPIC, self._seed) as load:
                self._attack(servers, strangers)
                with strangers:
                    self._inject(brokers, load)
            self.counts.update(strangers.counts)
            command.say(f"all faults are repaired; {load.sent.total():,} requests were sent: {dict(load.sent)}")
            self.counts.update(load.sent)
            self._await_end(servers)
            for victim in self._victims:
                victim.stop()
            command.say("all timers have left; Spark reads Kafka's topics alone")
            return self._audited(servers)

    def _attack(self, servers: str, strangers: Strangers) -> None:
        """Run attacks without other faults, beside a neighbour. Raises BridgeError if one of its timers is lost."""
        with Neighbour(servers) as neighbour:
            for _ in range(_ATTACKS):
                strangers.attack()
            time.sleep(_REST_S)
        delivered, _, late = neighbour.deliveries()
        self.latest_ms = late.max_ms
        command.say(f"{dict(strangers.counts)}; a neighbour's {delivered} timers: {late}")
        if delivered < neighbour.sent:
            raise BridgeError(f"of {neighbour.sent} timers of a neighbour {delivered} were delivered")

    def _inject(self, brokers: ThreeBrokers, load: ChaosLoad) -> None:
        """Inject faults for the given time, until each kind was injected once; then repair all."""
        rng = random.Random(self._seed)
        schedule = FaultSchedule(brokers, self._victims, rng, load, self._workers)
        open_ = list[tuple[float, ChaosFault]]()
        self.counts.update({f"fault: {kind}": 0 for kind in schedule.kinds})
        self.skipped = schedule.skipped
        until_s, next_s = time.monotonic() + self._minutes * 60, 0.0
        while (now_s := time.monotonic()) < until_s or open_:
            for end_s, fault in [each for each in open_ if each[0] <= now_s]:
                open_.remove((end_s, fault))
                fault.repair()
                command.say(f"{fault.name}: {fault.subject}, repaired")
            if now_s >= until_s and not all(self.counts[f"fault: {kind}"] for kind in schedule.kinds):
                until_s = now_s + 1  # a slow machine: each kind has its turn once
            if next_s <= now_s < until_s:
                begun = schedule.begin({fault.subject for _, fault in open_})
                if begun is not None:
                    open_.append((now_s + begun.seconds, begun))
                    self.counts[f"fault: {begun.name}"] += 1
                    command.say(f"{begun.name}: {begun.subject}, for {begun.seconds:.1f} s")
                next_s = now_s + rng.uniform(*_PAUSE_S)
            self._demand_alive()
            time.sleep(_LOOK_S)

    def _await_end(self, servers: str) -> None:
        """Wait until every timer is due and no request, copy or delivery has been written for a while."""
        time.sleep(LONGEST_MS / 1000)
        if not Admin(servers).await_quiet([TIMER_TOPIC, *TARGETS], _QUIET_S, _GIVE_UP_S, self._demand_alive):
            command.say(f"records are still written after {_GIVE_UP_S:.0f} s: see the audit")

    def _demand_alive(self) -> None:
        for victim in self._victims:
            victim.demand_alive()

    def _audited(self, servers: str) -> AuditVerdict:
        """Return the audit's verdict, and write its first rows with a fault."""
        out = self._folder / "audit"
        verdict = run_audit(AuditArguments(access=KafkaAccess(servers), out=out, tolerance_ms=TOLERANCE_MS))
        found = exceptional_rows(out)
        (self._folder / "exceptions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
        Console().print_json(data=found)
        return verdict


def exceptional_rows(out: Path) -> list[dict[str, Any]]:
    """Return the audit's first rows with a fault, or without a verdict."""
    rows = pq.read_table(out / "requests").to_pylist()
    chosen = sorted(
        (row for row in rows if row["faults"] or row["class"] in UNDECIDED), key=lambda row: not row["faults"]
    )
    return [{name: value for name, value in row.items() if value not in (None, [])} for row in chosen[:_MOST_ROWS]]


def conclude(folder: Path, chaos: Chaos, verdict: AuditVerdict, args: argparse.Namespace) -> int:
    """Write the report and return the exit code. A timer without a verdict is a fault, too: every one was due."""
    undecided = sum(verdict.counts[name.value] for name in UNDECIDED)
    report = {
        **{name: getattr(args, name) for name in ("seed", "minutes", "workers")},
        "what": dict(sorted(chaos.counts.items())),
        "skipped": chaos.skipped,
        "classes": {name: count for name, count in verdict.counts.items() if count},
        "faults": verdict.faults,
        "lateness_ms": verdict.lateness._asdict(),
        "latest_beside_attacks_ms": chaos.latest_ms,
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    console, headline = Console(), verdict.headline
    console.print_json(data=report)
    is_clean = verdict.clean
    if is_clean and undecided:
        is_clean, headline = False, f"{undecided:,} are pending or unjudged, though all were due"
    elif is_clean and chaos.latest_ms > MOST_LATE_MS:
        late = f"beside attacks a timer of a neighbour was {chaos.latest_ms:,} ms late"
        is_clean, headline = False, f"{late}: at most {MOST_LATE_MS:,}"
    console.print(f"[bold {'green' if is_clean else 'red'}]{headline}[/]  {verdict.report}", soft_wrap=True)
    return 0 if is_clean else command.FAULT_FOUND


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="duration of the faults; repairs come on top")
    parser.add_argument("--seed", type=int, default=1, help="of faults and load; their timing is never the same")
    parser.add_argument("--workers", type=int, default=1, help="of each bridge; more than one are killed singly too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for logs and reports")
    args = parser.parse_args()
    with command.fresh(args.folder) as folder:
        chaos = Chaos(folder, args.minutes, args.seed, workers=args.workers)
        return conclude(folder, chaos, chaos.run(), args)


if __name__ == "__main__":
    sys.exit(command.run("chaos", main))
