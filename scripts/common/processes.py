"""The bridge as a process of its own, and what processes cost by /proc.

with BridgeProcess(folder, bootstrap_servers) as bridge:      ready when entered
    bridge.usage()                                            Usage(cpu_s=1.5, peak_rss_mb=80.2, rss_mb=71.0)
    bridge.transactions(), bridge.partitions()                that stand, that it serves: by /metrics on its http_port
                                                              SIGTERM at the end, to its own pid alone
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Self

from bridge.dev.child_process import kill_with_parent
from bridge.dev.embedded_kafka import HOST
from bridge.errors import BridgeError

TIMER_BRIDGE = (str(Path(sys.executable).with_name("timer-bridge")),)
_SPARE_S = 8.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Of one process, without its children. Where there is no /proc, all is 0."""

    cpu_s: float
    peak_rss_mb: float
    rss_mb: float


class Machine(NamedTuple):
    """All CPU time of the machine so far."""

    busy_s: float
    total_s: float


def proc_field(path: str, name: str) -> str:
    """Return the value of the first `name : value` of a file under /proc, empty if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _mb(path: str, name: str) -> float:
    return int((proc_field(path, name) or "0 kB").split()[0]) / 1024


def usage(pid: int) -> Usage:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Usage(0.0, 0.0, 0.0)
    status, cpu_s = f"/proc/{pid}/status", (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # utime, stime
    return Usage(cpu_s, _mb(status, "VmHWM:"), _mb(status, "VmRSS:"))


class Tree:
    """A process and all below it, seen again and again. Where there is no /proc, all is 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_s: dict[int, float] = {}
        self.peak_mb = 0.0
        """Of RAM, at one moment; what several of them share counts once."""

    @property
    def cpu_s(self) -> float:
        """But for what was used behind the last look at each."""
        return sum(self._cpu_s.values())

    def look(self) -> None:
        used_mb = 0.0
        for pid, fields in self._members().items():
            self._cpu_s[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            used_mb += _mb(f"/proc/{pid}/smaps_rollup", "Pss:")
        self.peak_mb = max(self.peak_mb, used_mb)

    def _members(self) -> dict[int, list[str]]:
        everybody: dict[int, list[str]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                everybody[int(stat.parent.name)] = stat.read_text().rpartition(")")[2].split()
        found: dict[int, list[str]] = {}
        more = {self._pid} & everybody.keys()
        while more:
            found |= {pid: everybody[pid] for pid in more}
            more = {pid for pid, fields in everybody.items() if int(fields[1]) in more} - found.keys()
        return found


def machine() -> Machine:
    try:
        with Path("/proc/stat").open() as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except OSError:
        return Machine(0.0, 0.0)
    idle = ticks[3] + ticks[4]
    return Machine((sum(ticks) - idle) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S)


def pin(pid: int, number: int) -> None:
    """To the core of that number, round and round; children and threads to come too."""
    cores = sorted(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})


def talking(command: Sequence[str], *, stdin: int = subprocess.DEVNULL, log: Path) -> subprocess.Popen[str]:
    """Its standard output is ours to read. It ends with the thread that calls this; Ctrl-C reaches only us."""
    with log.open("ab") as errors:
        return subprocess.Popen(
            kill_with_parent(command),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


class BridgeProcess:
    """`timer-bridge run` on a data directory in `folder`. Its words go to `folder/bridge.log`."""

    def __init__(
        self,
        folder: Path,
        bootstrap_servers: str,
        arguments: Sequence[str] = (),
        *,
        http_port: int = 0,
        command: Sequence[str] = TIMER_BRIDGE,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "bridge.log"
        self._folder = folder
        self._command = [*command, "run", "--bootstrap-servers", bootstrap_servers]
        self.data_dir = folder / "timer-data"
        self._http_port = http_port
        self._command += ["--data-dir", str(self.data_dir), *arguments]
        self._command += ["--http-port", str(http_port)] if http_port else []
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = Future[bool]()
        """Of the present life: whether it was ready before it ended."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def usage(self) -> Usage:
        return usage(self.pid)

    def disk_mb(self) -> float:
        """Of its data directory."""
        return sum(file.stat().st_blocks * 512 for file in self.data_dir.rglob("*") if file.is_file()) / 2**20

    def transactions(self) -> float:
        return self._sum_of("timer_bridge_transaction_seconds_count")

    def partitions(self) -> float:
        """That are its own and at work."""
        return self._sum_of('timer_bridge_partitions{phase="running"}')

    def _sum_of(self, begin: str) -> float:
        """Of the samples that begin so, by /metrics."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(begin))

    def get(self, path: str) -> bytes:
        """What it answers on its `http_port`. Raises urllib.error.HTTPError."""
        assert self._http_port, "made without a port"
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}{path}", timeout=10) as answer:  # nosec B310
            found: bytes = answer.read()
        return found

    def start(self, *, timeout_s: float = 120.0) -> None:
        """Returns when it says that it is ready."""
        self.launch()
        self.await_ready(timeout_s=timeout_s)

    def start_spare(self) -> None:
        """One more than there are partitions says nothing: it is given the time to join."""
        self.launch()
        time.sleep(_SPARE_S)

    def launch(self) -> None:
        """It ends with the thread that calls this."""
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we end it in order.
            self._process = subprocess.Popen(
                kill_with_parent(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._ready = Future()
        threading.Thread(target=self._listen, args=(self._process, self._ready), daemon=True).start()

    def await_ready(self, *, timeout_s: float = 120.0) -> None:
        """Raises BridgeError where it ends or takes longer."""
        try:
            if self._ready.result(timeout_s):
                return
            why = "ended before it was ready"
        except TimeoutError:
            why = f"not ready in {timeout_s:.0f} s"
        self.kill()
        raise BridgeError(f"the bridge: {why}; {self.last_words()}")

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """SIGTERM. Raises BridgeError where it does not end with exit code 0 in time; then it is killed."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BridgeError(f"the bridge did not end within {timeout_s:.0f} s of SIGTERM") from None
        if code != 0:
            raise BridgeError(f"the bridge ended with exit code {code}; {self.last_words()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def demand_alive(self) -> None:
        if not self.is_running:
            raise BridgeError(f"the bridge has ended by itself; {self.last_words()}")

    def last_words(self) -> str:
        last = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return f"the end of its log {self.log_path}:\n  " + "\n  ".join(last or ["(empty)"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            with contextlib.suppress(BridgeError):  # what went wrong first is what is told
                self.stop()

    def _listen(self, process: subprocess.Popen[bytes], ready: "Future[bool]") -> None:
        """Its standard output into the log, to the end: a full pipe would stop it."""
        assert process.stdout is not None
        with process.stdout, self.log_path.open("ab", buffering=0) as log:
            for line in process.stdout:
                log.write(line)
                if b"ready" in line and not ready.done():
                    ready.set_result(True)
        if not ready.done():
            ready.set_result(False)
