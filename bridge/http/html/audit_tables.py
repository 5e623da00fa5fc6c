"""What an audit has found out about timers: its verdict, and where and when each was delivered."""

import asyncio
from collections.abc import Iterable
from typing import Any

from bridge.http.html.child_program import ask_program

_MOST_AT_ONCE = 2
_MOST_ORIGINS = 100
_LIMIT = "no answer within 10 s: ask the tables themselves"


class AuditTables:
    """place: the audit's --out, a folder or a URI that pyarrow reads (s3, gs, hdfs)."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def verdicts_of(self, origins: Iterable[str]) -> dict[str, Any]:
        """Return rows of the table `requests` as `verdicts`, or a `reason` why there are none."""
        asked = {"place": self._place, "origins": sorted(set(origins))[:_MOST_ORIGINS]}
        async with self._slots:
            return await ask_program("bridge.http.html.find_verdicts", asked) or {"reason": _LIMIT}
