"""Parts of the bench. Each has a broker of its own, and can be run alone.

core       burst, full load, intake
steady     in and out at once, at each of RATES; plain transactions alone
burst      bodies of 0.1, 1, 10 KB; one partition
pending    10 M timers that stay              idle      16 partitions, no timers
scale      targets x partitions (SHAPES) at 5,000/s, beside plain transactions of the same records
rocketmq   burst; steady

A part returns the measurements of each try. Both sides of a ratio are measured several times, in turn on the same
servers; all else in the first try only. If another checkout's bridge is given, core and steady measure each try by one
bridge and then by the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bridge.dev.embedded_kafka import EmbeddedKafka
from scripts.bench import scenarios
from scripts.bench.rocketmq import peer
from scripts.bench.scenarios import Flat, flat
from scripts.bench.topic_fixture import OTHER, BenchServers, TopicFixture
from scripts.common.quiet_kafka import in_memory

LIMIT_PER_S = 10_000
"""Rate of the goal for lateness."""
GOAL_RATES = (1_000, LIMIT_PER_S)
"""Rates of the goals for CPU."""
RATES = (*GOAL_RATES, 20_000, 40_000)
FULL_PER_S, FULL_S = 80_000, 5.0
"""More than the bridge moves in and out at once, and for how long."""
PEER_RATES = (*GOAL_RATES, 20_000)
IDLE_PARTITIONS, IDLE_S = 16, 30.0
SHORT_S = 3.0
"""Duration of each rate of a warm-up where lateness has no goal."""
BODIES, _SMALLER = (100, 1_000, 10_000), 0.4
"""Bytes of other bodies, and the share of the messages in their bursts."""
SHAPES = ((4, 1), (4, 200), (64, 200), (16, 1_000))
"""Partitions of the timer topic, and targets of one partition."""
SCALE_PER_S = 5_000
Tries = list[dict[str, object]]


def _warm_up(servers: BenchServers, kafka: EmbeddedKafka, seconds: float) -> None:
    servers.say("warm up")
    topics = TopicFixture(kafka, servers.sizes, "warm-up")
    with topics.bridge(servers.folder / f"{kafka.folder.name}-warm-up") as bridge:
        scenarios.warm_up(topics, bridge, seconds)


def _turns(
    servers: BenchServers, kafka: EmbeddedKafka, tries: Tries
) -> Iterator[tuple[dict[str, object], str, TopicFixture, Path]]:
    """Yield for each try and then each bridge: the try, a prefix, topics of their own, a folder for the bridge.

    The bridges begin in turn, as a broker becomes faster with time.
    """
    for number, one in enumerate(tries):
        for side, command in list(servers.bridges.items())[:: 1 - 2 * (number % 2)]:
            name = f"{side}{number}"
            servers.say(f"try {number + 1}{' of the other bridge' if side == OTHER else ''}")
            yield one, side, TopicFixture(kafka, servers.sizes, name, command), servers.folder / name


def core(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        _warm_up(servers, kafka, SHORT_S)
        for one, begin, topics, folder in _turns(servers, kafka, tries):
            with topics.bridge(folder) as bridge:
                one[f"{begin}burst"] = scenarios.burst(topics, bridge)
                one[f"{begin}steady.{FULL_PER_S}"] = scenarios.steady(topics, bridge, FULL_PER_S, FULL_S)
            one[f"{begin}intake"] = scenarios.intake(topics, folder)


def steady(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        _warm_up(servers, kafka, servers.seconds)
        for one, begin, topics, folder in _turns(servers, kafka, tries):
            with topics.bridge(folder) as bridge:
                for rate in RATES if one is tries[0] and not servers.is_quick else GOAL_RATES:
                    servers.say(f"{rate:,} a second")
                    load = scenarios.steady(topics, bridge, rate, servers.seconds)
                    one[f"{begin}steady.{rate}"] = load
                    if rate in GOAL_RATES:
                        one[f"{begin}plain.{rate}"] = scenarios.plain(topics, rate, load, servers.seconds)


def burst(servers: BenchServers, tries: Tries) -> None:
    """Measure a burst of each size of body, and one of a single partition, each with its own bridge and topics."""
    smaller = replace(servers.sizes, messages=int(servers.sizes.messages * _SMALLER))
    sizes = {f"bodies.{size}": replace(smaller, body_bytes=size) for size in BODIES}
    sizes["partitions.1"] = replace(smaller, partitions=1)
    with servers.kafka() as kafka:
        _warm_up(servers, kafka, SHORT_S)
        for name, each in sizes.items():
            servers.say(name)
            topics = TopicFixture(kafka, each, name)
            with topics.bridge(servers.folder / name) as bridge:
                tries[0][name] = scenarios.burst(topics, bridge)


def pending(servers: BenchServers, tries: Tries) -> None:
    servers.say(f"{servers.pending:,} timers")
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, servers.sizes)
        found = scenarios.pending(topics, servers.folder, servers.pending, SHORT_S, len(tries))
    for one, measured in zip(tries, found, strict=True):
        one["pending"] = measured


def idle(servers: BenchServers, tries: Tries) -> None:
    with servers.kafka() as kafka:
        topics = TopicFixture(kafka, replace(servers.sizes, partitions=IDLE_PARTITIONS))
        tries[0]["idle"] = scenarios.idle(topics, servers.folder, IDLE_S)


def scale(servers: BenchServers, tries: Tries) -> None:
    """Measure each shape with a broker of its own, whose first round of both sides is a warm-up."""
    for partitions, targets in SHAPES[:2] if servers.is_quick else SHAPES:
        shape, seconds = f"{partitions}x{targets}", servers.seconds
        servers.say(f"{shape}: topics, warm up")
        with servers.kafka(shape) as kafka:
            topics = TopicFixture(kafka, replace(servers.sizes, partitions=partitions))
            names = [topics.target("scale", 1) for _ in range(targets)]
            with topics.bridge(servers.folder / shape) as bridge:
                for one in ({}, *tries):
                    load = scenarios.steady(topics, bridge, SCALE_PER_S, seconds, names)
                    alone = scenarios.plain(topics, SCALE_PER_S, load, seconds, names, 1)
                    one[f"scale.{shape}"] = {"bridge": load, "plain": alone}
                    servers.say(f"{shape}: measured")


def rocketmq(servers: BenchServers, tries: Tries) -> None:
    """Measure bursts, then lateness with a finer tick. Each of them has a server of its own."""
    for load in (peer.Load(peer.DEFAULT_TICK_MS, len(tries)), peer.Load(peer.FINE_TICK_MS, len(tries), PEER_RATES)):
        servers.say(f"{load.rounds} rounds of {f'{len(load.rates)} steady loads' if load.rates else 'a burst'}")
        folder = servers.folder / str(load.tick_ms)
        with in_memory(folder / "store"):
            measured = peer.measured(folder, load, servers.sizes, servers.seconds if load.rates else SHORT_S)
        for one, found in zip(tries, measured, strict=True):
            one |= {f"rocketmq.{name}": value for name, value in found.items()}


PARTS: dict[str, Callable[[BenchServers, Tries], None]] = {
    part.__name__: part for part in (core, steady, burst, pending, idle, scale, rocketmq)
}


def measure(part: str, servers: BenchServers) -> list[Flat]:
    """Return the measurements of each try."""
    tries: Tries = [{} for _ in range(servers.tries)]
    PARTS[part](servers, tries)
    return [flat(one) for one in tries]
