"""Questions to the bridge from other threads: the turn's thread alone may look into a store, so it answers.

asker's thread   future = desk.put(question)  ...................................... future.result()
turn's thread    turn   desk.serve(bridge)   turn   desk.serve(bridge): question(bridge)   turn

One question is answered behind each turn, so that no number of askers keeps timers from leaving. Who asks ends the wait
of the turn that is going on, so an idle bridge answers at once.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from bridge.loop.loop import Bridge

T = TypeVar("T")

_MOST_WAITING = 32


class BusyError(Exception):
    """Too many are waiting already."""


class QueryQueue:
    """Any thread puts, one serves."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Bridge], Any], Future[Any]]] = deque()
        self._wake: Callable[[], None] = lambda: None

    def put(self, question: Callable[[Bridge], T]) -> "Future[T]":
        """To be answered behind a turn; an asker that does not wait any longer cancels it. Raises BusyError."""
        if len(self._waiting) >= _MOST_WAITING:
            raise BusyError
        answer: Future[T] = Future()
        self._waiting.append((question, answer))
        self._wake()
        return answer

    def serve(self, bridge: Bridge) -> None:
        """Answers the first that somebody still waits for."""
        self._wake = bridge.wake
        while self._waiting:
            question, answer = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(question(bridge))
            except Exception as wrong:  # noqa: BLE001  (the asker's: what a question finds wrong must not end the bridge)
                answer.set_exception(wrong)
            break
        if self._waiting:
            bridge.wake()
