"""A server as a child process that ends with us: when we stop it, at Ctrl-C, and when we are killed.

child = ChildProcess([java, ...], folder, b"started")    its output goes to folder/logs/console.log
child.ready_or_ended.wait(60)                           child.ready is True if it is ready
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DIE_WITH_PARENT = """
import ctypes, os, sys
with __import__("contextlib").suppress(AttributeError):
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def kill_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command of a process that ends together with the thread that starts it."""
    return [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid()), *command]


def start_child(command: Sequence[str], *, stdin: int = subprocess.DEVNULL, **more: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with the calling thread. Ctrl-C in a terminal reaches only us. more: of Popen.

    It has a process group of its own, but our session: on few cores, Linux gives each session an equal share
    (autogroup), and one that wakes up got none for up to 400 ms.
    """
    return subprocess.Popen(kill_with_parent(command), stdin=stdin, process_group=0, **more)


_KERNEL_S = 30.0  # longest wait for it to start or end a process


class ChildProcess:
    """A process, and a thread that starts it, reads its output and waits for its end.

    ready_or_ended: set at the ready line or at the end, whichever is first. ready: True after the ready line.
    """

    def __init__(self, command: list[str], folder: Path, ready_line: bytes) -> None:
        self.ready = False
        self.ready_or_ended = threading.Event()
        self._spawned = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._command = command
        self._console = folder / "logs" / "console.log"
        self._console.parent.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ready_line = ready_line
        self._thread = threading.Thread(target=self._run, name=f"child in {folder.name}", daemon=True)
        self._thread.start()
        self._spawned.wait(_KERNEL_S)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, timeout_s: float) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_KERNEL_S)
        self._thread.join(_KERNEL_S)

    def _run(self) -> None:
        """Start the process, and copy its output to the file until the end: a full pipe would block it."""
        try:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            with self._console.open("ab") as console, start_child(self._command, cwd=self._folder, **pipes) as process:
                self._process = process
                self._spawned.set()
                assert process.stdout is not None
                for line in process.stdout:
                    os.write(console.fileno(), line)
                    if self._ready_line in line:
                        self.ready = True
                        self.ready_or_ended.set()
        finally:
            self._spawned.set()
            self.ready_or_ended.set()
