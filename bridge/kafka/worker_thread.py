"""A thread of our own for calls that block: it does what it is given, one after the other."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class Worker:
    """What hangs in it is left behind when the process ends."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, task: Callable[[], None]) -> None:
        """`task` raises nothing: who gave it has no more part in it."""
        self._tasks.put(task)

    def close(self, wait_s: float = 0.0) -> None:
        """Ends behind what it was given; waits so long for that."""
        self._tasks.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
