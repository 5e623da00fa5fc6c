"""`make chaos`: two bridges and three brokers under load get random faults; then Spark audits.

load ----------------> timer.requests -> bridge one, two -> chaos.orders, chaos.bills
faults (seeded) -> processes, links, brokers, disks, clocks        .run/chaos/report.json, faults.jsonl, audit/
at the end: all is repaired, and the audit finds each timer delivered once; else exceptions.jsonl has its records

python -m scripts.chaos.run --minutes 20 --seed 7        exit codes: 0 exactly once, 1 trouble, 2 wrong call, 3 a fault
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bridge.dev.kafka_jars import DEFAULT_CACHE
from bridge.errors import BridgeError
from scripts.chaos.fault_evidence import exceptions
from scripts.chaos.faults import ChaosFault, FaultSchedule, Victim
from scripts.chaos.load import LIMITS, LONGEST_MS, TARGETS, ChaosLoad
from scripts.chaos.three_brokers import ThreeBrokers
from scripts.common import command
from scripts.common.kafka_io import BROKER_CLOCK, Admin
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
    " --tick-ms 100 --slots 1000 --segment-bytes 200000 --min-free-bytes 2000000 --checkpoint-interval 2s"
).split()
_PAUSE_S = (0.3, 4.0)
_LOOK_S = 0.1
_QUIET_S = 30.0
"""Longer than session and transaction timeouts."""
_GIVE_UP_S = 600.0


class Chaos:
    """One run. `story`: its events, with times."""

    def __init__(
        self, folder: Path, minutes: float, seed: int, console: Console, *, jars_cache: Path = DEFAULT_CACHE
    ) -> None:
        self._folder, self._minutes, self._seed, self._console = folder, minutes, seed, console
        self._jars_cache = jars_cache
        self._began_s = time.monotonic()
        self.story: list[dict[str, object]] = []
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        """Kinds of faults that are impossible here, with the reason."""

    def run(self) -> AuditVerdict:
        with ExitStack() as ends:
            brokers = ends.enter_context(ThreeBrokers(self._folder / "kafka", links=2, jars_cache=self._jars_cache))
            servers = brokers.bootstrap_servers
            Admin(servers).create_topics(TARGETS, partitions=2, copies=3, settings=BROKER_CLOCK)
            (config := self._folder / "limits.toml").write_text(LIMITS)
            arguments = [*_ARGUMENTS, "--config", str(config)]
            victims = [
                Victim(name, self._folder / name, brokers.bootstrap_of(link), arguments)
                for link, name in enumerate(("one", "two"))
            ]
            for victim in victims:
                ends.callback(victim.close)
                victim.launch()
            for victim in victims:
                victim.await_ready()
            self._say("two bridges are ready; the load begins")
            with ChaosLoad(servers, TIMER_TOPIC, self._seed) as load:
                self._hurt(brokers, victims, load)
            self._say(f"all is mended; {load.sent.total():,} requests were sent: {dict(load.sent)}")
            self.counts.update(load.sent)
            self._await_end(servers, victims)
            for victim in victims:
                victim.stop()
            self._say("all has left; Spark reads Kafka's topics alone")
            access = KafkaAccess(servers)
            asked = AuditArguments(access=access, out=self._folder / "audit", tolerance_ms=TOLERANCE_MS)
            verdict = run_audit(asked)
            topics = {TIMER_TOPIC, *TARGETS, asked.rejected_topic}
            try:
                found = exceptions(servers, asked.out, topics, asked.receipts_topic)
                (self._folder / "exceptions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
                self._console.print_json(data=found)
            except BridgeError as wrong:  # the verdict stands
                self._say(f"what Kafka holds about the faults could not be read: {wrong}")
            return verdict

    def _hurt(self, brokers: ThreeBrokers, victims: list[Victim], load: ChaosLoad) -> None:
        rng = random.Random(self._seed)
        mischief, open_ = FaultSchedule(brokers, victims, rng, load.pause), list[tuple[float, ChaosFault]]()
        self.counts.update({f"fault: {kind}": 0 for kind in mischief.kinds})
        self.skipped = mischief.skipped
        until_s, next_s = time.monotonic() + self._minutes * 60, 0.0
        while (now_s := time.monotonic()) < until_s or open_:
            for mended_s, fault in [each for each in open_ if each[0] <= now_s]:
                open_.remove((mended_s, fault))
                fault.repair()
                self._tell("mended", fault)
            if now_s >= until_s and not all(self.counts[f"fault: {kind}"] for kind in mischief.kinds):
                until_s = now_s + 1  # a slow machine: each kind has its turn once
            if next_s <= now_s < until_s:
                begun = mischief.begin({fault.subject for _, fault in open_})
                if begun is not None:
                    open_.append((now_s + begun.seconds, begun))
                    self._tell("begun", begun)
                    self.counts[f"fault: {begun.name}"] += 1
                next_s = now_s + rng.uniform(*_PAUSE_S)
            for victim in victims:
                victim.demand_alive()
            time.sleep(_LOOK_S)

    def _await_end(self, servers: str, victims: list[Victim]) -> None:
        """Wait until every timer is due and no request, copy or delivery has been written for a while."""
        admin, give_up_s = Admin(servers), time.monotonic() + _GIVE_UP_S
        time.sleep(LONGEST_MS / 1000)
        seen, since_s = dict[str, dict[int, int]](), time.monotonic()
        while time.monotonic() < give_up_s:
            for victim in victims:
                victim.demand_alive()
            now = {topic: admin.ends(topic) for topic in (TIMER_TOPIC, *TARGETS)}
            if now != seen:
                seen, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > _QUIET_S:
                return
            time.sleep(0.5)
        self._say(f"not all has left within {_GIVE_UP_S:.0f} s: the audit tells what")

    def _tell(self, what: str, fault: ChaosFault) -> None:
        at_ms = time.time_ns() // 1_000_000
        told = {"at_ms": at_ms, "what": what, "fault": fault.name, "subject": fault.subject}
        self.story.append(told | {"seconds": round(fault.seconds, 2)})
        if what == "begun":
            self._say(f"{fault.name}: {fault.subject}, for {fault.seconds:.1f} s")

    def _say(self, what: str) -> None:
        self._console.print(f"{time.monotonic() - self._began_s:7.1f} s  {what}", highlight=False)


def conclude(folder: Path, chaos: Chaos, verdict: AuditVerdict, asked: argparse.Namespace, console: Console) -> int:
    """Write the report and return the exit code. A pending timer is a fault, too: every timer was due."""
    (folder / "faults.jsonl").write_text("".join(json.dumps(told) + "\n" for told in chaos.story))
    pending = verdict.counts["pending"]
    report = {
        "seed": asked.seed,
        "minutes": asked.minutes,
        "what": dict(sorted(chaos.counts.items())),
        "skipped": chaos.skipped,
        "classes": {name: count for name, count in verdict.counts.items() if count},
        "faults": verdict.faults,
        "lateness_ms": verdict.lateness._asdict(),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    console.print_json(data=report)
    is_clean = verdict.clean and not pending
    headline = f"{pending:,} are pending, though all was due" if verdict.clean and pending else verdict.headline
    console.print(f"[bold {'green' if is_clean else 'red'}]{headline}[/]  {verdict.report}", soft_wrap=True)
    return 0 if is_clean else command.FAULT_FOUND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="how long faults are made; mending comes on top")
    parser.add_argument("--seed", type=int, default=1, help="of faults and load; what they meet is never the same")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    console = Console()

    def job() -> int:
        with command.fresh(asked.folder) as folder:
            chaos = Chaos(folder, asked.minutes, asked.seed, console)
            return conclude(folder, chaos, chaos.run(), asked, console)

    return command.run("chaos", job)


if __name__ == "__main__":
    sys.exit(main())
