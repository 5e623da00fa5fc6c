"""Run the workers as child processes, restart each one that dies, and serve `http_port` for all.

    supervisor   signals, restarts, http_port (bridge/page/reverse_proxy.py); no Kafka client
    worker 1     data_dir              as without workers, so that a bridge that gets workers keeps its stores
    worker n     data_dir/worker=n     an instance id of its own: a static member, and transactional ids of its own

A worker that ends is started again at once, then after 1 s, 2 s ... 30 s, until it has lived for a minute. If it ends
by an error before all were ready, all end: a wrong setting or a missing broker ends the process as without workers.
SIGTERM or Ctrl-C drains all; a second one kills all, as workers end with their parent.
"""

import logging
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from bridge import extras
from bridge.child_process import start_child
from bridge.config.data_directory import DataDir, worker_folder, worker_socket
from bridge.config.http_address import own_address
from bridge.config.settings import Settings
from bridge.errors import BridgeError, exit_code_of
from bridge.observe import logs
from bridge.process import check, die_at_next, open_many_files, run

log = logging.getLogger("bridge.workers")

_TURN_S = 0.1
_ASK_S = 0.5
_LONGEST_WAIT_S = 30.0
_GOOD_LIFE_S = 60.0
"""After running for this long, a worker is restarted at once again."""


class Process(Protocol):
    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...


@dataclass
class Worker:
    """One worker, over its restarts."""

    number: int
    process: Process | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    _wait_s: float = 0.0

    def ended(self, now_s: float) -> float:
        """Plan the next start. Return the wait until then."""
        self.process = None
        if now_s - self.started_s >= _GOOD_LIFE_S:
            self._wait_s = 0.0
        wait_s, self._wait_s = self._wait_s, min(max(1.0, 2 * self._wait_s), _LONGEST_WAIT_S)
        self.start_at_s = now_s + wait_s
        return wait_s


class Supervisor:
    """Decides what is started and when all end. start: starts a worker by its number."""

    def __init__(self, workers: int, start: Callable[[int], Process], now_s: Callable[[], float]) -> None:
        self.stop_requested = False
        self.was_ready = False
        """True once all workers were ready at the same time."""
        self.exit_code = 0
        self._workers = [Worker(number) for number in range(1, workers + 1)]
        self._start = start
        self._now_s = now_s
        self._is_stopping = False

    def turn(self) -> bool:
        """Note the ends of workers, start those whose wait is over, and stop all if asked. False if all have ended."""
        now_s = self._now_s()
        for worker in self._workers:
            if worker.process is not None and (code := worker.process.poll()) is not None:
                self._note_end(worker, code, now_s)
        if self.stop_requested and not self._is_stopping:
            self._is_stopping = True
            self.signal_all(signal.SIGTERM)
        for worker in self._workers:
            if worker.process is None and worker.start_at_s <= now_s and not self._is_stopping:
                self._begin(worker, now_s)
        return not self._is_stopping or any(worker.process is not None for worker in self._workers)

    def signal_all(self, number: int) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.process.send_signal(number)

    def _begin(self, worker: Worker, now_s: float) -> None:
        try:
            worker.process, worker.started_s = self._start(worker.number), now_s
        except OSError as error:  # no memory, or too many processes
            log.warning("worker %d: not started: %s; tried again in %.0f s", worker.number, error, worker.ended(now_s))

    def _note_end(self, worker: Worker, code: int, now_s: float) -> None:
        wait_s = worker.ended(now_s)
        if self._is_stopping:
            if code not in (0, -signal.SIGTERM):  # the signal's own end: it came before the worker had begun
                log.error("worker %d: ended with %d while it was stopped", worker.number, code)
                self.exit_code = self.exit_code or max(code, 1)
        elif code > 0 and not self.was_ready:
            log.error("worker %d: ended with %d at its start; all are stopped", worker.number, code)
            self.exit_code, self.stop_requested = code, True
        else:
            log.warning("worker %d: ended with %d; started again in %.0f s", worker.number, code, wait_s)


def supervise(settings: Settings) -> int:
    """Run the workers until a signal ends them. Return the exit code. Raises SettingsError."""
    check(settings)
    root = DataDir(settings.data_dir)  # made and checked before a worker makes its folder in it
    root.instance_id()
    root.close()
    sockets = [worker_socket(worker_folder(settings.data_dir, 1 + number)) for number in range(settings.workers)]
    page = extras.page()
    supervisor = Supervisor(settings.workers, lambda number: _started(settings, number), time.monotonic)
    _handle_signals(supervisor)
    open_many_files()
    with page.serving_workers(settings, sockets) if settings.http_port else nullcontext():
        asked_s = time.monotonic()
        while supervisor.turn():
            time.sleep(_TURN_S)
            if supervisor.was_ready or time.monotonic() - asked_s < _ASK_S:
                continue
            if (partitions := page.ready_partitions(sockets)) is not None:
                print("timer-bridge is ready:", ", ".join(partitions), flush=True)  # noqa: T201
                supervisor.was_ready = True
            asked_s = time.monotonic()
    return supervisor.exit_code


def _handle_signals(supervisor: Supervisor) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        supervisor.stop_requested = True
        die_at_next(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for number in logs.SWITCHES:
        signal.signal(number, lambda number, _frame: supervisor.signal_all(number))


COMMAND = [sys.executable, "-m", "bridge.workers.supervisor"]
"""Command of a worker; its number follows as the last argument."""


def _started(settings: Settings, number: int) -> Process:
    """Start a worker. It gets its settings by standard input, as they may hold secrets."""
    address = own_address(settings)
    own = {
        "data_dir": worker_folder(settings.data_dir, number),
        "advertised_http": f"{address}/worker-{number}" if address else None,
    }
    process = start_child([*COMMAND, str(number)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # the exit code reports the failure
        process.stdin.write(pickle.dumps(settings.model_copy(update=own)))
    return process


def main() -> None:
    """Run one worker. Its number is the argument."""
    number = int(sys.argv[1])
    settings: Settings = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  (our parent's)  # nosec B301
    logs.configure(settings.log_format, settings.log_level, settings.kafka, number)
    try:
        run(settings, number)
    except BridgeError as error:
        log.critical("%s", error)
        sys.exit(exit_code_of(error))


if __name__ == "__main__":
    main()
