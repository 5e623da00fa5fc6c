"""The parts of the bench: each on a broker of its own, each measured by the scenarios, each to be had alone.

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
from functools import partial

from bridge.dev.embedded_kafka import EmbeddedKafka
from scripts.bench import scenarios
from scripts.bench.cpu_slice import CpuSlice
from scripts.bench.measurements import Flat, Sizes, flat
from scripts.bench.rocketmq import runner as peer
from scripts.bench.servers import BenchServers
from scripts.bench.topic_fixture import TopicFixture
from scripts.common import processes
from scripts.common.processes import BridgeProcess

RATES = (1_000, 10_000, 20_000, 40_000, 60_000)
WARM_UP_RATES = (2_000, 30_000)
"""None of those that are measured, as each has a target of its own."""
AT_LEAST_ONCE_RATES = (10_000, 40_000, 60_000)
AT_LEAST_ONCE = ("--delivery", "at-least-once")
INSTANCES = ((1, 1), (1, 2), (4, 1), (4, 2), (16, 1), (16, 2))
"""Pairs of partitions and instances."""
SLICES, SLICE_CORES, SLICED_PARTITIONS = (1, 2, 4), 0.1, 8
"""Instances of so much of a core: what they take together leaves the broker the rest of two cores."""
A_PARTITION = 10_000
"""At least so many messages for each: a few would leave in one transaction, whose begin nobody sees."""
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
"""Where goals ask how late a message is: beside small transactions without a bridge, and with the brokers on a disk."""


def core(place: BenchServers) -> Flat:
    with place.kafka() as kafka:
        stage = TopicFixture(kafka.bootstrap_servers, place.sizes)
        found: dict[str, object] = {}
        with stage.bridge(place.folder) as bridge:
            _warm_up(place, stage, kafka, bridge)
            place.say("spread")
            found["spread"] = scenarios.spread(stage, bridge)
            place.say("burst")
            found["burst"] = scenarios.burst(stage, [bridge])
            place.say("named: half of them with ids, a tenth cancelled")
            found["named"] = scenarios.named(stage, bridge)
            found["core.peak_rss_mb"] = bridge.usage().peak_rss_mb
        place.say("copy loop: a reference, behind the same warm-up")
        found["copy"] = scenarios.copy(stage)
        place.say("intake: requests that wait for the bridge")
        found["intake"] = scenarios.intake(stage, place.folder)
    return flat(found)


def steady(place: BenchServers) -> Flat:
    return flat(_steady(place, RATES))


def disk(place: BenchServers) -> Flat:
    return flat({"disk": _steady(replace(place, memory=None), (LIMIT_PER_S,))})


def _steady(place: BenchServers, rates: tuple[int, ...]) -> dict[str, object]:
    """At each of these, and the limit beside them."""
    with place.kafka() as kafka:
        stage = TopicFixture(kafka.bootstrap_servers, place.sizes)
        with stage.bridge(place.folder) as bridge:
            _warm_up(place, stage, kafka, bridge)
            found = _rates(place, stage, kafka, bridge, rates)
        place.say("small transactions alone: the limit")
        return {"small": scenarios.small(stage, LIMIT_PER_S, place.steady_seconds), **found}


def at_least_once(place: BenchServers) -> Flat:
    with place.kafka() as kafka:
        stage = TopicFixture(kafka.bootstrap_servers, place.sizes)
        with stage.bridge(place.folder, AT_LEAST_ONCE) as bridge:
            _warm_up(place, stage, kafka, bridge)
            found: dict[str, object] = {
                "spread": scenarios.spread(stage, bridge),
                "burst": scenarios.burst(stage, [bridge]),
                **_rates(place, stage, kafka, bridge, AT_LEAST_ONCE_RATES),
            }
    return flat({"at-least-once": found})


def _warm_up(place: BenchServers, stage: TopicFixture, kafka: EmbeddedKafka, bridge: BridgeProcess) -> None:
    """Warm up: a new broker uses a core for half a minute to compile itself."""
    place.say("warm up")
    scenarios.warm_up(stage, bridge, scenarios.WARM_UP, 5.0)
    _rates(place, stage, kafka, bridge, WARM_UP_RATES)


def _rates(
    place: BenchServers, stage: TopicFixture, kafka: EmbeddedKafka, bridge: BridgeProcess, rates: tuple[int, ...]
) -> dict[str, object]:
    assert kafka.pid is not None
    found: dict[str, object] = {}
    for per_s in rates:
        place.say(f"{per_s:,} a second")
        found[f"steady.{per_s}"] = scenarios.steady(stage, bridge, kafka.pid, per_s, place.steady_seconds)
    return found


def outage(place: BenchServers) -> Flat:
    with place.kafka() as kafka:
        stage = TopicFixture(kafka.bootstrap_servers, place.sizes)
        warm_up = partial(_warm_up, place, stage, kafka)
        return flat({"outage": scenarios.outage(stage, place.folder, warm_up)})


def pending(place: BenchServers) -> Flat:
    found: dict[str, object] = {}
    for timers in place.pending:
        place.say(f"{timers:,} timers")
        folder = place.folder / str(timers)
        with place.kafka(folder) as kafka:
            stage = TopicFixture(kafka.bootstrap_servers, place.sizes)
            warm_up = partial(_warm_up, place, stage, kafka)
            found[f"pending.{timers}"] = scenarios.pending(stage, folder, timers, warm_up)
    return flat(found)


def instances(place: BenchServers) -> Flat:
    """Each instance has its own core, if there are enough."""
    found: dict[str, object] = {}
    with place.kafka() as kafka:
        for partitions, count in INSTANCES:
            name = f"{partitions}x{count}"
            place.say(f"{partitions} partitions, {count} instances")
            stage = TopicFixture(kafka.bootstrap_servers, _for(place, partitions), name)
            with ExitStack() as ends:
                bridges = [stage.bridge(place.folder / f"{name}-{number}") for number in range(count)]
                for number, bridge in enumerate(bridges):
                    ends.callback(bridge.stop)
                    bridge.start() if number < partitions else bridge.start_spare()
                    processes.pin(bridge.pid, number)
                if not found:
                    _warm_up(place, stage, kafka, bridges[0])
                if count <= partitions:
                    scenarios.await_even(bridges, partitions)
                found[f"instances.{name}"] = scenarios.burst(stage, bridges)
    return flat(found)


def slices(place: BenchServers) -> Flat:
    """One to four instances, so small that neither cores nor broker limit them."""
    found: dict[str, object] = {}
    with place.kafka() as kafka:
        for count in SLICES:
            place.say(f"{count} instances of {SLICE_CORES} cores")
            stage = TopicFixture(kafka.bootstrap_servers, _for(place, SLICED_PARTITIONS), f"s{count}")
            with ExitStack() as ends:
                parts = [ends.enter_context(CpuSlice(SLICE_CORES)) for _ in range(count)]
                bridges = [stage.bridge(place.folder / f"{count}-{number}") for number in range(count)]
                for bridge in bridges:
                    ends.enter_context(bridge)
                if not found:
                    _warm_up(place, stage, kafka, bridges[0])
                scenarios.await_even(bridges, SLICED_PARTITIONS)
                found[f"slices.{count}"] = scenarios.burst(stage, bridges, when_taken_in=partial(_hold, parts, bridges))
    return flat(found)


def _hold(parts: Sequence[CpuSlice], bridges: Sequence[BridgeProcess]) -> None:
    for part, bridge in zip(parts, bridges, strict=True):
        part.take(bridge.pid)


def _for(place: BenchServers, partitions: int) -> Sizes:
    sizes = place.smaller()
    return replace(sizes, partitions=partitions, messages=max(sizes.messages, A_PARTITION * partitions))


def bodies(place: BenchServers) -> Flat:
    return _bursts(place, {f"bodies.{size}": ((), replace(place.smaller(), body_bytes=size)) for size in BODIES})


def publishing(place: BenchServers) -> Flat:
    return _bursts(place, {f"publishing.{name}": (way, place.smaller()) for name, way in PUBLISHING.items()})


def _bursts(place: BenchServers, ways: Mapping[str, tuple[tuple[str, ...], Sizes]]) -> Flat:
    """Measure each with its own bridge and topics."""
    found: dict[str, object] = {}
    with place.kafka() as kafka:
        for name, (arguments, sizes) in ways.items():
            place.say(name)
            stage = TopicFixture(kafka.bootstrap_servers, sizes, name)
            with stage.bridge(place.folder / name, arguments) as bridge:
                if not found:
                    _warm_up(place, stage, kafka, bridge)
                found[name] = scenarios.burst(stage, [bridge])
    return flat(found)


def rocketmq(place: BenchServers) -> Flat:
    """Measure all with the default tick; with the finer tick only what depends on it."""
    found: Flat = {}
    for tick_ms in TICKS_MS:
        place.say(f"tick {tick_ms} ms")
        default = tick_ms == TICKS_MS[0]
        folder, rates = place.folder / str(tick_ms), RATES if default else (LIMIT_PER_S,)
        asked = ("spread", "burst", "outage") if default else ("spread", "burst")
        with place.in_memory(folder / "store"):
            told = peer.measured(folder, tick_ms, place.sizes, asked, (*WARM_UP_RATES, *rates), place.steady_seconds)
        warm = tuple(f"steady.{rate}." for rate in WARM_UP_RATES)
        found |= {f"rocketmq.{tick_ms}.{name}": value for name, value in told.items() if not name.startswith(warm)}
    return found


PARTS: dict[str, Callable[[BenchServers], Flat]] = {
    "core": core,
    "steady": steady,
    "at-least-once": at_least_once,
    "outage": outage,
    "pending": pending,
    "instances": instances,
    "bodies": bodies,
    "publishing": publishing,
    "slices": slices,
    "disk": disk,
    "rocketmq": rocketmq,
}
