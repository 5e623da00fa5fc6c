"""Histories of the simulation as the audit's records.

    played(17, "K left out")  ->  requests, deliveries, rejected records and receipts of seed 17 with that bug

The oracle stops at the first violation. Here the history goes on until no record is written, as an audit
judges whole histories. It includes records that retention deletes. The delay levels never change, as an audit knows one
setting of them.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from unittest import mock

import bridge.tests.simulation.option_generator as options
from bridge.testing.fake_kafka import Entry, Partition
from bridge.tests.simulation.oracle import RECEIPTS, REJECTED, Violation
from bridge.tests.simulation.planted_bugs import applied, engines_for
from bridge.tests.simulation.request_generator import (
    BILLS,
    MORE_TIMERS,
    NOWHERE,
    ORDERS,
    ORDERS_PARTITIONS,
    SECRET,
    SMALL,
    TIMERS,
)
from bridge.tests.simulation.run import small_intervals
from bridge.tests.simulation.world import World
from kafka_timer.control import Paused
from schemas.rules import Rules
from spark_jobs.audit_rules.evidence import PartitionCount
from spark_jobs.tests.records import History, Record

_BEGIN_MS = 500_000
"""Before any delivery of the simulation."""
TARGETS = (ORDERS, BILLS, NOWHERE, SECRET, SMALL)
LEVELS_MS = (10, 100, 400)
_QUIET_TURNS, _MOST_TURNS = 60, 1_500


@dataclass(frozen=True)
class Simulated:
    """A history. `fault`: the violation that the oracle found, or empty."""

    fault: str
    history: History


def played(seed: int, mutation: str = "") -> Simulated:
    """Play a seed, with a planted bug if one is named, to its end."""
    gone: dict[Partition, list[Entry]] = {}
    fault = ""
    planted = applied(mutation) if mutation else nullcontext()
    with small_intervals(), planted, _nothing_lost(gone), _same_levels():
        world = World(seed, engines=engines_for(mutation))
        try:
            world.run()
        except Violation as wrong:
            fault = str(wrong)
            _go_on(world)
        except Exception as wrong:  # noqa: BLE001  (of the bug: the records so far count)
            fault = f"{type(wrong).__name__}: {wrong}" if not mutation else ""
    return Simulated(fault, _exported(world, gone))


def _go_on(world: World) -> None:
    """End all faults and run until no record is written for a while. The oracle is off: its state is wrong by now."""
    world.oracle.only_outputs = True
    with mock.patch.object(world.oracle, "observe", return_value=0):
        try:
            for life in world.instances:
                life.instance.kill()
            world.mend()
            for timer_partition in world.partitions:
                for target in TARGETS:
                    world.control(Paused(timer_partition.topic, target), on=False)
            quiet, seen = 0, -1
            for _ in range(_MOST_TURNS):
                for life in world.instances:
                    life.turn()
                written = len(world.kafka.commits)
                quiet, seen = (quiet + 1 if written == seen and not world.planned else 0), written
                if quiet > _QUIET_TURNS:
                    return
        except Exception:  # noqa: BLE001  (of the bug)
            return


@contextmanager
def _nothing_lost(gone: dict[Partition, list[Entry]]) -> Iterator[None]:
    """Keep in `gone` the records that retention deletes: a daily audit would have read them in time."""
    delete_before = Partition.delete_before

    def delete(self: Partition, offset: int) -> None:
        gone.setdefault(self, []).extend(self.everything()[: max(0, offset - self.first)])
        delete_before(self, offset)

    with mock.patch.object(Partition, "delete_before", delete):
        yield


def _same_levels() -> AbstractContextManager[object]:
    drawn = options.draw_rules

    def draw(rng: Random, reach_ms: int) -> Rules:
        return drawn(rng, reach_ms).model_copy(update={"levels_ms": LEVELS_MS})

    return mock.patch.object(options, "draw_rules", draw)


def _exported(world: World, gone: dict[Partition, list[Entry]]) -> History:
    records: dict[str, list[Record]] = defaultdict(list)
    for name, topic in world.kafka.topics.items():
        for log in topic.partitions:
            every = [*gone.get(log, ()), *log.everything()]
            records[name] += [_record(name, log.number, entry) for entry in every if entry.is_committed]
    delivered = [record for target in TARGETS for record in records[target]]
    asked = records[TIMERS] + records[MORE_TIMERS]
    counts = {PartitionCount(ORDERS, ORDERS_PARTITIONS, _BEGIN_MS)}
    return History(asked, delivered, records[REJECTED], records[RECEIPTS], profiles=("native",), counts=counts)


def _record(topic: str, partition: int, entry: Entry) -> Record:
    """Return the record. On target topics its time is that of the release, by the bridge's clock."""
    at_ms = entry.timestamp_ms if topic in TARGETS else entry.append_ms
    key, value, headers = (None, None, ()) if entry.is_undecodable else (entry.key, entry.value, tuple(entry.headers))
    return Record(topic, partition, entry.offset, at_ms, "LogAppendTime", key, value, headers)
