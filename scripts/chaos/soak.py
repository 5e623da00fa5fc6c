"""`make soak`: one bridge under a steady load for a long time; its memory, handles and disk must not grow.

half of the load is due in 2 s, half in 2 minutes, so that units, bodies and ids come and go    .run/soak/results.json
each 10 s    memory, handles, threads, disk of the bridge      .run/soak/samples.jsonl
at the end   each request's one delivery is counted           exit codes: 0 flat and all came once, 1 trouble, 3 a fault

python -m scripts.chaos.soak --minutes 30 --per-s 10000
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console

from bridge.dev.embedded_kafka import EmbeddedKafka
from bridge.errors import BridgeError
from scripts.bench.measurements import Sizes
from scripts.bench.topic_fixture import TopicFixture, seconds_of
from scripts.common import command
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import OffsetRange, Receiver
from scripts.common.processes import BridgeProcess

FOLDER = Path(".run/soak")
DELAYS_MS = {"soon": 2_000, "later": 120_000}
MOST_GROWTH = 0.10
"""Largest growth of a median from the middle third of the run to the last; caches fill in the first third."""
_SAMPLE_S = 10.0
_LEAST_SAMPLES = 9
_WARM_S = 130.0
_QUIET_S = 10.0


class Sample(NamedTuple):
    """Sample of the bridge's process and its data directory."""

    at_s: float
    rss_mb: float
    handles: int
    threads: int
    disk_mb: float
    cpu_s: float


def sample(bridge: BridgeProcess, since_s: float) -> Sample:
    usage, tree = bridge.usage(), Path(f"/proc/{bridge.pid}")
    handles, threads = (sum(1 for _ in (tree / part).iterdir()) for part in ("fd", "task"))
    return Sample(round(time.monotonic() - since_s, 1), usage.rss_mb, handles, threads, bridge.disk_mb(), usage.cpu_s)


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the growth from the middle third to the last one. Raises BridgeError if there are too few samples."""
    if len(samples) < _LEAST_SAMPLES:
        raise BridgeError(f"{len(samples)} samples tell no trend: let it run for longer")
    third = len(samples) // 3
    found = {}
    for name in ("rss_mb", "handles", "threads", "disk_mb"):
        values = [getattr(each, name) for each in samples]
        middle, last = float(np.median(values[third:-third])), float(np.median(values[-third:]))
        found[name] = round(last / middle - 1, 4)
    return found


def watch(bridge: BridgeProcess, seconds: float, folder: Path) -> list[Sample]:
    samples, since_s = list[Sample](), time.monotonic()
    with (folder / "samples.jsonl").open("w") as file:
        while time.monotonic() < since_s + seconds:
            time.sleep(_SAMPLE_S)
            bridge.demand_alive()
            samples.append(sample(bridge, since_s))
            file.write(json.dumps(samples[-1]._asdict()) + "\n")
            file.flush()
    return samples


def soak(per_s: int, seconds: float, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the results. `growth`: of each figure's median, from the middle third to the last, as a share."""
    with EmbeddedKafka(folder / "kafka") as kafka:
        stage = TopicFixture(kafka.bootstrap_servers, Sizes(0, 0.0, 100, 4))
        targets = {name: stage.target(name) for name in DELAYS_MS}
        with stage.bridge(folder) as bridge:
            begins, began_s = stage.admin.ends(stage.timer_topic), bridge.usage().cpu_s
            say(f"{per_s:,} a second for {seconds / 60:.1f} minutes")
            senders = [
                stage.sender(targets[name], per_s // 2, seconds, delay_ms, folder / "send.log")
                for name, delay_ms in DELAYS_MS.items()
            ]
            samples = watch(bridge, seconds, folder)
            for each in senders:
                seconds_of(each)
            say("all is sent; what is pending leaves")
            ends = stage.admin.ends(stage.timer_topic)
            spans = [OffsetRange(stage.timer_topic, number, begins[number], end) for number, end in ends.items()]
            due_ms = time.time_ns() // 1_000_000 + max(DELAYS_MS.values())
            for target in targets.values():
                stage.await_quiet(target, due_ms, bridge.demand_alive)
            usage = bridge.usage()
            say("each delivery is counted")
            seen, late_ms = _counted(stage, list(targets.values()), spans, bridge)
    settled = [each for each in samples if each.at_s > min(_WARM_S, seconds / 3)]
    found, early = growth(settled), int((late_ms < 0).sum())
    return {
        "per_s": per_s,
        "seconds": seconds,
        "requested": seen.expected,
        "lost": seen.lost,
        "duplicates": seen.duplicates,
        "strangers": seen.strangers,
        "early": early,
        "late_p50_ms": float(np.percentile(late_ms, 50)),
        "late_p99_ms": float(np.percentile(late_ms, 99)),
        "late_max_ms": int(late_ms.max()),
        "cpu_us_a_message": round((usage.cpu_s - began_s) * 1e6 / max(seen.expected, 1), 1),
        "rss_mb": usage.rss_mb,
        "peak_rss_mb": usage.peak_rss_mb,
        "growth": found,
        "is_flat": all(share <= MOST_GROWTH for share in found.values()),
        "is_exact": not (seen.lost or seen.duplicates or seen.strangers or early),
    }


def _counted(
    stage: TopicFixture, targets: Sequence[str], spans: Sequence[OffsetRange], bridge: BridgeProcess
) -> tuple[DeliveryAccount, npt.NDArray[np.int32]]:
    """Return the count of each delivery and the lateness of all, ms."""
    seen, late_ms = DeliveryAccount(spans), [np.empty(0, np.int32)]
    with Receiver(stage.servers, targets) as receiver:
        while came := receiver.poll(_QUIET_S):
            bridge.demand_alive()
            for delivery in came:
                seen.note(delivery.origin)
            late_ms.append(np.array([each.appended_ms - each.due_ms for each in came], np.int32))
    return seen, np.concatenate(late_ms)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="default 30")
    parser.add_argument("--per-s", type=int, default=10_000, help="requests; half of what it can; default 10000")
    asked = parser.parse_args(argv)
    return command.run("soak", lambda: _soak(asked, Console()))


def _soak(asked: argparse.Namespace, console: Console) -> int:
    with command.fresh(FOLDER) as folder:

        def say(step: str) -> None:
            console.print(f"{time.strftime('%H:%M:%S')}  {step}", highlight=False)

        results = soak(asked.per_s, asked.minutes * 60, folder, say)
        (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n")
        shutil.rmtree(folder / "kafka")
    console.print_json(data=results)
    return 0 if results["is_flat"] and results["is_exact"] else command.FAULT_FOUND


if __name__ == "__main__":
    sys.exit(main())
