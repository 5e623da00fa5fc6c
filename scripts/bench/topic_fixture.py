"""A bridge's topics on a broker, and what scenarios do with them: send, wait for intake, wait for quiet, receive.

|-- send --|-- intake --|...|=== due ===|-- counted by origin, read_committed
                            ^ begin_ms = now + what sending and intake may take

Several stages share a broker under different names: each has a timer topic, a group and targets of its own.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bridge.dev.embedded_kafka import free_port
from bridge.errors import BridgeError
from scripts.bench.measurements import CpuCost, Sizes
from scripts.common import processes
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Delivery, OffsetRange, Receiver, TimerRequest, send_all, timer
from scripts.common.processes import BridgeProcess

GIVE_UP_S = 120.0
AN_HOUR_MS = 3_600_000
_QUIET_S = 1.5
SEED = 43
_LEAST_SLOPE_MS = 2_000


class TopicFixture:
    """Topics of one bridge. `targets` are created at their first use."""

    def __init__(self, bootstrap_servers: str, sizes: Sizes, name: str = "") -> None:
        self.servers = bootstrap_servers
        self.sizes = sizes
        self.admin = Admin(bootstrap_servers)
        self._end = f".{name}" if name else ""
        self.timer_topic = f"timer.requests{self._end}"
        self._group = f"timer-bridge{self._end}"
        self._made: set[str] = set()

    def bridge(self, folder: Path, arguments: Sequence[str] = ()) -> BridgeProcess:
        own = {
            "partitions": self.sizes.partitions,
            "group": self._group,
            "timer-topic": self.timer_topic,
            "journal-topic": f"timer.journal{self._end}",
        }
        flags = [word for flag, value in own.items() for word in (f"--{flag}", str(value))]
        return BridgeProcess(folder, self.servers, [*flags, *arguments], http_port=free_port())

    def target(self, use: str) -> str:
        topic = f"bench.{use}{self._end}"
        if topic not in self._made:
            self.admin.create_topics([topic], partitions=self.sizes.partitions, settings=BROKER_CLOCK)
            self._made.add(topic)
        return topic

    def dues_ms(self, count: int, over_s: float, begin_ms: int) -> npt.NDArray[np.int64]:
        """Return due times spread evenly, in random order."""
        after_ms = (np.arange(count) * (over_s * 1000 / max(count, 1))).astype(np.int64)
        return begin_ms + np.random.default_rng(SEED).permutation(after_ms)

    def body(self, number: int) -> bytes:
        return (b"%d" % number + b"." * self.sizes.body_bytes)[: self.sizes.body_bytes]

    def timers(self, target: str, due_ms: Sequence[int]) -> Iterable[TimerRequest]:
        return (timer(target, due, self.body(number)) for number, due in enumerate(due_ms))

    def send(self, requests: Iterable[TimerRequest]) -> tuple[OffsetRange, ...]:
        return send_all(self.servers, self.timer_topic, requests)

    def sender(self, target: str, per_s: int, seconds: float, delay_ms: int, log: Path) -> subprocess.Popen[str]:
        """Start a process that sends at a fixed rate; `seconds_of` waits for its end."""
        words = [self.servers, self.timer_topic, target, per_s, seconds, delay_ms, self.sizes.body_bytes]
        return processes.start_piped([sys.executable, "-m", "scripts.bench.paced_sender", *map(str, words)], log=log)

    def send_in_time(self, requests: Iterable[TimerRequest], begin_ms: int, bridge: BridgeProcess) -> list[OffsetRange]:
        """Return the offsets. Raises BridgeError if intake has not read all before the first is due."""
        spans = self.send(requests)
        self.demand_intake(spans, (begin_ms - now_ms()) / 1000, bridge)
        return list(spans)

    def demand_intake(self, spans: Sequence[OffsetRange], timeout_s: float, bridge: BridgeProcess) -> None:
        """Raises BridgeError."""
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
        self, topic: str, spans: Sequence[OffsetRange], last_due_ms: int, alive: Callable[[], None], *, without: int = 0
    ) -> list[Delivery]:
        with Receiver(self.servers, [topic]) as receiver:
            return self.collect(receiver, [], spans, last_due_ms, alive, without=without)

    def collect(
        self,
        receiver: Receiver,
        deliveries: list[Delivery],
        spans: Sequence[OffsetRange],
        last_due_ms: int,
        alive: Callable[[], None],
        *,
        without: int = 0,
    ) -> list[Delivery]:
        """Return all deliveries but `without`, and those within a quiet time after the last: duplicates."""
        seen = DeliveryAccount(spans)
        for delivery in deliveries:
            seen.note(delivery.origin)
        give_up_ms = last_due_ms + GIVE_UP_S * 1000
        while len(deliveries) < seen.expected - without or seen.lost > without:
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
    """Usage of the bridge since the meter's start."""

    def __init__(self, bridge: BridgeProcess) -> None:
        self._bridge = bridge
        self._cpu_s, self._transactions = bridge.usage().cpu_s, bridge.transactions()

    def read(self) -> CpuCost:
        return CpuCost(self._bridge.usage().cpu_s - self._cpu_s, self._bridge.transactions() - self._transactions)


def seconds_of(sender: subprocess.Popen[str]) -> float:
    """Wait for the sender's end, and return how long it sent. Raises BridgeError."""
    told, _ = sender.communicate()
    if sender.returncode:
        raise BridgeError(f"the sender ended with exit code {sender.returncode}")
    return float(told)


def drain_per_s(deliveries: Sequence[Delivery]) -> float:
    """Return the rate from the first to the last delivery, by the broker's clock."""
    appended_ms = [delivery.appended_ms for delivery in deliveries]
    return len(deliveries) * 1000 / max(max(appended_ms) - min(appended_ms), 1) if deliveries else 0.0


def out_per_s(deliveries: Sequence[Delivery], until_ms: int) -> float:
    """While others are still sent: the slope of their count over time, which steps (of a tick) do not bend."""
    appended_ms = np.sort(np.array([delivery.appended_ms for delivery in deliveries], np.int64))
    meanwhile_ms = appended_ms[appended_ms < until_ms]
    if not len(meanwhile_ms) or meanwhile_ms[-1] - meanwhile_ms[0] < _LEAST_SLOPE_MS:
        return drain_per_s(deliveries)
    slope, _ = np.polyfit(meanwhile_ms - meanwhile_ms[0], np.arange(len(meanwhile_ms)), 1)
    return float(slope) * 1000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sleep_until(at_ms: int) -> None:
    time.sleep(max(0.0, (at_ms - now_ms()) / 1000))
