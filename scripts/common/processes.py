"""The bridge as a child process, and the cost of processes by /proc.

with BridgeProcess(folder, bootstrap_servers) as bridge:      ready when entered
    bridge.usage()                                            Usage(cpu_s=1.5, peak_rss_mb=80.2, rss_mb=71.0)
                                                              SIGTERM at the end, to its own pid alone
"""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from bridge.child_process import start_child
from bridge.dev.embedded_kafka import HOST
from bridge.errors import BridgeError

TIMER_BRIDGE = (str(Path(sys.executable).with_name("timer-bridge")),)
_LOOK_S = 0.01
_READY = b"timer-bridge is ready"
_TRANSACTIONS = "timer_bridge_transaction_seconds_count"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Usage of one process, without its children."""

    cpu_s: float
    peak_rss_mb: float
    rss_mb: float


def proc_field(path: str, name: str) -> str:
    """Return the value of the first `name : value` of a file under /proc, empty if there is none."""
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def proc_mb(path: str, name: str) -> float:
    """Return a size in kB of a file under /proc, in MB."""
    return int((proc_field(path, name) or "0").split()[0]) / 1024


def usage(pid: int) -> Usage:
    """Return the usage of a process; all 0 if it has ended."""
    try:
        status = f"/proc/{pid}/status"
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        cpu_s = (int(user) + int(system)) / _TICKS_PER_S
        return Usage(cpu_s, proc_mb(status, "VmHWM:"), proc_mb(status, "VmRSS:"))
    except OSError:
        return Usage(0.0, 0.0, 0.0)


def workers(pid: int) -> dict[int, int]:
    """Return the process id of each worker that runs, by its number. pid: of the supervisor."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):  # it has ended
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended, or is no worker
                found[int(Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-2])] = int(child)
    return found


def start_piped(command: Sequence[str], *, stdin: int = subprocess.DEVNULL, log: Path) -> subprocess.Popen[str]:
    with log.open("ab") as errors:
        return start_child(command, stdin=stdin, stdout=subprocess.PIPE, stderr=errors, text=True)


class BridgeProcess:
    """`timer-bridge run` on a data directory in `folder`. Its log is `folder/bridge.log`."""

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
        self.log_path, self.data_dir = folder / "bridge.log", folder / "timer-data"
        self._http_port = http_port
        self._command = [*command, "run", "--bootstrap-servers", bootstrap_servers, "--data-dir", str(self.data_dir)]
        self._command += [*arguments, *(["--http-port", str(http_port)] if http_port else [])]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begin = 0
        """Size of the log when the current process started."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def usage(self) -> Usage:
        """Return the usage, with that of its workers."""
        each = [usage(pid) for pid in {self.pid, *workers(self.pid).values()}]
        return Usage(*map(sum, zip(*each, strict=True)))

    def disk_mb(self) -> float:
        return sum(file.stat().st_blocks * 512 for file in self.data_dir.rglob("*") if file.is_file()) / 2**20

    def transactions(self) -> float:
        """Return the number of committed transactions, by /metrics."""
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(_TRANSACTIONS))

    def get(self, path: str) -> bytes:
        """Return the response on its `http_port`. Raises urllib.error.HTTPError."""
        assert self._http_port, "made without a port"
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}{path}", timeout=10) as answer:  # nosec B310
            return bytes(answer.read())

    def start(self, *, timeout_s: float = 120.0) -> None:
        self.launch()
        self.await_ready(timeout_s=timeout_s)

    def launch(self) -> None:
        """Start it without waiting. It ends with the calling thread."""
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self._process = start_child(self._command, stdout=log, stderr=log)

    def await_ready(self, *, timeout_s: float = 120.0) -> None:
        """Wait until it is ready. Raises BridgeError if it ends, or after `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        while _READY not in self.log_path.read_bytes()[self._log_begin :]:
            is_running = self.is_running
            if not is_running or time.monotonic() > until_s:
                self.kill()
                why = f"not ready in {timeout_s:.0f} s" if is_running else "ended before it was ready"
                raise BridgeError(f"the bridge: {why}; {self.log_tail()}")
            time.sleep(_LOOK_S)

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Send SIGTERM. If it does not end in time with exit code 0, kill it and raise BridgeError."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BridgeError(f"the bridge did not end within {timeout_s:.0f} s of SIGTERM") from None
        if code != 0:
            raise BridgeError(f"the bridge ended with exit code {code}; {self.log_tail()}")

    def kill(self) -> None:
        """Send SIGKILL. Afterwards it counts as not started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def demand_alive(self) -> None:
        """Raise BridgeError if it has ended, unless `kill` has ended it."""
        if self._process is not None and not self.is_running:
            raise BridgeError(f"the bridge has ended by itself; {self.log_tail()}")

    def log_tail(self) -> str:
        last = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return f"the end of its log {self.log_path}:\n  " + "\n  ".join(last or ["(empty)"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except BridgeError:
            if kind is None:  # otherwise the first error is the one to report
                raise
