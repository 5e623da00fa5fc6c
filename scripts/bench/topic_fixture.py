"""Topics of one bridge on a broker, and what scenarios do with them: send, wait for intake, wait for quiet, receive.

|-- send --|-- intake --|...|=== due ===|-- counted by origin, read_committed
                            ^ now + the time that sending and intake may take

Several fixtures share a broker under different names: each has a timer topic, a group and targets of its own.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bridge.dev.embedded_kafka import EmbeddedKafka, free_port
from bridge.errors import BridgeError
from scripts.bench.measurements import CpuCost, Sizes
from scripts.common import processes
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Delivery, OffsetRange, Receiver, TimerRequest, send_all, timer
from scripts.common.processes import BridgeProcess

GIVE_UP_S = 120.0
AN_HOUR_MS = 3_600_000
SEED = 43
_QUIET_S = 1.0
_LEAST_SLOPE_MS = 2_000


class TopicFixture:
    """Topics of one bridge. Each target is new, so that only its own deliveries are in it."""

    def __init__(self, kafka: EmbeddedKafka, sizes: Sizes, name: str = "") -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.sizes = sizes
        self.admin = Admin(self.servers)
        self._suffix = f".{name}" if name else ""
        self.timer_topic = f"timer.requests{self._suffix}"
        self._group = f"timer-bridge{self._suffix}"
        self._targets = 0

    def bridge(self, folder: Path, arguments: Sequence[str] = ()) -> BridgeProcess:
        own = ["--partitions", str(self.sizes.partitions), "--group", self._group]
        own += ["--timer-topic", self.timer_topic, "--journal-topic", f"timer.journal{self._suffix}"]
        return BridgeProcess(folder, self.servers, [*own, *arguments], http_port=free_port())

    def broker_cpu_s(self) -> float:
        assert self.kafka.pid is not None
        return processes.usage(self.kafka.pid).cpu_s

    def target(self, use: str) -> str:
        self._targets += 1
        topic = f"bench.{use}-{self._targets}{self._suffix}"
        self.admin.create_topics([topic], partitions=self.sizes.partitions, settings=BROKER_CLOCK)
        return topic

    def dues_ms(self, count: int, over_s: float, begin_ms: int) -> npt.NDArray[np.int64]:
        """Return due times spread evenly, in random order."""
        after_ms = (np.arange(count) * (over_s * 1000 / max(count, 1))).astype(np.int64)
        return begin_ms + np.random.default_rng(SEED).permutation(after_ms)

    def body(self, number: int) -> bytes:
        return (b"%d" % number + b"." * self.sizes.body_bytes)[: self.sizes.body_bytes]

    def timers(self, target: str, due_ms: Iterable[int]) -> Iterable[TimerRequest]:
        return (timer(target, due, self.body(number)) for number, due in enumerate(due_ms))

    def send(self, requests: Iterable[TimerRequest]) -> tuple[OffsetRange, ...]:
        return send_all(self.servers, self.timer_topic, requests)

    def sender(self, target: str, per_s: int, seconds: float, delay_ms: int, log: Path) -> "subprocess.Popen[str]":
        """Start a process that sends at a fixed rate; `seconds_of` waits for its end."""
        words = [self.servers, self.timer_topic, target, per_s, seconds, delay_ms, self.sizes.body_bytes]
        return processes.start_piped([sys.executable, "-m", "scripts.bench.paced_sender", *map(str, words)], log=log)

    def send_in_time(
        self, requests: Iterable[TimerRequest], first_due_ms: int, bridge: BridgeProcess
    ) -> tuple[OffsetRange, ...]:
        """Return the offsets. Raises BridgeError if intake has not read all before the first is due."""
        spans = self.send(requests)
        self.await_intake(spans, (first_due_ms - now_ms()) / 1000, bridge)
        return spans

    def await_intake(self, spans: Sequence[OffsetRange], timeout_s: float, bridge: BridgeProcess) -> None:
        """Wait until the bridge has committed its intake of `spans`. Raises BridgeError."""
        until_s = time.monotonic() + timeout_s
        while left := self.left(spans):
            bridge.demand_alive()
            if time.monotonic() > until_s:
                raise BridgeError(
                    f"{left:,} requests were not taken in within {timeout_s:.0f} s: give fewer --messages"
                )
            time.sleep(0.05)

    def left(self, spans: Sequence[OffsetRange]) -> int:
        """Return the number of requests after the bridge's progress."""
        reached = self.admin.committed(self._group, self.timer_topic)
        return sum(max(span.end - max(reached.get(span.partition, 0), span.begin), 0) for span in spans)

    def ranges_since(self, begins: dict[int, int]) -> list[OffsetRange]:
        """Return the offsets of the timer topic from `begins` to its present end."""
        ends = self.admin.ends(self.timer_topic)
        return [OffsetRange(self.timer_topic, number, begins[number], end) for number, end in ends.items()]

    def await_quiet(self, topic: str, due_ms: int, alive: Callable[[], None]) -> None:
        """Wait until nothing has been committed to `topic` for a while."""
        sleep_until(due_ms)
        ends, since_s, give_up_s = self.admin.ends(topic), time.monotonic(), time.monotonic() + GIVE_UP_S
        while time.monotonic() < min(since_s + _QUIET_S, give_up_s):
            alive()
            time.sleep(0.2)
            found = self.admin.ends(topic)
            if found != ends or not sum(found.values()):
                ends, since_s = found, time.monotonic()

    def receive(
        self, topic: str, spans: Sequence[OffsetRange], last_due_ms: int, alive: Callable[[], None]
    ) -> list[Delivery]:
        with Receiver(self.servers, [topic]) as receiver:
            return self.collect(receiver, [], spans, last_due_ms, alive)

    def collect(
        self,
        receiver: Receiver,
        deliveries: list[Delivery],
        spans: Sequence[OffsetRange],
        last_due_ms: int,
        alive: Callable[[], None],
    ) -> list[Delivery]:
        """Return all deliveries, and those within a quiet time after the last: duplicates."""
        seen = DeliveryAccount(spans)
        for delivery in deliveries:
            seen.note(delivery.origin)
        give_up_ms = last_due_ms + GIVE_UP_S * 1000
        while seen.lost:
            if now_ms() > give_up_ms:
                return deliveries
            alive()
            came = receiver.poll(0.5)
            deliveries += came
            for delivery in came:
                seen.note(delivery.origin)
        while came := receiver.poll(_QUIET_S):
            deliveries += came
        return deliveries


