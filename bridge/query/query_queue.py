"""Questions from other threads. Only the loop's thread may read a store, so it answers them.

other thread    future = queue.submit(question)  .................................. future.result()
loop's thread   turn   queue.run_next(bridge)   turn   queue.run_next(bridge): question(bridge)   turn

One question runs after each turn, so questions cannot hold up deliveries. submit() wakes the loop, so an idle bridge
answers at once.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from bridge.loop.loop import Bridge

T = TypeVar("T")

_MAX_WAITING = 32


class BusyError(Exception):
    """The queue is full."""


class QueryQueue:
    """submit() is thread-safe; run_next() is for the loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Bridge], Any], Future[Any]]] = deque()
        self._wake: Callable[[], None] = lambda: None

    def submit(self, question: Callable[[Bridge], T]) -> "Future[T]":
        """Run a question after the turn; cancel the future to withdraw it. Raises BusyError if the queue is full."""
        if len(self._waiting) >= _MAX_WAITING:
            raise BusyError
        answer: Future[T] = Future()
        self._waiting.append((question, answer))
        self._wake()
        return answer

    def run_next(self, bridge: Bridge) -> None:
        """Answer the first question that was not cancelled."""
        self._wake = bridge.wake
        while self._waiting:
            question, answer = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(question(bridge))
            except Exception as error:  # noqa: BLE001  (it is the asker's: a failed question must not end the bridge)
                answer.set_exception(error)
            break
        if self._waiting:
            bridge.wake()
