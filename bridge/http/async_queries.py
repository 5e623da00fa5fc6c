"""Questions to the turn's thread from the loop that serves HTTP, and what is told where it does not answer."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException

from bridge.loop.loop import Bridge
from bridge.observe.status import Status
from bridge.query.query_queue import BusyError, QueryQueue
from timer.errors import CorruptStoreError

T = TypeVar("T")

ANSWER_WITHIN_S = 10.0
SEARCH_S = 0.02
"""So long timers may have to wait for whoever asks."""
LOOK_S = 0.005
"""The same for metrics, which are asked for again and again."""
_LONGEST_SEARCH_S = 60.0


class Stepwise(Protocol):
    """What takes longer than a turn may."""

    def go_on(self, bridge: Bridge, now_ms: int, is_over: Callable[[], bool]) -> bool:
        """True: it is done."""
        ...


def soon_over(seconds: float = SEARCH_S) -> Callable[[], bool]:
    """For a search, in one turn."""
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


class Asker:
    """Raises HTTPException 503 with the reason."""

    def __init__(self, status: Status, desk: QueryQueue, within_s: float = ANSWER_WITHIN_S) -> None:
        self._status = status
        self._desk = desk
        self._within_s = within_s

    async def ask(self, question: Callable[[Bridge], T]) -> T:
        try:
            answer = asyncio.wrap_future(self._desk.put(question))
            return await asyncio.wait_for(answer, self._within_s)
        except BusyError:
            raise HTTPException(503, "too many ask at a time: ask again") from None
        except TimeoutError:
            raise HTTPException(503, self._status.ready().reason or "the bridge is busy: ask again") from None
        except (CorruptStoreError, OSError) as wrong:
            raise HTTPException(503, f"a store cannot be read: {wrong}") from wrong

    async def search(self, search: Stepwise, now_ms: Callable[[], int]) -> None:
        """Until it is done, over as many turns as it takes."""
        end_s = time.monotonic() + _LONGEST_SEARCH_S
        while not await self.ask(lambda bridge: search.go_on(bridge, now_ms(), soon_over())):
            if time.monotonic() >= end_s:
                raise HTTPException(503, f"it is not found in {_LONGEST_SEARCH_S:.0f} s: ask for less, or again")
