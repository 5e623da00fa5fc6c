"""Run seeds, one with its story or many on all cores, with a planted bug or without.

python -m bridge.tests.simulation 0 10000      10,000 seeds on all cores; figures, and the bad seeds
python -m bridge.tests.simulation 4711         one seed, its story told
python -m bridge.tests.simulation 0 500 "K left out" outputs
                                             with a mistake in it, judged by what readers see alone
"""

import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from unittest import mock

from bridge.garbage_collection import tune_gc
from bridge.loop import assigned_partitions
from bridge.partition import recover as recovery
from bridge.partition.recover import invalidate_store
from bridge.tests.simulation.oracle import Violation
from bridge.tests.simulation.planted_bugs import applied, engines_for
from bridge.tests.simulation.request_generator import CRON_UNIT_MS
from bridge.tests.simulation.world import World
from kafka_timer import headers
from kafka_timer.origin import TimerPartition
from schemas import recurrence
from timer.disk import Disk
from timer.errors import CorruptStoreError
from timer.options import Engine
from timer.testing import SimDisk


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed's. `fault` is empty where all held."""

    seed: int
    fault: str
    counts: Counter[str]
    story: list[str]


@contextmanager
def small_intervals() -> Iterator[None]:
    """Let recurring timers fit into a history: short intervals, and a cron of `CRON_UNIT_MS` for the minute."""

    def next_match_ms(expression: str, _zone: str, after_ms: int) -> int:
        step_ms = int(expression.split()[0].removeprefix("*/")) * CRON_UNIT_MS
        return (after_ms // step_ms + 1) * step_ms

    with (
        mock.patch.object(recurrence, "_next_match_ms", next_match_ms),
        mock.patch.object(headers, "LEAST_EVERY_MS", 1),
    ):
        yield


@contextmanager
def damage_judged() -> Iterator[None]:
    """A rebuild heals what the store itself got wrong, so it would never be seen."""

    def judged(partition: TimerPartition, disk: Disk, wrong: CorruptStoreError) -> None:
        if isinstance(disk, SimDisk) and not disk.may_be_torn:
            raise Violation(f"{partition} is rebuilt, though nothing can have damaged its store: {wrong}")
        invalidate_store(partition, disk, wrong)

    with ExitStack() as patches:
        for module in (recovery, assigned_partitions):
            patches.enter_context(mock.patch.object(module, "invalidate_store", judged))
        yield


def run_seed(
    seed: int,
    mutation: str = "",
    only_outputs: bool = False,  # noqa: FBT001
    *,
    is_brief: bool = False,
    engines: tuple[Engine, ...] = (),
) -> Outcome:
    """One history; what is wrong with it, if anything.

    mutation: a planted bug. Only a Violation shows that it is found: any other exception may be its own.
    is_brief: the story is told only if something is wrong.
    """
    world = World(seed, only_outputs=only_outputs, engines=engines_for(mutation) or engines)
    fault = ""
    judged = nullcontext() if only_outputs else damage_judged()
    with small_intervals(), applied(mutation) if mutation else nullcontext(), judged:
        try:
            world.run()
        except Exception as wrong:  # noqa: BLE001  (whatever it is, it is the finding)
            name, place = type(wrong).__name__, traceback.extract_tb(wrong.__traceback__)[-1]
            world.counts[name] += 1
            if not mutation or isinstance(wrong, Violation):
                fault = f"{name}: {wrong} ({place.name}, line {place.lineno})"
    return Outcome(seed, fault, world.counts, world.story() if fault or not is_brief else [])


def main(arguments: list[str]) -> int:
    logging.disable()
    seeds = [int(argument) for argument in arguments if argument.isdigit()]
    words = [argument for argument in arguments if not argument.isdigit()]
    only_outputs = "outputs" in words
    engines: tuple[Engine, ...] = ("rocksdb",) if "rocksdb" in words else ()
    mutation = next((word for word in words if word not in ("outputs", "rocksdb")), "")
    if len(seeds) == 2:
        return 1 if run_many(range(*seeds), mutation, only_outputs=only_outputs, engines=engines) else 0
    outcome = run_seed(seeds[0], mutation, only_outputs, engines=engines)
    sys.stdout.write("\n".join([*outcome.story, outcome.fault or "nothing is wrong", ""]))
    return 1 if outcome.fault else 0


def _begin_work() -> None:
    logging.disable()
    tune_gc()


def run_many(seeds: range, mutation: str = "", *, only_outputs: bool = False, engines: tuple[Engine, ...] = ()) -> int:
    """Runs them on all cores, says how it went, and returns how many are bad."""
    began = time.monotonic()
    total: Counter[str] = Counter()
    bad = 0
    run = partial(run_seed, mutation=mutation, only_outputs=only_outputs, is_brief=True, engines=engines)
    with ProcessPoolExecutor(initializer=_begin_work) as pool:
        for outcome in pool.map(run, seeds, chunksize=4):
            total += outcome.counts
            if outcome.fault:
                bad += 1
                sys.stdout.write(f"seed {outcome.seed}: {outcome.fault[:400]}\n")
    figures = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    sys.stdout.write(f"{len(seeds)} seeds in {time.monotonic() - began:.1f} s, {bad} bad: {figures}\n")
    return bad
