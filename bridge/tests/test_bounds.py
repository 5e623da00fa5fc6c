"""Fill each structure that grows with what senders write, and compare with docs/design/reads-and-bounds.md."""

# ruff: noqa: SLF001  (bounds are constants of their modules)

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.garbage_collection import trim_malloc
from bridge.kafka.transactions import rejection_finder, sink
from bridge.kafka.transactions.rejection_finder import FoundTopic
from bridge.loop import control_state
from bridge.partition import limits
from bridge.partition.names import MOST_IDS, RecentlyDelivered
from bridge.partition.options import Policy
from bridge.ports import Outgoing, Record
from kafka_timer import headers
from kafka_timer.control import Paused, control_record
from timer.format.unit import topic_hash

PAGE = Path(__file__).parents[2] / "docs/design/reads-and-bounds.md"


def names(count: int) -> list[str]:
    """Return as many names of topics, each as long as Kafka allows."""
    return [f"{number:0249d}" for number in range(count)]


def delivered_ids() -> object:
    recent = RecentlyDelivered()
    recent.add((b"%01024d" % number for number in range(2 * MOST_IDS)), 0)
    return recent


def control_keys() -> object:
    keys = (control_record(Paused("t", name), on=True) for name in names(control_state.MOST_KEYS))
    records = [Record(offset, 0, key, value, []) for offset, (key, value) in enumerate(keys)]
    port: Any = type("Port", (), {"poll": lambda _: records})()
    state = control_state.ControlState(port, {"t"})
    state.poll()
    return state


def breakers() -> object:
    made = limits.CircuitBreakers()
    made.trip(names(2 * limits.MAX_BREAKERS), 0)
    return made


def rates() -> object:
    made = limits.TargetRateLimits({"*": 1})
    for name in names(2 * limits.MOST_BUCKETS):
        made.spend(name, 1, 0)
    return made


def looked_up() -> object:
    """Topics that exist, each of which needs small batches too; and some that failed."""

    class Probe:
        def describe(self, topics: set[str]) -> dict[str, FoundTopic]:
            return {topic: FoundTopic(4, f"id of {topic[-20:]}") for topic in topics}

        def settings(self, _: object) -> dict[str, object]:
            return {}

    probe: Any = Probe()
    finder = rejection_finder.RejectionFinder(probe)
    for name in names(2 * rejection_finder.MOST_TOPICS):
        finder.known([Outgoing(name, -1, None, b"", [], 0)])
        finder._use_small_batches(name, 1)
    return finder, set(names(sink.MAX_SUSPECTS))


def checked_names() -> object:
    policy, given = Policy(allow=("a*",)), names(1 << 17)
    for name in given:
        topic_hash(headers.legal_topic(name.encode()) or "")
        policy.refusal(name)
    return policy


FILLED: dict[str, tuple[Callable[[], object], int]] = {
    "delivered ids": (delivered_ids, MOST_IDS),
    "control keys": (control_keys, control_state.MOST_KEYS),
    "breakers": (breakers, limits.MAX_BREAKERS),
    "rates of targets": (rates, limits.MOST_BUCKETS),
    "looked-up topics": (looked_up, rejection_finder.MOST_TOPICS),
    "checked names": (checked_names, headers._legal_topic.cache_parameters()["maxsize"]),
}
"""By row of the page: a function that returns the full structure, and the number of its entries."""


def rows() -> dict[str, str]:
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE))


def bound_mb(row: str) -> int:
    return int(re.findall(r"(\d+) MB", rows()[row])[-1])


def rss_mb() -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.parametrize("row", FILLED)
def test_the_page_names_the_number_that_the_code_has(row: str) -> None:
    assert f"{FILLED[row][1]:,}" in rows()[row]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_all_structures_at_their_bounds_take_no_more_memory_than_the_page_says() -> None:
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True, timeout=120)
    taken_mb = {row: float(mb) for row, _, mb in (line.rpartition(": ") for line in run.stdout.splitlines())}
    assert taken_mb.keys() == FILLED.keys()
    assert {row: mb for row, mb in taken_mb.items() if mb > bound_mb(row)} == {}
    assert sum(taken_mb.values()) > sum(map(bound_mb, FILLED)) / 2, "the bounds of the page are far too high"


def main() -> None:
    names(1 << 18)  # the heap has grown once
    kept = list[object]()
    trim_malloc()
    for row, (fill, _) in FILLED.items():
        before = rss_mb()
        kept.append(fill())
        trim_malloc()
        sys.stdout.write(f"{row}: {rss_mb() - before:.1f}\n")


if __name__ == "__main__":
    main()
