"""Parts of the bench. Each has a broker of its own, and can be run alone.

core            spread, burst, named, copy, intake: the first figures
steady          in and out at once, at each of RATES          at-least-once   spread, burst, steady
outage          killed with timers pending                    pending         1 M of them (full: 10 M)
instances       1, 4, 16 partitions by 1 and 2 instances      bodies          0.1, 1, 10 KB
publishing      compression and linger                        slices          1, 2, 4 instances of a tenth of a core
disk            steady, the broker's data on a disk           rocketmq        the peer, ticks of 1000 and 100 ms
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from scripts.bench import scenarios
from scripts.bench.cpu_slice import CpuSlice
from scripts.bench.measurements import Flat, Measured, Sizes, flat
from scripts.bench.rocketmq import runner
from scripts.bench.scenarios import WARM_UP_RATES
from scripts.bench.servers import BenchServers
from scripts.bench.topic_fixture import TopicFixture
from scripts.common import processes
from scripts.common.processes import BridgeProcess

RATES = (1_000, 10_000, 20_000, 40_000, 60_000)
AT_LEAST_ONCE_RATES = (10_000, 40_000, 60_000)
AT_LEAST_ONCE = ("--delivery", "at-least-once")
INSTANCES = ((1, 1), (1, 2), (4, 1), (4, 2), (16, 1), (16, 2))
"""Pairs of partitions and instances."""
SLICES, SLICE_CORES, SLICED_PARTITIONS = (1, 2, 4), 0.1, 8
"""Instances of a small part of a core: the broker has the rest of two cores."""
LEAST_PER_PARTITION = 10_000
"""Messages. Fewer would leave in one transaction, whose begin no reader sees."""
BODIES = (100, 1_000, 10_000)
PUBLISHING = {
    "default": (),
    "lz4": ("--compression", "lz4"),
    "zstd": ("--compression", "zstd"),
    "linger-0": ("--linger-ms", "0"),
}
PENDING, PENDING_FULL = 1_000_000, 10_000_000
TICKS_MS = (1000, 100)
LIMIT_PER_S = 10_000
"""Rate of the lateness goals: also of small transactions without a bridge, and of brokers that write to a disk."""


def _warm_up(servers: BenchServers, topics: TopicFixture, bridge: BridgeProcess) -> None:
    servers.say("warm up")
    scenarios.warm_up(topics, bridge, servers.steady_seconds)


def core(servers: BenchServers) -> Measured:
    found: dict[str, object] = {}
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder) as bridge:
            _warm_up(servers, topics, bridge)
            servers.say("spread")
            found["spread"] = scenarios.spread(topics, bridge)
            servers.say("burst")
            found["burst"] = scenarios.burst(topics, [bridge])
            servers.say("named: half of them with ids, a tenth cancelled")
            found["named"] = scenarios.named(topics, bridge)
            found["core.peak_rss_mb"] = bridge.usage().peak_rss_mb
        servers.say("copy loop: a reference, after the same warm-up")
        found["copy"] = scenarios.copy(topics)
        servers.say("intake: requests that wait for the bridge")
        found["intake"] = scenarios.intake(topics, servers.folder)
    return found


def steady(servers: BenchServers, rates: Sequence[int] = RATES) -> Measured:
    """Measure each rate, and then the limit without a bridge."""
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder) as bridge:
            _warm_up(servers, topics, bridge)
            found = _steady(servers, topics, bridge, rates)
        servers.say("small transactions alone: the limit")
        found["small"] = scenarios.small(topics, LIMIT_PER_S, servers.steady_seconds)
    return found


def disk(servers: BenchServers) -> Measured:
    return {"disk": steady(replace(servers, memory=None), (LIMIT_PER_S,))}


def at_least_once(servers: BenchServers) -> Measured:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        with topics.bridge(servers.folder, AT_LEAST_ONCE) as bridge:
            _warm_up(servers, topics, bridge)
            found = {"spread": scenarios.spread(topics, bridge), "burst": scenarios.burst(topics, [bridge])}
            return {"at-least-once": found | _steady(servers, topics, bridge, AT_LEAST_ONCE_RATES)}


def _steady(
    servers: BenchServers, topics: TopicFixture, bridge: BridgeProcess, rates: Sequence[int]
) -> dict[str, Measured]:
    found = {}
    for per_s in rates:
        servers.say(f"{per_s:,} a second")
        found[f"steady.{per_s}"] = scenarios.steady(topics, bridge, per_s, servers.steady_seconds)
    return found


def outage(servers: BenchServers) -> Measured:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        return {"outage": scenarios.outage(topics, servers.folder, servers.steady_seconds)}


def pending(servers: BenchServers) -> Measured:
    found = {}
    for timers in servers.pending:
        servers.say(f"{timers:,} timers")
        folder = servers.folder / str(timers)
        with servers.kafka(folder) as kafka:
            topics = TopicFixture(kafka, servers.sizes)
            found[f"pending.{timers}"] = scenarios.pending(topics, folder, timers, servers.steady_seconds)
    return found


def instances(servers: BenchServers) -> Measured:
    """Measure one and two instances. Each has its own core, if there are enough."""
    found: dict[str, Measured] = {}
    with servers.kafka() as kafka:
        for partitions, count in INSTANCES:
            name = f"{partitions}x{count}"
            servers.say(f"{partitions} partitions, {count} instances")
            topics = TopicFixture(kafka, _sizes(servers, partitions), name)
            with ExitStack() as ends:
                bridges = [topics.bridge(servers.folder / f"{name}-{number}") for number in range(count)]
                for number, bridge in enumerate(bridges):
                    ends.callback(bridge.stop)
                    bridge.start() if number < partitions else bridge.start_spare()
                    processes.pin(bridge.pid, number)
                if not found:
                    _warm_up(servers, topics, bridges[0])
                if count <= partitions:
                    scenarios.await_even(bridges, partitions)
                found[f"instances.{name}"] = scenarios.burst(topics, bridges)
    return found


def slices(servers: BenchServers) -> Measured:
    """Measure one to four instances, so small that neither cores nor broker limit them."""
    found: dict[str, Measured] = {}
    with servers.kafka() as kafka:
        for count in SLICES:
            servers.say(f"{count} instances of {SLICE_CORES} cores")
            topics = TopicFixture(kafka, _sizes(servers, SLICED_PARTITIONS), f"s{count}")
            with ExitStack() as ends:
                parts = [ends.enter_context(CpuSlice(SLICE_CORES)) for _ in range(count)]
                bridges = [
                    ends.enter_context(topics.bridge(servers.folder / f"{count}-{number}")) for number in range(count)
                ]
                if not found:
                    _warm_up(servers, topics, bridges[0])
                scenarios.await_even(bridges, SLICED_PARTITIONS)

                def limit(parts: Sequence[CpuSlice] = parts, bridges: Sequence[BridgeProcess] = bridges) -> None:
                    for part, bridge in zip(parts, bridges, strict=True):
                        part.take(bridge.pid)

                found[f"slices.{count}"] = scenarios.burst(topics, bridges, when_taken_in=limit)
    return found


def _sizes(servers: BenchServers, partitions: int) -> Sizes:
    sizes = servers.smaller()
    return replace(sizes, partitions=partitions, messages=max(sizes.messages, LEAST_PER_PARTITION * partitions))


def bodies(servers: BenchServers) -> Measured:
    smaller = servers.smaller()
    return _bursts(servers, {f"bodies.{size}": ((), replace(smaller, body_bytes=size)) for size in BODIES})


def publishing(servers: BenchServers) -> Measured:
    return _bursts(servers, {f"publishing.{name}": (way, servers.smaller()) for name, way in PUBLISHING.items()})


def _bursts(servers: BenchServers, ways: Mapping[str, tuple[tuple[str, ...], Sizes]]) -> Measured:
    """Measure a burst of each, with its own bridge and topics."""
    found: dict[str, Measured] = {}
    with servers.kafka() as kafka:
        for name, (arguments, sizes) in ways.items():
            servers.say(name)
            topics = TopicFixture(kafka, sizes, name)
            with topics.bridge(servers.folder / name, arguments) as bridge:
                if not found:
                    _warm_up(servers, topics, bridge)
                found[name] = scenarios.burst(topics, [bridge])
    return found


def rocketmq(servers: BenchServers) -> Measured:
    """Measure all with the default tick; with the finer tick only what depends on it."""
    found: Flat = {}
    for tick_ms in TICKS_MS:
        servers.say(f"tick {tick_ms} ms")
        default = tick_ms == TICKS_MS[0]
        folder, rates = servers.folder / str(tick_ms), RATES if default else (LIMIT_PER_S,)
        names = ("spread", "burst", "outage") if default else ("spread", "burst")
        with servers.in_memory(folder / "store"):
            of = runner.measured(
                folder, tick_ms, servers.sizes, names, (*WARM_UP_RATES, *rates), servers.steady_seconds
            )
        warm_up = tuple(f"steady.{rate}." for rate in WARM_UP_RATES)
        found |= {f"rocketmq.{tick_ms}.{name}": value for name, value in of.items() if not name.startswith(warm_up)}
    return found


_ALL = (core, steady, at_least_once, outage, pending, instances, bodies, publishing, slices, disk, rocketmq)
PARTS: dict[str, Callable[[BenchServers], Measured]] = {part.__name__.replace("_", "-"): part for part in _ALL}


def measure(part: str, servers: BenchServers) -> Flat:
    return flat(PARTS[part](servers))
