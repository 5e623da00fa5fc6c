"""What is done to two bridges and three brokers while they work, and how each is mended.

kill         a bridge, -9; started again a little later          delete    the same, and its data directory is gone
stop         SIGSTOP for longer or shorter than the session      disk      its disk is full (root: a tmpfs of its own)
clock        set back by seconds, and later right again: never ahead, as then timers leave early, by the brokers' time
slow, cut    a link between a bridge and one broker, or all      broker    killed, -9; started again
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
from typing import NamedTuple

from scripts.processes import BridgeProcess
from scripts.proxy import Proxy
from scripts.three_brokers import ThreeBrokers

DISK_MB = 64
_MAY_DIE = (2, 3)
"""Node 1 is the controller."""


class Fault(NamedTuple):
    """Of one subject: no other fault meets it before `mend` was called."""

    name: str
    subject: str
    seconds: float
    mend: Callable[[], None]


class Victim:
    """A bridge with a clock and, where we may mount one, a disk of its own."""

    def __init__(self, name: str, folder: Path, bootstrap_servers: str, arguments: Sequence[str]) -> None:
        self.name = name
        self._folder = folder
        self._data = folder / "timer-data"
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._clock = folder / "clock-error-ms"
        self._clock.write_text("0")
        self.has_disk = _mounted(self._data)
        stepped = (sys.executable, "-m", "scripts.stepped", str(self._clock))
        self._process = BridgeProcess(folder, bootstrap_servers, arguments, command=stepped)
        self.is_up = False

    def launch(self) -> None:
        self.is_up = True
        self._process.launch()

    def await_ready(self) -> None:
        self._process.await_ready()

    @property
    def has_folder(self) -> bool:
        """It has claimed its data directory."""
        return (self._data / "instance-id").exists()

    def demand_alive(self) -> None:
        """Raises BridgeError where it has ended by itself."""
        if self.is_up:
            self._process.demand_alive()

    def stop(self) -> None:
        self.is_up = False
        self._process.stop()

    def close(self) -> None:
        self._process.kill()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self._data)], check=False)

    # -- faults

    def kill(self) -> Callable[[], None]:
        self.is_up = False
        self._process.kill()
        return self.launch

    def delete(self) -> Callable[[], None]:
        self.kill()
        for path in self._data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.launch

    def pause(self) -> Callable[[], None]:
        os.kill(self._process.pid, signal.SIGSTOP)
        return lambda: os.kill(self._process.pid, signal.SIGCONT)

    def step_clock(self, error_ms: int) -> Callable[[], None]:
        self._set_clock(error_ms)
        return lambda: self._set_clock(0)

    def fill_disk(self) -> Callable[[], None]:
        filler = self._data / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:  # ENOSPC is what is wanted
            for _ in range(DISK_MB):
                file.write(bytes(1 << 20))
        return filler.unlink

    def _set_clock(self, error_ms: int) -> None:
        new = self._clock.with_suffix(".new")
        new.write_text(str(error_ms))
        new.replace(self._clock)


def _mounted(folder: Path) -> bool:
    """A small disk of its own; only root may."""
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


class Mischief:
    """Draws faults, so that never two brokers are down at once, and nothing is hurt twice at the same time."""

    def __init__(self, brokers: ThreeBrokers, victims: Sequence[Victim], rng: random.Random) -> None:
        self._brokers = brokers
        self._victims = victims
        self._rng = rng
        self._kinds = [self._kill, self._delete, self._pause, self._step, self._slow, self._cut, self._break]
        if all(victim.has_disk for victim in victims):
            self._kinds.append(self._fill)

    def begin(self, busy: set[str]) -> Fault | None:
        """None where the one that was drawn would hurt what is hurt."""
        fault = self._rng.choice(self._kinds)
        return fault(busy)

    def _of_one(
        self, name: str, busy: set[str], hurt: Callable[[Victim], Callable[[], None]], longest_s: float
    ) -> Fault | None:
        victim = self._rng.choice(self._victims)
        if victim.name in busy:
            return None
        return Fault(name, victim.name, self._rng.uniform(0.2, longest_s), hurt(victim))

    def _kill(self, busy: set[str]) -> Fault | None:
        return self._of_one("kill", busy, Victim.kill, 4)

    def _delete(self, busy: set[str]) -> Fault | None:
        return self._of_one("delete", busy, Victim.delete, 2)

    def _pause(self, busy: set[str]) -> Fault | None:
        return self._of_one("stop", busy, Victim.pause, 16)

    def _step(self, busy: set[str]) -> Fault | None:
        back_ms = -self._rng.choice((30, 900, 6_000))
        return self._of_one("clock", busy, lambda victim: victim.step_clock(back_ms), 8)

    def _fill(self, busy: set[str]) -> Fault | None:
        """Not of one that has still to claim its folder: as it should, it would end, and say why."""
        unclaimed = {victim.name for victim in self._victims if not victim.has_folder}
        return self._of_one("disk", busy | unclaimed, Victim.fill_disk, 8)

    def _slow(self, busy: set[str]) -> Fault | None:
        return self._of_link("slow", busy, delay_ms=self._rng.choice((20, 200, 700)), is_cut=False)

    def _cut(self, busy: set[str]) -> Fault | None:
        return self._of_link("cut", busy, delay_ms=0, is_cut=True)

    def _of_link(self, name: str, busy: set[str], *, delay_ms: int, is_cut: bool) -> Fault | None:
        """To one broker, or to all of them."""
        link = self._rng.randrange(len(self._brokers.links))
        subject = f"link {link}"
        if subject in busy:
            return None
        all_ = self._brokers.links[link]
        proxies = self._rng.choice((all_, [self._rng.choice(all_)]))
        _set(proxies, delay_ms, is_cut=is_cut)
        return Fault(name, subject, self._rng.uniform(0.5, 12), lambda: _set(proxies, 0, is_cut=False))

    def _break(self, busy: set[str]) -> Fault | None:
        if "broker" in busy:
            return None
        node = self._brokers.node(self._rng.choice(_MAY_DIE))
        node.kill()
        return Fault("broker", "broker", self._rng.uniform(0.2, 8), node.start)


def _set(proxies: Sequence[Proxy], delay_ms: int, *, is_cut: bool) -> None:
    for proxy in proxies:
        proxy.delay_ms, proxy.is_cut = delay_ms, is_cut
