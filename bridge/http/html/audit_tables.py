"""Verdicts of an audit on timers, and where and when each was delivered, from the audit's tables."""

from collections.abc import Iterable
from typing import Any

from bridge.http.html.child_program import ChildProgram

_MOST_ORIGINS = 100
_NO_ANSWER = "no answer within 10 s: ask the tables themselves"


class AuditTables:
    """place: the audit's --out, a folder or a URI that pyarrow reads (s3, gs, hdfs)."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._reader = ChildProgram("bridge.http.html.find_verdicts")

    async def verdicts_of(self, origins: Iterable[str]) -> dict[str, Any]:
        """Return rows of the table `requests` as `verdicts`, or a `reason` why there are none."""
        asked = {"place": self._place, "origins": sorted(set(origins))[:_MOST_ORIGINS]}
        return await self._reader.ask(asked) or {"reason": _NO_ANSWER}
