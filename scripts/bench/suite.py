"""Parts of the bench. Each has a broker of its own, and can be run alone.

core            by each collector: burst, copy loop, full load, intake
steady          in and out at once, at each of RATES; small transactions alone
rocketmq        burst by each collector; steady
pending         10 M timers that stay                  idle       16 partitions, no timers
at-least-once   burst, steady                          bodies     0.1, 1, 10 KB; one partition
slices          1, 4 instances of a tenth of a core    workers    the same by one command
engines         wheel and RocksDB, in turn: burst, steady
quick           core and steady in small

A part returns the measurements of each try. Both sides of a ratio are measured several times, in turn on the
same servers; all else in the first try only.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import get_args

from scripts.bench import scenarios
from scripts.bench.cpu_slice import CpuSlice
from scripts.bench.measurements import Flat, Sizes, flat
from scripts.bench.rocketmq import runner
from scripts.bench.rocketmq.runner import Load
from scripts.bench.rocketmq.servers import DEFAULT_TICK_MS, FINE_TICK_MS
from scripts.bench.servers import COLLECTORS, ZGC, BenchServers
from scripts.bench.topic_fixture import TopicFixture
from scripts.common.processes import BridgeProcess
from timer.options import Engine

LIMIT_PER_S = 10_000
"""Rate of the goal for lateness."""
GOAL_RATES = (1_000, LIMIT_PER_S)
"""Rates of the goals for CPU."""
RATES = (*GOAL_RATES, 20_000, 40_000)
FULL_PER_S, FULL_S = 80_000, 5.0
"""More than the bridge moves in and out at once, and for how long."""
PEER_RATES = (*GOAL_RATES, 20_000)
AT_LEAST_ONCE = ("--delivery", "at-least-once")
ENGINES: tuple[Engine, ...] = get_args(Engine)
IDLE_PARTITIONS, IDLE_S = 16, 30.0
SLICES, SLICE_CORES, SLICED_PARTITIONS = (1, 4), 0.1, 8
"""Instances of a small part of a core: the broker has the rest of two cores."""
WORKERS = (1, 4)
LEAST_PER_PARTITION = 10_000
"""Messages. Fewer would leave in one transaction, whose begin no reader sees."""
SHORT_S = 3.0
"""Duration of each rate of a warm-up where lateness has no goal."""
BODIES = (100, 1_000, 10_000)
Tries = list[dict[str, object]]


def _warm_up(servers: BenchServers, topics: TopicFixture, bridge: BridgeProcess, seconds: float = 0.0) -> None:
    servers.say("warm up")
    scenarios.warm_up(topics, bridge, seconds or servers.steady_seconds)


def core(servers: BenchServers, tries: Tries) -> None:
    for collector in COLLECTORS:
        with servers.kafka(collector) as kafka:
            topics = TopicFixture(kafka, servers.sizes)
            with topics.bridge(servers.folder / f"{collector}bridge") as bridge:
                _warm_up(servers, topics, bridge, SHORT_S)
                _most(servers, topics, bridge, tries, collector)
                for one in tries:
                    _steady(servers, topics, bridge, one, FULL_PER_S, collector)
            _intake(servers, topics, tries, collector)


def steady(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder) as bridge:
            _warm_up(servers, topics, bridge)
            for rate in RATES:
                for one in tries if rate in GOAL_RATES else tries[:1]:
                    _steady(servers, topics, bridge, one, rate)


def quick(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder / "bridge") as bridge:
            _warm_up(servers, topics, bridge)
            _most(servers, topics, bridge, tries)
            for one in tries:
                _steady(servers, topics, bridge, one, LIMIT_PER_S)
            _steady(servers, topics, bridge, tries[0], FULL_PER_S)
        _intake(servers, topics, tries)


def _most(
    servers: BenchServers, topics: TopicFixture, bridge: BridgeProcess, tries: Tries, collector: str = ZGC
) -> None:
    """Measure bursts and, in turn with them, the copy loop."""
    for one in tries:
        servers.say("burst, copy loop")
        one[f"{collector}burst"] = scenarios.burst(topics, [bridge])
        one[f"{collector}copy"] = scenarios.copy(topics)


def _intake(servers: BenchServers, topics: TopicFixture, tries: Tries, collector: str = ZGC) -> None:
    for one in tries:
        servers.say("intake: requests that wait for the bridge")
        one[f"{collector}intake"] = scenarios.intake(topics, servers.folder / f"{collector}bridge")


def _steady(
    servers: BenchServers,
    topics: TopicFixture,
    bridge: BridgeProcess,
    one: dict[str, object],
    per_s: int,
    collector: str = ZGC,
) -> None:
    """Measure a steady load, and for the goals' rates small transactions like its own."""
    servers.say(f"{per_s:,} a second")
    load = scenarios.steady(topics, bridge, per_s, FULL_S if per_s == FULL_PER_S else servers.steady_seconds)
    one[f"{collector}steady.{per_s}"] = load
    if per_s in GOAL_RATES:
        one[f"{collector}small.{per_s}"] = scenarios.small(topics, per_s, load, servers.steady_seconds)


def at_least_once(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder, AT_LEAST_ONCE) as bridge:
            _warm_up(servers, topics, bridge)
            servers.say("burst")
            tries[0]["at-least-once.burst"] = scenarios.burst(topics, [bridge])
            servers.say(f"{LIMIT_PER_S:,} a second")
            load = scenarios.steady(topics, bridge, LIMIT_PER_S, servers.steady_seconds)
            tries[0][f"at-least-once.steady.{LIMIT_PER_S}"] = load


