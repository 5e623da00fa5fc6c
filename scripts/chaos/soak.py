"""`make soak`: one bridge under a steady load for a long time; its memory, handles and disk must not grow.

half of the load is due in 2 s, half in 2 minutes, so that units, bodies and ids come and go    .run/soak/results.json
each 10 s    memory, handles, threads, disk of the bridge      .run/soak/samples.jsonl
at the end   deliveries of each request are counted           exit codes: 0 flat and all came once, 1 failed, 3 a fault

python -m scripts.chaos.soak --minutes 30 --per-s 10000
"""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from scripts.bench.topic_fixture import Sizes, TopicFixture, sent_in_s
from scripts.common import command
from scripts.common.delivery_figures import DeliveryAccount, lateness
from scripts.common.kafka_io import Receiver, now_ms
from scripts.common.processes import BridgeProcess

FOLDER = Path(".run/soak")
DELAYS_MS = {"soon": 2_000, "later": 120_000}
MOST_GROWTH = 0.10
"""Largest growth of a median from the middle third of the run to the last; caches fill in the first third."""
_SAMPLE_S = 10.0
_LEAST_SAMPLES = 9
_WARM_S = 130.0
_QUIET_S = 10.0
Sample = dict[str, float]


def sample(bridge: BridgeProcess, since_s: float) -> Sample:
    usage, proc = bridge.usage(), Path(f"/proc/{bridge.pid}")
    found = {"at_s": round(time.monotonic() - since_s, 1), "rss_mb": usage.rss_mb, "cpu_s": usage.cpu_s}
    counts = {name: sum(1 for _ in (proc / part).iterdir()) for name, part in (("handles", "fd"), ("threads", "task"))}
    return {**found, **counts, "disk_mb": bridge.disk_mb()}


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the growth from the middle third to the last one. Raises BridgeError if there are too few samples."""
    if len(samples) < _LEAST_SAMPLES:
        raise BridgeError(f"{len(samples)} samples show no trend: let it run for longer")
    third = len(samples) // 3
    found = {}
    for name in ("rss_mb", "handles", "threads", "disk_mb"):
        values = [each[name] for each in samples]
        middle, last = np.median(values[third:-third]), np.median(values[-third:])
        found[name] = round(float(last / middle) - 1, 4)
    return found


def watch(bridge: BridgeProcess, seconds: float, folder: Path) -> list[Sample]:
    samples, since_s = list[Sample](), time.monotonic()
    with (folder / "samples.jsonl").open("w") as file:
        while time.monotonic() < since_s + seconds:
            time.sleep(_SAMPLE_S)
            bridge.demand_alive()
            samples.append(sample(bridge, since_s))
            file.write(json.dumps(samples[-1]) + "\n")
            file.flush()
    return samples


def soak(per_s: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Return the results. `growth`: of each figure's median, from the middle third to the last, as a share."""
    with EmbeddedKafka(folder / "kafka") as kafka:
        topics = TopicFixture(kafka, Sizes(0, 100, 4))
        targets = {name: topics.target(name) for name in DELAYS_MS}
        with topics.bridge(folder) as bridge:
            begins = topics.admin.ends(topics.timer_topic)
            command.say(f"{per_s:,} a second for {seconds / 60:.1f} minutes")
            senders = [
                topics.sender([targets[name]], per_s // 2, seconds, delay_ms, folder / "send.log")
                for name, delay_ms in DELAYS_MS.items()
            ]
            samples = watch(bridge, seconds, folder)
            for sender in senders:
                sent_in_s(sender, 600, folder / "send.log")
            command.say("everything is sent; waiting for the pending timers")
            spans, due_ms = topics.admin.ranges_since(topics.timer_topic, begins), now_ms() + max(DELAYS_MS.values())
            for target in targets.values():
                topics.await_quiet(target, due_ms, bridge.demand_alive)
            usage = bridge.usage()
            command.say("counting deliveries")
            seen = DeliveryAccount(spans)
            with Receiver(topics.servers, list(targets.values())) as receiver:
                while came := receiver.poll(_QUIET_S):
                    bridge.demand_alive()
                    seen.note(came)
    found, counts = growth([each for each in samples if each["at_s"] > min(_WARM_S, seconds / 3)]), seen.counts()
    return {
        "per_s": per_s,
        "seconds": seconds,
        **counts._asdict(),
        "late": lateness(seen.late_ms)._asdict(),
        **usage._asdict(),
        "growth": found,
        "is_flat": all(share <= MOST_GROWTH for share in found.values()),
        "is_exact": not any(counts[1:]),
    }


def main() -> int:
    parser = command.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration of the load")
    parser.add_argument("--per-s", type=int, default=10_000, help="requests a second, about half of the maximum")
    args = parser.parse_args()
    with command.fresh(FOLDER) as folder:
        results = soak(args.per_s, args.minutes * 60, folder)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        shutil.rmtree(folder / "kafka")
    Console().print_json(data=results)
    return 0 if results["is_flat"] and results["is_exact"] else command.FAULT_FOUND


if __name__ == "__main__":
    sys.exit(command.run("soak", main))
