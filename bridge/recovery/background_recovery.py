"""A store made ready by a process of its own: where much is to be read at a start, the other shards go on meanwhile.

    bridge: shard assigned, much to read -> Preparer.prepare(shard) -> child: recover, checkpoint, close -> exit
            turns go on, the shard is not started                                                            |
            is_done: recover(shard) finds a store that is nearly as Kafka says          <--------------------+

The child holds nothing that the parent needs: where it fails, or is killed, the parent does the work itself. It ends
with its parent, so that nobody writes to a directory whose next owner has begun.
"""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.config.data_directory import DataDir
from bridge.config.kafka_config import Connection
from bridge.config.loop_options import TurnOptions
from bridge.dev.child_process import kill_with_parent
from bridge.errors import BridgeError
from bridge.observe import logs
from schemas.origin import Shard
from timer.errors import UnreadableError

log = logging.getLogger(__name__)

_REFUSED, _UNREADABLE = 3, 4
"""Exit codes of a child whose disk is full or broken, or cannot be read and is the last copy."""

Logs = tuple[logs.Format, logs.Level]


@dataclass(frozen=True, slots=True)
class _Order:
    """What a child is told, by its standard input: the connection may hold secrets."""

    shard: Shard
    folder: Path
    connection: Connection
    journal_topics: Mapping[str, str]
    options: TurnOptions
    logs: Logs


class Preparing:
    """One shard's: it waits for its turn, is at work, or is over."""

    def __init__(self, preparer: "Preparer", order: _Order) -> None:
        self.order = order
        self.process: subprocess.Popen[bytes] | None = None
        self.cannot_start = False
        self._preparer = preparer

    def is_done(self) -> bool:
        self._preparer.go_on()
        code = None if self.process is None else self.process.poll()
        if code and code not in (_REFUSED, _UNREADABLE):
            log.warning("%s: its preparation ended with %d: it is recovered here", self.order.shard, code)
        return code is not None or self.cannot_start

    @property
    def refused(self) -> OSError | UnreadableError | None:
        code = None if self.process is None else self.process.poll()
        if code == _REFUSED:
            return OSError("its preparation has said by what")
        return UnreadableError("the local store", "its preparation has said where") if code == _UNREADABLE else None

    def give_up(self) -> None:
        """When this returns, nobody writes any more."""
        self._preparer.forget(self)
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Of this process: a container may have few of a machine's, and its memory is measured by that."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such limit
        quota, period = map(int, cpu_max.read_text().split())
        cores = min(cores, -(-quota // period))
    return cores


@dataclass(eq=False)
class Preparer:
    """As many at a time as there are cores."""

    _connection: Connection
    _journal_topics: Mapping[str, str]
    _folder: DataDir
    _options: TurnOptions
    _logs: Logs

    def __post_init__(self) -> None:
        self._most = usable_cores()
        self._waiting: deque[Preparing] = deque()
        self._running: list[Preparing] = []

    def prepare(self, shard: Shard) -> Preparing:
        """No store of the shard is open; its disk is asked for anew when this is done."""
        folder = self._folder.let_go(shard)
        options = self._options.of(shard.topic)
        order = _Order(shard, folder, self._connection, self._journal_topics, options, self._logs)
        made = Preparing(self, order)
        self._waiting.append(made)
        self.go_on()
        return made

    def go_on(self) -> None:
        """Starts those whose turn it is."""
        self._running = [each for each in self._running if each.process is None or each.process.poll() is None]
        while self._waiting and len(self._running) < self._most:
            each = self._waiting.popleft()
            try:
                each.process = _started(each.order)
            except OSError as wrong:
                log.warning("%s: no process for its preparation (%s): it is recovered here", each.order.shard, wrong)
                each.cannot_start = True
            else:
                self._running.append(each)

    def forget(self, preparing: Preparing) -> None:
        for each in (self._waiting, self._running):
            with contextlib.suppress(ValueError):
                each.remove(preparing)


def _started(order: _Order) -> subprocess.Popen[bytes]:
    command = kill_with_parent([sys.executable, "-m", __name__])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin:  # its exit code tells
        process.stdin.write(pickle.dumps(order))
    return process


def main() -> None:
    from bridge.garbage_collection import tune_gc
    from bridge.kafka.log_reader import ConfluentHistory
    from bridge.kafka.retry import Patience
    from bridge.recovery.recover import prepare
    from timer.files.disk import RealDisk

    order: _Order = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  (our parent's)  # nosec B301
    # A terminal or a service manager sends these signals to every process. Our parent handles them.
    for asked in (signal.SIGINT, signal.SIGTERM, *logs.SWITCHES):
        signal.signal(asked, signal.SIG_IGN)
    logs.configure(*order.logs, order.connection.kafka)
    tune_gc()
    history = ConfluentHistory(order.connection, order.journal_topics, Patience())
    disk = RealDisk(order.folder)
    try:
        prepare(order.shard, disk, history, order.options)
    except (OSError, UnreadableError) as wrong:
        log.warning("%s: its preparation ends: %s", order.shard, wrong)
        sys.exit(_UNREADABLE if isinstance(wrong, UnreadableError) else _REFUSED)
    except BridgeError as wrong:  # our parent meets the same
        log.warning("%s: its preparation ends: %s", order.shard, wrong)
        sys.exit(1)
    disk.close()
    history.close()


if __name__ == "__main__":
    sys.modules["bridge.recovery.background_recovery"] = sys.modules["__main__"]  # by that name the order was pickled
    main()
