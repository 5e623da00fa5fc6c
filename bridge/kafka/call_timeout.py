"""Limit the time of a call into librdkafka that may never return.

send_offsets_to_transaction loses its answer if the group's coordinator leaves the metadata meanwhile, and then ignores
its timeout (librdkafka issues 5456 and 5511, open as of 2.16). The thread that waits for it is abandoned.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue

from bridge.kafka.worker_thread import WorkerThread


class CallTimeoutError(Exception):
    """The call did not return. Its client must not be used again."""


class TimedCaller:
    """Makes calls on a thread of its own, one at a time."""

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
