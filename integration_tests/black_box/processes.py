"""`timer-bridge` processes, and waits for conditions."""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 200.0
"""Longest wait for a condition. Only a failing test takes this time."""
_SHOWN_CHARACTERS = 4000
_RECOVERED = re.compile(r"(\S+/\d+): recovered to offset")


def until(look: Callable[[], T], what: str) -> T:
    """Return the first answer of `look` that is true. Fails after PATIENCE_S."""
    end_s = time.monotonic() + PATIENCE_S
    while not (answer := look()):
        assert time.monotonic() < end_s, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(0.1)
    return answer


def free_port() -> int:
    """Return a free port below the range of outgoing connections, so that no client takes it."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("none of 100 ports is free")


class Process:
    """`timer-bridge ARGUMENTS`, its output in `log`. On Linux, the kernel kills it if the test process dies."""

    def __init__(self, arguments: Sequence[str], folder: Path, log: Path) -> None:
        command = [str(Path(sys.executable).with_name("timer-bridge")), *arguments]
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        self.log = log
        with log.open("w") as output:
            self._child = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def await_line(self, text: str) -> None:
        """Wait until the log contains `text`. Fails at once if the process ends."""

        def is_there() -> bool:
            found = text in self.log.read_text()
            assert found or self._child.poll() is None, f"ended with {self._child.returncode}:\n{self.tail()}"
            return found

        until(is_there, f"{text!r} in {self.log}")

    def end(self, by: signal.Signals | None = None) -> int:
        """Return the exit code, which is negative if the process died of the signal `by`."""
        if by is not None:
            self._child.send_signal(by)
        try:
            return self._child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise AssertionError(f"did not end after {by!r}:\n{self.tail()}") from None

    @property
    def is_up(self) -> bool:
        return self._child.poll() is None

    def tail(self) -> str:
        return self.log.read_text()[-_SHOWN_CHARACTERS:]


class Bridge:
    """`timer-bridge run` on one data directory, life after life."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str]) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self._data = self._folder / "timer-data"
        self._port = free_port()
        self._arguments = ["run", *arguments, "--data-dir", str(self._data), "--http-port", str(self._port)]
        self._lives: list[Process] = []

    def start(self, *options: str) -> None:
        """Start a life with further options, and wait until it is ready."""
        log = self._folder / f"life-{len(self._lives)}.log"
        self._lives.append(Process([*self._arguments, *options], self._folder, log))
        self._life.await_line("timer-bridge is ready")

    def stop(self) -> None:
        assert self._life.end(signal.SIGTERM) == 0, self._life.tail()

    def kill(self) -> None:
        assert self._life.end(signal.SIGKILL) == -signal.SIGKILL

    def kill_if_up(self) -> None:
        if self.is_up:
            self.kill()

    def lose_disk(self) -> None:
        """Delete the data directory, in which there are files."""
        assert [each for each in self._data.rglob("*") if each.is_file()]
        shutil.rmtree(self._data)
        assert not self._data.exists()

    def verify(self) -> None:
        """Check the stores of the stopped bridge by `timer-bridge verify`."""
        checked = Process(["verify", str(self._data)], self._folder, self._folder / "verify.log")
        assert checked.end() == 0, checked.tail()

    def recovered(self, how: str) -> set[str]:
        """Return the partitions that this life recovered `from Kafka alone`, or `from its directory`."""
        lines = [line for line in self._life.log.read_text().splitlines() if how in line]
        return {found[1] for line in lines if (found := _RECOVERED.search(line)) is not None}

    def health(self) -> dict[str, Any]:
        """Return the answer of /health/ready; nothing if the port does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health/ready", timeout=PATIENCE_S) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as not_ready:
            with not_ready:
                told = json.load(not_ready)
        except OSError:
            return {}
        return told

    def running(self) -> int:
        """Return how many partitions it serves."""
        return list(self.health().get("shards", {}).values()).count("running") if self.is_up else 0

    @property
    def is_up(self) -> bool:
        return bool(self._lives) and self._life.is_up

    @property
    def _life(self) -> Process:
        return self._lives[-1]
