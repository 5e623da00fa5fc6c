"""Faults of two bridges and three brokers, and the repair of each.

kill         a bridge, -9; started again a little later          delete    the same, and its data directory is gone
worker       one worker of a bridge, -9, if bridges have workers
stop         SIGSTOP for longer or shorter than the session      disk      its disk is full (root: a tmpfs of its own)
clock        set back by seconds, later corrected; never ahead: timers would leave early, by the brokers' time
slow, cut    a link between a bridge and one broker, or all      broker    killed, -9; started again
pause        a target topic is paused, and resumed later
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bridge.dev.embedded_kafka import EmbeddedKafka
from scripts.chaos.load import ChaosLoad
from scripts.chaos.three_brokers import Proxy, ThreeBrokers
from scripts.common.processes import BridgeProcess, workers

DISK_MB = 64
_MAY_DIE = (2, 3)
"""Node 1 is the controller."""


class ChaosFault(NamedTuple):
    """A fault of one subject, which gets no other fault until `repair` is called."""

    subject: str
    seconds: float
    repair: Callable[[], None]
    name: str


class Victim(BridgeProcess):
    """A bridge with its own clock and, if we may mount one, its own disk. A method of a fault returns its repair."""

    def __init__(self, name: str, folder: Path, bootstrap_servers: str, arguments: Sequence[str]) -> None:
        clock = folder / "clock-error-ms"
        stepped = (sys.executable, "-m", "scripts.chaos.skewed_clock", str(clock))
        super().__init__(folder, bootstrap_servers, arguments, command=stepped)
        self.name = name
        self._clock = os.open(clock, os.O_WRONLY | os.O_CREAT, 0o600)
        self._set_clock(0)
        self.data_dir.mkdir(exist_ok=True, mode=0o700)
        self.has_disk = _mounted(self.data_dir)

    def close(self) -> None:
        self.kill()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self.data_dir)], check=False)

    # -- faults

    def crash(self) -> Callable[[], None]:
        self.kill()
        return self.launch

    def delete(self) -> Callable[[], None]:
        restart = self.crash()
        for path in self.data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return restart

    def crash_worker(self, rng: random.Random) -> Callable[[], None]:
        if pids := list(workers(self.pid).values()):
            os.kill(rng.choice(pids), signal.SIGKILL)
        return lambda: None  # its supervisor starts it again

    def pause(self) -> Callable[[], None]:
        pids = [self.pid, *workers(self.pid).values()]

        def send(number: int) -> None:
            for pid in pids:
                os.kill(pid, number)

        send(signal.SIGSTOP)
        return lambda: send(signal.SIGCONT)

    def step_clock(self, error_ms: int) -> Callable[[], None]:
        self._set_clock(error_ms)
        return lambda: self._set_clock(0)

    def fill_disk(self) -> Callable[[], None] | None:
        """Fill its disk; None before it has locked its data directory, as it would end with an error."""
        if not (self.data_dir / "instance-id").exists():
            return None
        filler = self.data_dir / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # ENOSPC is what is wanted
            for _ in range(DISK_MB):
                file.write(bytes(1 << 20))
        return filler.unlink

    def _set_clock(self, error_ms: int) -> None:
        os.pwrite(self._clock, b"%20d" % error_ms, 0)


def _mounted(folder: Path) -> bool:
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


class FaultKind(NamedTuple):
    """What may be hurt, by the names of subjects, and how. `hurt` returns the repair, or None if that is impossible."""

    subjects: Sequence[tuple[str, Any]]
    hurt: Callable[[Any], Callable[[], None] | None]
    longest_s: float
    shortest_s: float = 0.2


class FaultSchedule:
    """Draws faults: at most one broker is down at once, and no subject has two faults at once."""

    def __init__(
        self, brokers: ThreeBrokers, victims: Sequence[Victim], rng: random.Random, load: ChaosLoad, worker_count: int
    ) -> None:
        self._rng = rng
        self._left: list[str] = []
        bridges = [(victim.name, victim) for victim in victims]
        links = [(f"link {number}", proxies) for number, proxies in enumerate(brokers.links)]
        nodes = [("broker", brokers.node(node_id)) for node_id in _MAY_DIE]

        self._kinds = {
            "kill": FaultKind(bridges, Victim.crash, 4),
            "delete": FaultKind(bridges, Victim.delete, 2),
            "stop": FaultKind(bridges, Victim.pause, 16),
            "clock": FaultKind(bridges, lambda victim: victim.step_clock(-rng.choice((30, 900, 6_000))), 8),
            "disk": FaultKind(bridges, Victim.fill_disk, 8),
            "slow": FaultKind(links, lambda link: self._change_link(link, rng.choice((20, 200, 700))), 12, 0.5),
            "cut": FaultKind(links, lambda link: self._change_link(link, 0, is_cut=True), 12, 0.5),
            "broker": FaultKind(nodes, _kill_node, 8),
            "pause": FaultKind([("real topic", load)], ChaosLoad.pause, 8, 2),
        }
        if worker_count > 1:
            self._kinds["worker"] = FaultKind(bridges, lambda victim: victim.crash_worker(rng), 4)
        self.skipped = {} if all(v.has_disk for v in victims) else {"disk": "a tmpfs cannot be mounted: only root may"}
        """Kinds that are impossible here, with the reason."""
        self.kinds = sorted(self._kinds.keys() - self.skipped.keys())

    def begin(self, busy: set[str]) -> ChaosFault | None:
        """Begin a kind that is next in turn. Return None if the drawn subject of each has a fault already."""
        self._left = self._left or self._rng.sample(self.kinds, len(self.kinds))
        for name in self._left:
            kind = self._kinds[name]
            subject, hurt = self._rng.choice(kind.subjects)
            if subject not in busy and (repair := kind.hurt(hurt)) is not None:
                self._left.remove(name)
                return ChaosFault(subject, self._rng.uniform(kind.shortest_s, kind.longest_s), repair, name)
        return None

    def _change_link(self, link: list[Proxy], delay_ms: int, *, is_cut: bool = False) -> Callable[[], None]:
        proxies = self._rng.sample(link, self._rng.choice((1, len(link))))

        def change(delay_ms: int, *, is_cut: bool) -> None:
            for proxy in proxies:
                proxy.delay_ms, proxy.is_cut = delay_ms, is_cut

        change(delay_ms, is_cut=is_cut)
        return lambda: change(0, is_cut=False)


def _kill_node(node: EmbeddedKafka) -> Callable[[], None]:
    node.kill()
    return node.start