class Meter:
    """CPU and transactions of the bridges since the meter's start."""

    def __init__(self, *bridges: BridgeProcess) -> None:
        self._bridges = bridges
        self._start = self._total()

    def read(self) -> CpuCost:
        now = self._total()
        return CpuCost(now.cpu_s - self._start.cpu_s, now.transactions - self._start.transactions)

    def _total(self) -> CpuCost:
        cpu_s = sum(bridge.usage().cpu_s for bridge in self._bridges)
        return CpuCost(cpu_s, sum(bridge.transactions() for bridge in self._bridges))


def seconds_of(sender: "subprocess.Popen[str]") -> float:
    """Wait for the sender's end, and return how long it sent. Raises BridgeError."""
    printed, _ = sender.communicate()
    if sender.returncode:
        raise BridgeError(f"the sender ended with exit code {sender.returncode}")
    return float(printed)


def drain_per_s(deliveries: Sequence[Delivery]) -> float:
    """Return the rate from the first to the last delivery, by the broker's clock."""
    appended_ms = [delivery.appended_ms for delivery in deliveries]
    return len(deliveries) * 1000 / max(max(appended_ms) - min(appended_ms), 1) if deliveries else 0.0


def out_per_s(deliveries: Sequence[Delivery], until_ms: int) -> float:
    """Return the rate of deliveries while others are still sent.

    The slope of their count over time: steps of a tick do not bend it.
    """
    appended_ms = np.sort(np.array([delivery.appended_ms for delivery in deliveries], np.int64))
    appended_ms = appended_ms[appended_ms < until_ms]
    if not len(appended_ms) or appended_ms[-1] - appended_ms[0] < _LEAST_SLOPE_MS:
        return drain_per_s(deliveries)
    slope, _ = np.polyfit(appended_ms - appended_ms[0], np.arange(len(appended_ms)), 1)
    return float(slope) * 1000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sleep_until(at_ms: int) -> None:
    time.sleep(max(0.0, (at_ms - now_ms()) / 1000))
