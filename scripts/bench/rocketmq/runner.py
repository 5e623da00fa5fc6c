"""RocketMQ's timer under the bench's scenarios, measured in the same way, in a process of its own.

That process first enters a network of its own, and prints its measurements as a line of JSON. Lateness by the broker's
clock is the store time on the target topic; at the consumer it is the time when RocketMQ's push consumer returns it.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bridge.dev.embedded_kafka import find_java
from bridge.errors import BridgeError
from scripts.bench.measurements import CpuCost, Flat, Measured, Sizes, flat
from scripts.bench.rocketmq.jars import ensure_jars
from scripts.bench.rocketmq.servers import Client, RocketMQ, own_network
from scripts.bench.scenarios import (
    LIVE_UP_TO_PER_S,
    STEADY_DELAY_MS,
    WARM_UP,
    WARM_UP_RATES,
    burst_of,
    steady_of,
)
from scripts.bench.topic_fixture import AN_HOUR_MS, now_ms, sleep_until
from scripts.common import processes
from scripts.common.command import run as run_command
from scripts.common.kafka_io import Delivery, OffsetRange

_ORIGINS = "rocketmq"
_WARM_UPS = 3


class Load(NamedTuple):
    """Options of a server, and the load on it."""

    collector: str
    tick_ms: int
    bursts: int = 0
    rates: Sequence[int] = ()


def measured(folder: Path, load: Load, sizes: Sizes, seconds: float) -> list[Flat]:
    """Measure RocketMQ: one result for each burst, or one for all rates. Raises BridgeError, also without a network."""
    ensure_jars(find_java())  # here, because that process has no network
    arguments = json.dumps([load, dataclasses.asdict(sizes), seconds])
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "peer.log"
    command = [sys.executable, "-m", "scripts.bench.rocketmq.runner", str(folder), arguments]
    with processes.start_piped(command, log=log) as process:
        try:
            printed, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BridgeError(log.read_text().strip().rpartition("\n")[2] or f"exit code {process.returncode}")
    found: list[Flat] = json.loads(printed)
    return found


class Peer:
    """A broker and a client, and the scenarios on them."""

    def __init__(self, rocketmq: RocketMQ, client: Client, sizes: Sizes) -> None:
        self._rocketmq = rocketmq
        self._client = client
        self._sizes = sizes
        self._samples = rocketmq.folder / "samples"
        self._head_start_ms = sizes.head_start_ms

    def warm_up(self, seconds: float) -> None:
        """Let Java compile, then measure how long it takes to send: all has to be stored before the first is due."""
        self._create("warm-up")
        took_s = 0.0
        for _ in range(_WARM_UPS):
            begin_s = time.perf_counter()
            self._send("warm-up", WARM_UP, now_ms() + AN_HOUR_MS, 0)
            took_s = time.perf_counter() - begin_s
        self._head_start_ms = int(3_000 + 1.5 * took_s / WARM_UP * 1000 * max(self._sizes.messages, WARM_UP))
        self._create("warm-up-2")
        self._send("warm-up-2", WARM_UP, now_ms() + 3_000 + int(1_500 * took_s), 5_000)
        self._receive("warm-up-2", WARM_UP)
        for per_s in WARM_UP_RATES:
            self.steady(per_s, seconds)

    def burst(self, number: int) -> Measured:
        topic = f"burst-{number}"
        self._create(topic)
        before_s, due_ms = self._cpu_s(), now_ms() + self._head_start_ms
        self._send(topic, self._sizes.messages, due_ms, 0)
        self._settle(topic, due_ms)
        cost = self._cost(before_s)
        count = self._sizes.messages
        return burst_of(self._receive(topic, count), _spans(count), cost)

    def steady(self, per_s: int, seconds: float) -> Measured:
        topic, live = f"steady-{per_s}", per_s <= LIVE_UP_TO_PER_S
        self._create(topic)
        before_s = self._cpu_s()
        if live:
            self._client.ask("watch", topic)
        begin_s = time.perf_counter()
        count, failed = self._client.ask("pace", topic, per_s, seconds, STEADY_DELAY_MS, self._sizes.body_bytes)
        took_s, sent_ms = time.perf_counter() - begin_s, now_ms()
        _demand_sent(failed)
        if not live:
            self._settle(topic, sent_ms + STEADY_DELAY_MS)
        deliveries = self._receive(topic, count)
        cost = self._cost(before_s)
        return steady_of(per_s, took_s, sent_ms, deliveries, _spans(count), cost, cost.cpu_s)

    def _create(self, topic: str) -> None:
        self._client.ask("create", topic, self._sizes.partitions)

    def _send(self, topic: str, count: int, first_due_ms: int, spread_ms: int) -> None:
        """Raise BridgeError if the broker did not take all of them before the first is due."""
        (failed,) = self._client.ask("send", topic, count, first_due_ms, spread_ms, self._sizes.body_bytes)
        _demand_sent(failed)
        if now_ms() >= first_due_ms:
            raise BridgeError(f"RocketMQ took {count:,} messages after they were due: give fewer --messages")

    def _settle(self, topic: str, due_ms: int) -> None:
        sleep_until(due_ms)
        self._client.ask("settle", topic)

    def _receive(self, topic: str, count: int) -> list[Delivery]:
        self._client.ask("receive", topic, count, self._samples)
        rows = np.fromfile(self._samples, ">i8").reshape(-1, 4).tolist()
        if not rows:
            raise BridgeError(f"none of {count:,} messages came from RocketMQ: see the logs in {self._rocketmq.folder}")
        return [Delivery(topic, b"%s/0/%d" % (_ORIGINS.encode(), n), *times) for n, *times in rows]

    def _cpu_s(self) -> float:
        return self._rocketmq.usage().cpu_s

    def _cost(self, before_s: float) -> CpuCost:
        return CpuCost(self._cpu_s() - before_s, 0.0)


def _spans(count: int) -> list[OffsetRange]:
    return [OffsetRange(_ORIGINS, 0, 0, count)]


def _demand_sent(failed: int) -> None:
    if failed:
        raise BridgeError(f"RocketMQ refused {failed:,} messages: see the logs of its client")


def run(folder: Path, arguments: str) -> int:
    words, sizes, seconds = json.loads(arguments)
    load = Load(*words)
    own_network()
    with RocketMQ(folder, load.collector, load.tick_ms) as rocketmq, Client(rocketmq) as client:
        peer = Peer(rocketmq, client, Sizes(**sizes))
        peer.warm_up(seconds)
        found = [{"burst": peer.burst(number)} for number in range(load.bursts)]
        if load.rates:
            found.append({f"steady.{per_s}": peer.steady(per_s, seconds) for per_s in load.rates})
    print(json.dumps([flat(one) for one in found]))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("peer", lambda: run(Path(sys.argv[1]), sys.argv[2])))
