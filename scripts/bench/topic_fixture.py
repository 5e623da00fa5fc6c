"""Brokers and topics of the bench, and what scenarios do with them: send, wait for intake, wait for quiet, receive.

|-- send --|-- intake --|...|=== due ===|-- counted by origin, read_committed
                            ^ now + the time that sending and intake may take

Servers keep their data in memory, so that no disk is measured. Several fixtures share a broker under different names:
each has a timer topic, a group and targets of its own.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.dev.embedded_kafka import EmbeddedKafka, free_port
from bridge.errors import BridgeError
from scripts.common import command, processes
from scripts.common.delivery_figures import DeliveryAccount
from scripts.common.kafka_io import Admin, Delivery, OffsetRange, Receiver, TimerRequest, now_ms, send_all, timer
from scripts.common.processes import TIMER_BRIDGE, BridgeProcess
from scripts.common.quiet_kafka import quiet_kafka

GIVE_UP_S = 120.0
AN_HOUR_MS = 3_600_000
OTHER = "other."
"""Prefix of the measurements of another checkout's bridge."""
_QUIET_S = 1.0


@dataclass(frozen=True)
class Sizes:
    """Size of a scenario. `partitions`: of each topic."""

    messages: int
    body_bytes: int
    partitions: int

    @property
    def head_start_ms(self) -> int:
        """Time from the first send to the first due time, enough for intake on a slow machine."""
        return 3_000 + self.messages // 12


@dataclass(frozen=True)
class BenchServers:
    """Folder, servers and sizes of a part of the bench.

    `tries`: how often each ratio is measured. `pending`: timers that stay. `bridges`: commands by prefix of the
    measurements' names; core and steady measure them in alternation.
    """

    folder: Path
    sizes: Sizes
    seconds: float
    tries: int
    pending: int
    is_quick: bool = False
    bridges: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"": TIMER_BRIDGE})

    def say(self, step: str) -> None:
        command.say(f"{self.folder.name}  {step}")

    def kafka(self, name: str = "") -> AbstractContextManager[EmbeddedKafka]:
        return quiet_kafka(self.folder / f"{name}kafka")


class TopicFixture:
    """Topics of one bridge. Each target is new, so that only its own deliveries are in it."""

    def __init__(
        self, kafka: EmbeddedKafka, sizes: Sizes, name: str = "", command: Sequence[str] = TIMER_BRIDGE
    ) -> None:
        self.kafka, self.servers, self.sizes = kafka, kafka.bootstrap_servers, sizes
        self.admin = Admin(self.servers)
        self._command, self._targets = command, 0
        self._suffix = f".{name}" if name else ""
        self.timer_topic, self._group = f"timer.requests{self._suffix}", f"timer-bridge{self._suffix}"

    def bridge(self, folder: Path) -> BridgeProcess:
        own = ["--partitions", str(self.sizes.partitions), "--group", self._group]
        own += ["--timer-topic", self.timer_topic, "--journal-topic", f"timer.journal{self._suffix}"]
        return BridgeProcess(folder, self.servers, own, http_port=free_port(), command=self._command)

    def broker_cpu_s(self) -> float:
        assert self.kafka.pid is not None
        return processes.usage(self.kafka.pid).cpu_s

    def target(self, use: str, partitions: int = 0) -> str:
        self._targets += 1
        topic = f"bench.{use}-{self._targets}{self._suffix}"
        self.admin.create_topics([topic], partitions=partitions or self.sizes.partitions)
        return topic

    def body(self, number: int) -> bytes:
        return (b"%d" % number + b"." * self.sizes.body_bytes)[: self.sizes.body_bytes]

    def timers(self, target: str, due_ms: Iterable[int]) -> Iterable[TimerRequest]:
        return (timer(target, due, self.body(number)) for number, due in enumerate(due_ms))

    def send(self, requests: Iterable[TimerRequest]) -> list[OffsetRange]:
        return send_all(self.servers, self.timer_topic, requests)

    def sender(
        self, targets: Sequence[str], per_s: int, seconds: float, delay_ms: int, log: Path
    ) -> "subprocess.Popen[str]":
        """Start a process that sends at a fixed rate. `sent_in_s` waits for it."""
        words = [self.servers, self.timer_topic, ",".join(targets), per_s, seconds, delay_ms, self.sizes.body_bytes]
        return processes.start_piped([sys.executable, "-m", "scripts.bench.paced_sender", *map(str, words)], log=log)

    def send_in_time(
        self, requests: Iterable[TimerRequest], first_due_ms: int, bridge: BridgeProcess
    ) -> list[OffsetRange]:
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
                raise BridgeError(f"{left:,} requests were not read within {timeout_s:.0f} s: give fewer --messages")
            time.sleep(0.05)

    def left(self, spans: Sequence[OffsetRange]) -> int:
        reached = self.admin.committed(self._group, self.timer_topic)
        return sum(max(span.end - max(reached.get(span.partition, 0), span.begin), 0) for span in spans)

    def await_quiet(self, topic: str, due_ms: int, alive: Callable[[], None]) -> None:
        sleep_until(due_ms)
        self.admin.await_quiet([topic], _QUIET_S, GIVE_UP_S, alive)

    def receive(
        self, topics: Sequence[str], spans: Sequence[OffsetRange], last_due_ms: int, alive: Callable[[], None]
    ) -> list[Delivery]:
        """Return all deliveries, and those within a quiet time after the last: duplicates."""
        seen, deliveries = DeliveryAccount(spans), list[Delivery]()
        with Receiver(self.servers, topics) as receiver:
            while seen.lost and now_ms() < last_due_ms + GIVE_UP_S * 1000:
                alive()
                deliveries += (came := receiver.poll(0.5))
                seen.note(came)
            while not seen.lost and (came := receiver.poll(_QUIET_S)):
                deliveries += came
        return deliveries


def sleep_until(at_ms: int) -> None:
    time.sleep(max(0.0, (at_ms - now_ms()) / 1000))


def sent_in_s(sender: "subprocess.Popen[str]", timeout_s: float, log: Path) -> float:
    """Wait for a sender's end, and return the seconds that it took. Raises BridgeError."""
    with sender:
        printed, _ = sender.communicate(timeout=timeout_s)
    if sender.returncode:
        raise BridgeError(f"the sender ended with exit code {sender.returncode}; see {log}")
    return float(printed)
