"""Run tasks that block, one after the other, on a daemon thread."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class WorkerThread:
    """A task that hangs does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """Queue a task. It must not raise."""
        self._tasks.put(task)

    def close(self, wait_s: float = 0.0) -> None:
        """End after the queued tasks; wait at most `wait_s` for that."""
        self._tasks.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
