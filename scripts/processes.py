"""The bridge as a process of its own, and what processes cost by /proc.

with BridgeProcess(folder, bootstrap_servers) as bridge:      ready when entered
    bridge.usage()                                            Usage(cpu_s=1.5, peak_rss_mb=80.2)
                                                              SIGTERM at the end, to its own pid alone
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from bridge.embedded import DIE_WITH_PARENT
from bridge.errors import BridgeError

TIMER_BRIDGE = (str(Path(sys.executable).with_name("timer-bridge")),)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Of one process, without its children. Where there is no /proc, all is 0."""

    cpu_s: float
    peak_rss_mb: float


class Machine(NamedTuple):
    """All CPU time of the machine so far."""

    busy_s: float
    total_s: float


def usage(pid: int) -> Usage:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return Usage(0.0, 0.0)
    peak_kb = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, peak_kb / 1024)  # utime, stime


def machine() -> Machine:
    try:
        with Path("/proc/stat").open() as stat:
            ticks = [int(word) for word in stat.readline().split()[1:9]]
    except OSError:
        return Machine(0.0, 0.0)
    idle = ticks[3] + ticks[4]
    return Machine((sum(ticks) - idle) / _TICKS_PER_S, sum(ticks) / _TICKS_PER_S)


class BridgeProcess:
    """`timer-bridge run` on a data directory in `folder`. Its words go to `folder/bridge.log`."""

    def __init__(
        self,
        folder: Path,
        bootstrap_servers: str,
        arguments: Sequence[str] = (),
        *,
        command: Sequence[str] = TIMER_BRIDGE,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "bridge.log"
        self._folder = folder
        self._command = [*command, "run", "--bootstrap-servers", bootstrap_servers]
        self._command += ["--data-dir", str(folder / "timer-data"), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_or_ended = threading.Event()
        self._ready = False

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def usage(self) -> Usage:
        return usage(self.pid)

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Returns when it says that it is ready."""
        self.launch()
        self.await_ready(timeout_s=timeout_s)

    def launch(self) -> None:
        """It ends with the thread that calls this."""
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we end it in order.
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", DIE_WITH_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def await_ready(self, *, timeout_s: float = 60.0) -> None:
        """Raises BridgeError where it ends or takes longer."""
        self._ready_or_ended.wait(timeout_s)
        if not self._ready:
            ended = "ended before it was ready" if self._ready_or_ended.is_set() else f"not ready in {timeout_s:.0f} s"
            self.kill()
            raise BridgeError(f"the bridge: {ended}; {self.last_words()}")

    def stop(self, *, timeout_s: float = 20.0) -> None:
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

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Its standard output into the log, to the end: a full pipe would stop it."""
        assert process.stdout is not None
        with process.stdout, self.log_path.open("ab", buffering=0) as log:
            for line in process.stdout:
                log.write(line)
                if b"ready" in line:
                    self._ready = True
                    self._ready_or_ended.set()
        self._ready_or_ended.set()
