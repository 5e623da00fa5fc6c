"""Run tasks that block, one after the other, on a daemon thread; limit the time of one that may never return."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
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


class CallTimeoutError(Exception):
    """The call did not return. Its client must not be used again."""


class TimedCaller:
    """Makes calls on a thread of its own, one at a time. The thread of a call that does not return is abandoned.

    send_offsets_to_transaction loses its answer if the group's coordinator leaves the metadata meanwhile, and then
    ignores its timeout (librdkafka issues 5456 and 5511, open as of 2.16).
    """

    def __init__(self, name: str) -> None:
        self._answers: SimpleQueue[Exception | None] = SimpleQueue()
        self._worker = WorkerThread(name)

    def call(self, function: Callable[[], None], limit_s: float) -> None:
        """Call `function`. Raises its exception, or CallTimeoutError; then this object must not be used again."""
        self._worker.do(lambda: self._answer(function))
        try:
            error = self._answers.get(timeout=limit_s)
        except Empty:
            raise CallTimeoutError from None
        if error is not None:
            raise error

    def close(self) -> None:
        self._worker.close()

    def _answer(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  (handed over, not swallowed)
            self._answers.put(error)
        else:
            self._answers.put(None)
