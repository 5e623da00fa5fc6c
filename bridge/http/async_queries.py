"""Questions from the HTTP event loop to the loop's thread; without an answer, HTTP 503 with the reason."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException

from bridge.loop.loop import Bridge
from bridge.observe.status import Status
from bridge.probes import deadline
from bridge.query.query_queue import BusyError, QueryQueue
from timer.errors import CorruptStoreError

T = TypeVar("T")

ANSWER_TIMEOUT_S = 10.0
_MAX_SEARCH_S = 60.0


class SteppedSearch(Protocol):
    """A search that takes several turns."""

    def step(self, bridge: Bridge, now_ms: int, should_stop: Callable[[], bool]) -> bool:
        """Do the next part. True if the search is done."""
        ...


class LoopQueries:
    """Ask the loop's thread. Raises HTTPException 503 with the reason."""

    def __init__(self, status: Status, query_queue: QueryQueue, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._status = status
        self._query_queue = query_queue
        self._timeout_s = timeout_s

    async def ask(self, question: Callable[[Bridge], T]) -> T:
        try:
            answer = asyncio.wrap_future(self._query_queue.submit(question))
            return await asyncio.wait_for(answer, self._timeout_s)
        except BusyError:
            raise HTTPException(503, "too many requests at a time: ask again") from None
        except TimeoutError:
            raise HTTPException(503, self._status.ready().reason or "the bridge is busy: ask again") from None
        except (CorruptStoreError, OSError) as error:
            raise HTTPException(503, f"a store cannot be read: {error}") from error

    async def search(self, search: SteppedSearch, now_ms: Callable[[], int]) -> None:
        """Run the search to its end, over as many turns as it takes."""
        end_s = time.monotonic() + _MAX_SEARCH_S
        while not await self.ask(lambda bridge: search.step(bridge, now_ms(), deadline())):
            if time.monotonic() >= end_s:
                raise HTTPException(503, f"the search was not done in {_MAX_SEARCH_S:.0f} s: narrow it, or ask again")
