"""Recover a store in a process of its own if much has to be read, so that other partitions go on meanwhile.

    bridge: partition assigned -> BackgroundRecoverer.start(partition) -> child: recover, checkpoint, close -> one byte
            turns go on, the partition is not started                                                       |
            is_done: recover(partition) finds a store that is nearly up to date                 <---------------+

A child takes one order after the other, as its start takes as long as a small partition.

If the child fails or is killed, the parent does the work itself. The child ends with its parent, so that it does not
write to a directory that the next owner has opened.
"""

import contextlib
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.child_process import kill_with_parent
from bridge.config.data_directory import DataDir
from bridge.config.kafka_config import Connection
from bridge.config.settings import usable_cores
from bridge.errors import BridgeError
from bridge.garbage_collection import tune_gc
from bridge.kafka.history import ConfluentHistory
from bridge.kafka.retry import Retrier
from bridge.observe import logs
from bridge.partition.options import TurnOptions
from bridge.partition.recover import prepare_store, refresh_standby
from kafka_timer.origin import TimerPartition
from timer.disk import RealDisk
from timer.errors import UnreadableError

log = logging.getLogger(__name__)

_DISK_ERROR, _UNREADABLE = 3, 4
"""Exit codes of a child: disk full or broken; store unreadable and the last copy."""

_NICE = 10
"""Of refreshes: timers of our own partitions come first."""


@dataclass(frozen=True, slots=True)
class _Order:
    """Input of a child, sent by standard input because the connection may hold secrets."""

    partition: TimerPartition
    folder: Path
    connection: Connection
    journal_topics: Mapping[str, str]
    options: TurnOptions
    logs: Callable[..., None]
    """`logs.configure` with the settings of our own log lines."""
    cpu_share: float | None = None
    """For a standby, as another instance owns the partition: the share of a core that all refreshes may take."""

    @property
    def is_refresh(self) -> bool:
        return self.cpu_share is not None


class RecoveryProcess:
    """Recovery of one partition: waiting, running or done. Implements bridge.ports.BackgroundRecovery."""

    def __init__(self, recoverer: "BackgroundRecoverer", order: _Order) -> None:
        self.order = order
        self.process: subprocess.Popen[bytes] | None = None
        self.cannot_start = False
        self._recoverer = recoverer
        self._code: int | None = None

    def code(self) -> int | None:
        """Return 0 once the child has prepared the store, its exit code if it has ended instead, None before."""
        if self._code is None and self.process is not None:
            assert self.process.stdout is not None
            if select.select([self.process.stdout], [], [], 0)[0]:
                is_prepared, ended = bool(self.process.stdout.read(1)), self.process.poll()
                self._code = 0 if is_prepared else None if ended is None else ended or 1
                if self._code:
                    _end(self.process)
        return self._code

    def is_done(self) -> bool:
        self._recoverer.start_waiting()
        code = self.code()
        if code and not self.order.is_refresh and code not in (_DISK_ERROR, _UNREADABLE):
            log.warning("%s: background recovery ended with %d: it is recovered here", self.order.partition, code)
        return code is not None or self.cannot_start

    @property
    def refused(self) -> OSError | UnreadableError | None:
        code = self.code()
        if code == _DISK_ERROR or (self.order.is_refresh and (code or self.cannot_start)):
            return OSError("see the log of its background recovery")
        return UnreadableError("the local store", "see the log of its recovery") if code == _UNREADABLE else None

    def give_up(self) -> None:
        """Kill the child if it is not done. After the return nothing writes to the directory."""
        if self.process is not None and self.code() is None:
            _end(self.process)
            self._code = self.process.returncode
        self._recoverer.forget(self)


