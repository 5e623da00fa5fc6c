"""RocketMQ's timer under the bench's scenarios, measured in the same way, in a process of its own.

That process first enters a network of its own, and prints its measurements as a line of JSON. Lateness by the broker's
clock is the store time on the target topic; at the consumer it is the time when RocketMQ's push consumer returns it.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bridge.dev.embedded_kafka import find_java
from bridge.errors import BridgeError
from scripts.bench.measurements import CpuCost, Flat, Measured, Sizes, flat
from scripts.bench.rocketmq.jars import ensure_jars
from scripts.bench.rocketmq.servers import Client, RocketMQ, own_network
from scripts.bench.scenarios import (
    KILLED_BEFORE_MS,
    LIVE_UP_TO_PER_S,
    OUTAGE_S,
    STEADY_DELAY_MS,
    WARM_UP,
    burst_of,
    outage_of,
    spread_of,
    steady_of,
)
from scripts.bench.topic_fixture import AN_HOUR_MS, now_ms, sleep_until
from scripts.common import processes
from scripts.common.command import run as run_command
from scripts.common.kafka_io import Delivery, OffsetRange

_ORIGINS = "rocketmq"
_WARM_UPS = 3


def measured(
    folder: Path, tick_ms: int, sizes: Sizes, scenarios: Sequence[str], rates: Sequence[int], seconds: float
) -> Flat:
    """Measure RocketMQ. `scenarios`: of spread, burst and outage. Raises BridgeError, also without its network."""
    ensure_jars(find_java())  # here, because that process has no network
    arguments = json.dumps([tick_ms, dataclasses.asdict(sizes), list(scenarios), list(rates), seconds])
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
    found: Flat = json.loads(printed)
    return found


class Peer:
    """A broker and a client, and the scenarios on them."""

    def __init__(self, rocketmq: RocketMQ, client: Client, sizes: Sizes) -> None:
        self._rocketmq = rocketmq
        self._client = client
        self._sizes = sizes
        self._samples = rocketmq.folder / "samples"
        self._head_start_ms = sizes.head_start_ms

    def warm_up(self) -> None:
        """Let Java compile, then measure how long it takes to send: all has to be stored before the first is due."""
        self._create("warm-up")
        took_s = 0.0
        for _ in range(_WARM_UPS):
            begin_s = time.perf_counter()
            self._send("warm-up", WARM_UP, now_ms() + AN_HOUR_MS, 0)
            took_s = time.perf_counter() - begin_s
        self._head_start_ms = int(3_000 + 1.5 * took_s / WARM_UP * 1000 * max(self._sizes.messages, WARM_UP))
        self._create("warm-up-2")
        self._send("warm-up-2", WARM_UP, now_ms() + self._head_start_ms, 5_000)
        self._receive("warm-up-2", WARM_UP)

    def spread(self) -> Measured:
        self._create("spread")
        before_s, spread_ms = self._cpu_s(), int(self._sizes.spread_seconds * 1000)
        self._client.ask("watch", "spread")
        first_due_ms = now_ms() + self._head_start_ms
        self._send("spread", self._sizes.messages, first_due_ms, spread_ms)
        sleep_until(first_due_ms)
        deliveries = self._receive("spread", self._sizes.messages)
        return spread_of(deliveries, _spans(self._sizes.messages), self._cost(before_s))

    def burst(self) -> Measured:
        self._create("burst")
        before_s, due_ms = self._cpu_s(), now_ms() + self._head_start_ms
        self._send("burst", self._sizes.messages, due_ms, 0)
        self._settle("burst", due_ms)
        cost = self._cost(before_s)
        count = self._sizes.messages
        return burst_of(self._receive("burst", count), _spans(count), cost)

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

    def outage(self) -> Measured:
        self._create("outage")
        due_ms = now_ms() + self._head_start_ms + KILLED_BEFORE_MS
        self._send("outage", self._sizes.messages, due_ms, 0, early_ms=KILLED_BEFORE_MS)
        sleep_until(due_ms - KILLED_BEFORE_MS)  # the wheel's own threads lag behind the sends
        self._rocketmq.kill_broker()
        sleep_until(due_ms + int(OUTAGE_S * 1000))
        begin_ms = now_ms()
        self._rocketmq.start_broker()
        ready_s = (now_ms() - begin_ms) / 1000
        self._settle("outage", due_ms)
        deliveries = self._receive("outage", self._sizes.messages)
        return outage_of(begin_ms, ready_s, deliveries, _spans(self._sizes.messages))

    def _create(self, topic: str) -> None:
        self._client.ask("create", topic, self._sizes.partitions)

    def _send(self, topic: str, count: int, first_due_ms: int, spread_ms: int, *, early_ms: int = 0) -> None:
        """Raise BridgeError if the broker did not take all of them `early_ms` before the first is due."""
        (failed,) = self._client.ask("send", topic, count, first_due_ms, spread_ms, self._sizes.body_bytes)
        _demand_sent(failed)
        if now_ms() >= first_due_ms - early_ms:
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
    tick_ms, sizes, scenarios, rates, seconds = json.loads(arguments)
    own_network()
    found: dict[str, Measured] = {}
    with RocketMQ(folder, tick_ms=tick_ms) as rocketmq, Client(rocketmq) as client:
        peer = Peer(rocketmq, client, Sizes(**sizes))
        ways: dict[str, Callable[[], Measured]] = {"spread": peer.spread, "burst": peer.burst, "outage": peer.outage}
        peer.warm_up()
        for per_s in rates:
            found[f"steady.{per_s}"] = peer.steady(per_s, seconds)
        found |= {name: ways[name]() for name in scenarios}
    print(json.dumps(flat(found)))
    return 0


if __name__ == "__main__":
    sys.exit(run_command("peer", lambda: run(Path(sys.argv[1]), sys.argv[2])))