def engines(servers: BenchServers, tries: Tries) -> None:
    for number, one in enumerate(tries):
        with servers.kafka() as kafka:
            for engine in ENGINES:
                topics = TopicFixture(kafka, servers.sizes, engine)
                with topics.bridge(servers.folder / f"{engine}{number}", ("--engine", engine)) as bridge:
                    _warm_up(servers, topics, bridge, SHORT_S)
                    servers.say(f"{engine}: burst")
                    one[f"engines.{engine}.burst"] = scenarios.burst(topics, [bridge])
                    for rate in GOAL_RATES:
                        servers.say(f"{engine}: {rate:,} a second")
                        one[f"engines.{engine}.steady.{rate}"] = scenarios.steady(
                            topics, bridge, rate, servers.steady_seconds
                        )


def idle(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, replace(servers.sizes, partitions=IDLE_PARTITIONS))
        tries[0]["idle"] = scenarios.idle(topics, servers.folder, IDLE_S)


def pending(servers: BenchServers, tries: Tries) -> None:
    servers.say(f"{servers.pending:,} timers")
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        found = scenarios.pending(topics, servers.folder, servers.pending, SHORT_S, len(tries))
    for one, measured in zip(tries, found, strict=True):
        one["pending"] = measured


def slices(servers: BenchServers, tries: Tries) -> None:
    """Measure one and four instances, so small that neither cores nor broker limit them."""
    _sliced(servers, tries, "slices", {count: [()] * count for count in SLICES})


def workers(servers: BenchServers, tries: Tries) -> None:
    """Measure one command with one and four workers, each as small as an instance of `slices`."""
    _sliced(servers, tries, "workers", {count: [("--workers", str(count))] for count in WORKERS})


def _sliced(servers: BenchServers, tries: Tries, name: str, commands: Mapping[int, Sequence[Sequence[str]]]) -> None:
    """Measure bursts by processes of a part of a core. commands: arguments of each bridge, by number of processes."""
    with servers.kafka() as kafka:
        for count, each in commands.items():
            servers.say(f"{count} of {SLICE_CORES} cores")
            topics = TopicFixture(kafka, _sizes(servers, SLICED_PARTITIONS), f"{name}-{count}")
            with ExitStack() as ends:
                parts = [ends.enter_context(CpuSlice(SLICE_CORES)) for _ in range(count)]
                bridges = [
                    ends.enter_context(topics.bridge(servers.folder / f"{count}-{number}", arguments))
                    for number, arguments in enumerate(each)
                ]
                if count == 1:
                    _warm_up(servers, topics, bridges[0], SHORT_S)
                scenarios.await_even(bridges, SLICED_PARTITIONS)

                def limit(parts: Sequence[CpuSlice] = parts, bridges: Sequence[BridgeProcess] = bridges) -> None:
                    pids = [pid for bridge in bridges for pid in bridge.worker_pids()]
                    for part, pid in zip(parts, pids, strict=True):
                        part.take(pid)

                tries[0][f"{name}.{count}"] = scenarios.burst(topics, bridges, when_taken_in=limit)


def _sizes(servers: BenchServers, partitions: int) -> Sizes:
    sizes = servers.smaller()
    return replace(sizes, partitions=partitions, messages=max(sizes.messages, LEAST_PER_PARTITION * partitions))


def bodies(servers: BenchServers, tries: Tries) -> None:
    """Measure a burst of each size of body, and one of a single partition, each with its own bridge and topics."""
    sizes = {f"bodies.{size}": replace(servers.smaller(), body_bytes=size) for size in BODIES}
    sizes["partitions.1"] = _sizes(servers, 1)
    with servers.kafka() as kafka:
        for name, each in sizes.items():
            servers.say(name)
            topics = TopicFixture(kafka, each, name)
            with topics.bridge(servers.folder / name) as bridge:
                if name == next(iter(sizes)):
                    _warm_up(servers, topics, bridge, SHORT_S)
                tries[0][name] = scenarios.burst(topics, [bridge])


def rocketmq(servers: BenchServers, tries: Tries) -> None:
    """Measure bursts by each collector, then lateness with a finer tick. Each of them has a server of its own."""
    for collector in COLLECTORS:
        servers.say(f"bursts, {collector or 'zgc.'}")
        for one, measured in zip(
            tries, _peer(servers, Load(collector, DEFAULT_TICK_MS, bursts=len(tries))), strict=True
        ):
            one |= {f"rocketmq.{collector}{name}": value for name, value in measured.items()}
    servers.say("steady loads")
    (measured,) = _peer(servers, Load(ZGC, FINE_TICK_MS, rates=PEER_RATES))
    tries[0] |= {f"rocketmq.{name}": value for name, value in measured.items()}


def _peer(servers: BenchServers, load: Load) -> list[Flat]:
    folder = servers.folder / f"{load.collector}{load.tick_ms}"
    with servers.in_memory(folder / "store"):
        return runner.measured(folder, load, servers.sizes, servers.steady_seconds if load.rates else SHORT_S)


_ALL = (core, steady, rocketmq, pending, idle, at_least_once, bodies, slices, workers, engines)
PARTS: dict[str, Callable[[BenchServers, Tries], None]] = {
    **{part.__name__.replace("_", "-"): part for part in _ALL},
    "quick": quick,
}
WHOLE = tuple(name for name in PARTS if name != "quick")


def measure(part: str, servers: BenchServers) -> list[Flat]:
    """Return the measurements of each try."""
    tries: Tries = [{} for _ in range(servers.tries)]
    PARTS[part](servers, tries)
    return [flat(one) for one in tries]
