"""Several `timer-bridge run` processes, a load on each partition, and the check of all deliveries.

field = Field(bootstrap_servers, tmp_path, 4)
first, second = field.start("first", "second")
with field.load(): ...                   timers on every partition, independent of the bridges
field.demand_each_once()                 all bridges stopped, each timer of the load delivered once
"""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S
from scripts.common.kafka_io import Delivery, Receiver
from scripts.common.processes import TIMER_BRIDGE, BridgeProcess
from timer.format.checkpoint import Checkpoint

_HOUR_MS = 3_600_000
BEGUN_ANEW = "a commit broke off"
_SHOWN = 3_000
"""Characters of a log that a failure shows."""
_CHANGE = re.compile(r"(\S+)/(\d+): (recovered|given up|the group has removed us)(?:.*; (.*), read from offset (\d+))?")


@contextmanager
def sending(cluster: Cluster, send: Callable[[int], None], every_s: float = 0.02) -> Iterator[None]:
    """Call `send` every `every_s` in a thread, with 1, 2, ...; at the end wait for it and flush `cluster`."""
    over = threading.Event()

    def run() -> None:
        count = 0
        while not over.wait(every_s):
            count += 1
            send(count)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        cluster.flush()


class RecoveryTimes(NamedTuple):
    """A line of the log about a recovery."""

    partition: int
    how: str
    offset: int


class BridgeInstance(BridgeProcess):
    """One data directory and its successive processes. `log`: the log of the current process."""

    is_up = False

    @property
    def log(self) -> str:
        return self.log_path.read_bytes()[self._log_begin :].decode()

    def launch(self) -> None:
        super().launch()
        self.is_up = True

    def stop(self, *, timeout_s: float = 60.0) -> None:
        if self.is_up:
            self.is_up = False
            super().stop(timeout_s=timeout_s)

    def kill(self) -> None:
        self.is_up = False
        super().kill()

    def owned(self) -> set[int]:
        """Return the owned partitions, by the log."""
        found: set[int] = set()
        for change in _CHANGE.finditer(self._lately) if self.is_up else ():
            (found.add if change[3] == "recovered" else found.discard)(int(change[2]))
        return found

    @property
    def _lately(self) -> str:
        """The log since the last new life after a commit of unknown outcome."""
        return self.log.rpartition(BEGUN_ANEW)[2]

    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that have passed a record of their partition."""
        written = (path.read_bytes() for path in self.data_dir.glob("*/*/checkpoint"))
        found = (Checkpoint.from_bytes(data) for data in written if data)
        return [each for each in found if each is not None and each.progress.next_offset > 0]

    def recovered(self) -> list[RecoveryTimes]:
        """Return the recoveries in the order of the log."""
        found = (change for change in _CHANGE.finditer(self.log) if change[3] == "recovered")
        return [RecoveryTimes(int(change[2]), change[4], int(change[5])) for change in found]


class Field:
    """A timer topic, a target with one partition, so that its offsets are an order, and the bridges between them."""

    def __init__(
        self, servers: str, folder: Path, partitions: int, *arguments: str, command: Sequence[str] = TIMER_BRIDGE
    ) -> None:
        self._command = command
        self.mark = mark = uuid4().hex[:8]
        self.cluster = Cluster(servers)
        self.partitions = partitions
        self.timers, self.target, self.group = f"timers-{mark}", f"target-{mark}", f"group-{mark}"
        self.instances: list[BridgeInstance] = []
        self.sent = 0
        self.bridge_servers = servers
        self._folder = folder
        self.journal = f"journal-{mark}"
        self._arguments = ["--group", self.group, "--partitions", str(partitions), *arguments]
        for kind in ("timer", "rejected", "journal", "receipts"):
            self._arguments += [f"--{kind}-topic", self.timers if kind == "timer" else f"{kind}-{mark}"]
        self.cluster.create(self.target, message_timestamp_type="LogAppendTime")
        self._receiver = Receiver(servers, [self.target])
        self.seen: list[Delivery] = []

    def launch(self, name: str, arguments: Sequence[str] = ()) -> BridgeInstance:
        of_all = [*self._arguments, *arguments]
        instance = BridgeInstance(self._folder / name, self.bridge_servers, of_all, command=self._command)
        self.instances.append(instance)
        instance.launch()
        return instance

    def start(self, *names: str, arguments: Sequence[str] = ()) -> list[BridgeInstance]:
        """Start instances together. Return when all are ready and own every partition."""
        new = [self.launch(name, arguments) for name in names]
        for instance in new:
            instance.await_ready()
        self.until_owned(*(instance for instance in self.instances if instance.is_up))
        return new

    def send(self, partition: int, delay_ms: int) -> None:
        """Send a timer that `demand_each_once` waits for."""
        self._send(partition, delay_ms)
        self.sent += 1

    def _send(self, partition: int, delay_ms: int) -> None:
        headers = [("timer-topic", self.target.encode()), ("timer-delay-ms", b"%d" % delay_ms)]
        self.cluster.send(self.timers, b"v", headers=headers, partition=partition)

    def send_far(self) -> None:
        """Send one timer to each partition that outlasts the test."""
        for partition in range(self.partitions):
            self._send(partition, _HOUR_MS)
        self.cluster.flush()

    def load(self) -> AbstractContextManager[None]:
        """Send a timer to each partition every 20 ms, due at once or soon."""
        rng = random.Random(30)  # noqa: S311

        def send(_: int) -> None:
            for partition in range(self.partitions):
                self.send(partition, rng.choice((0, 0, 0, 50, 1500)))

        return sending(self.cluster, send)

    def until(self, done: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < end_s, f"{what} did not come to be; {self._told()}"
            self.receive()

    def receive(self) -> None:
        """Read new deliveries for 0.1 s."""
        self.seen += self._receiver.poll(0.1)

    def _told(self) -> str:
        return "\n".join(f"{each.owned()}\n{each.log[-_SHOWN:]}" for each in self.instances)

    def until_delivered(self, more: int) -> None:
        goal = len(self.seen) + more
        self.until(lambda: len(self.seen) >= goal, f"{more} more deliveries")

    def until_owned(self, *instances: BridgeInstance) -> None:
        """Wait until these instances own every partition, each once."""
        everything = list(range(self.partitions))
        self.until(lambda: sorted(p for i in instances for p in i.owned()) == everything, "ownership of all")

    def demand_each_once(self) -> list[Delivery]:
        """Wait for all deliveries, stop all instances, fail on duplicates. Return them in the order of the target."""
        self.until(lambda: len({delivery.origin for delivery in self.seen}) >= self.sent, f"{self.sent} deliveries")
        self.stop()
        last = self.cluster.read(self.target)
        origins = Counter(dict(message.headers())["timer-origin"] for message in last)
        assert {origin: count for origin, count in origins.items() if count > 1} == {}
        assert len(origins) == self.sent
        assert [delivery for delivery in self.seen if delivery.appended_ms < delivery.due_ms] == []
        return self.seen

    def stop(self) -> None:
        for instance in self.instances:
            instance.stop()

    def close(self) -> None:
        """Kill the instances that the test left running."""
        for instance in self.instances:
            instance.kill()


def partition_of(delivery: Delivery) -> int:
    return int(delivery.origin.split(b"/")[1])