@dataclass(eq=False)
class BackgroundRecoverer:
    """Runs recovery processes, at most one per core of ours. workers: bridges that share the cores."""

    _connection: Connection
    _journal_topics: Mapping[str, str]
    _folder: DataDir
    _options: TurnOptions
    _logs: Callable[..., None]
    _workers: int = 1

    def __post_init__(self) -> None:
        self._max_processes = max(1, usable_cores() // self._workers)
        self._waiting: deque[RecoveryProcess] = deque()
        self._running: list[RecoveryProcess] = []
        self._refresher: subprocess.Popen[bytes] | None = None
        """Refreshes standbys, one after the other."""

    def start(self, partition: TimerPartition) -> RecoveryProcess:
        """Queue the recovery of a partition whose store is closed. Its directory has to be opened again afterwards."""
        made = RecoveryProcess(self, self._order(partition))
        self._waiting.append(made)
        self.start_waiting()
        return made

    def refresh(self, partition: TimerPartition, cpu_share: float) -> RecoveryProcess:
        """Start to refresh a standby, after a rest. The one before is done or given up.

        cpu_share: of one core, more than 0, at most 1.
        """
        made = RecoveryProcess(self, self._order(partition, cpu_share))
        if self._refresher is not None and self._refresher.poll() is not None:
            self._refresher = None
        self._run(made, self._refresher)
        self._refresher = made.process
        return made

    def close(self) -> None:
        if self._refresher is not None:
            _end(self._refresher)

    def _order(self, partition: TimerPartition, cpu_share: float | None = None) -> _Order:
        folder, options = self._folder.let_go(partition), self._options.of(partition.topic)
        return _Order(partition, folder, self._connection, self._journal_topics, options, self._logs, cpu_share)

    def _run(self, made: RecoveryProcess, process: subprocess.Popen[bytes] | None) -> None:
        """Give the order to `process`, or to a new one."""
        try:
            made.process = process or _started()
        except OSError as wrong:
            log.warning("%s: no process for its background recovery (%s)", made.order.partition, wrong)
            made.cannot_start = True
            return
        assert made.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the exit code reports the failure
            made.process.stdin.write(pickle.dumps(made.order))
            made.process.stdin.flush()

    def start_waiting(self) -> None:
        """Give waiting orders to children while cores are free. End the children that are not needed any more."""
        done = [each for each in self._running if each.code() is not None]
        self._running = [each for each in self._running if each not in done]
        idle = [each.process for each in done if each.code() == 0 and each.process is not None]
        while self._waiting and len(self._running) < self._max_processes:
            each = self._waiting.popleft()
            self._run(each, idle.pop() if idle else None)
            if each.process is not None:
                self._running.append(each)
        for process in idle:
            _end(process)

    def forget(self, preparing: RecoveryProcess) -> None:
        if preparing in self._waiting:
            self._waiting.remove(preparing)
        if preparing in self._running:
            self._running.remove(preparing)
            if preparing.code() == 0 and preparing.process is not None:
                _end(preparing.process)


def _started() -> subprocess.Popen[bytes]:
    command = kill_with_parent([sys.executable, "-c", f"from {__name__} import main; main()"])
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with contextlib.suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def main() -> None:
    # A terminal or a service manager sends these signals to every process. Our parent handles them.
    for asked in (signal.SIGINT, signal.SIGTERM, *logs.SWITCHES):
        signal.signal(asked, signal.SIG_IGN)
    tune_gc()
    history: ConfluentHistory | None = None
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while True:
        try:
            order: _Order = pickle.load(sys.stdin.buffer)  # noqa: S301  (our parent's)  # nosec B301
        except EOFError:  # our parent has ended
            return
        if order.cpu_share is not None:
            took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
            time.sleep(rest_s(took_s, cpu_s, order.cpu_share))
            began_s, began_cpu_s = time.monotonic(), time.process_time()
        order.logs(kafka=order.connection.kafka)
        history = history or ConfluentHistory(order.connection, order.journal_topics, Retrier())
        _prepare(order, history)
        os.write(sys.stdout.fileno(), b"0")


def rest_s(took_s: float, cpu_s: float, cpu_share: float) -> float:
    """Return the seconds to wait so that `cpu_s` of CPU in `took_s` seconds are at most a share of a core."""
    return max(0.0, cpu_s / cpu_share - took_s)


def _prepare(order: _Order, history: ConfluentHistory) -> None:
    """Recover one store. Ends the process if that fails."""
    if order.is_refresh:
        os.nice(_NICE - os.nice(0))
    disk = RealDisk(order.folder)
    try:
        (refresh_standby if order.is_refresh else prepare_store)(order.partition, disk, history, order.options)
    except (OSError, UnreadableError, BridgeError) as wrong:
        log.warning("%s: background recovery failed: %s", order.partition, wrong)
        code = _DISK_ERROR if isinstance(wrong, OSError) else 1  # 1: the parent will meet the same error
        sys.exit(_UNREADABLE if isinstance(wrong, UnreadableError) else code)
    disk.close()
