"""A call into librdkafka that may never return, with a limit of our own.

send_offsets_to_transaction loses its answer when the group's coordinator leaves the metadata meanwhile, and then
ignores its time-out (librdkafka issues 5456 and 5511, open as of 2.16). The thread that waits for it is left behind.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue

from bridge.kafka.worker_thread import Worker


class HungError(Exception):
    """It did not return; what it works on is not to be used again."""


class Timely:
    """One thread, one call at a time."""

    def __init__(self, name: str) -> None:
        self._answers: SimpleQueue[Exception | None] = SimpleQueue()
        self._worker = Worker(name)

    def call(self, function: Callable[[], None], limit_s: float) -> None:
        """Raises what it raises, or HungError; then this object is used up."""
        self._worker.do(lambda: self._answer(function))
        try:
            wrong = self._answers.get(timeout=limit_s)
        except Empty:
            raise HungError from None
        if wrong is not None:
            raise wrong

    def close(self) -> None:
        self._worker.close()

    def _answer(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as wrong:  # noqa: BLE001  (handed over, not swallowed)
            self._answers.put(wrong)
        else:
            self._answers.put(None)
