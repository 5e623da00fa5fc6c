"""Ids whose last timer was delivered within the last hour: a cancel of one is `too-late`, not `not-found`."""

from collections.abc import Iterable

from timer.index.due_counts import HOUR_MS

_MOST = 100_000


class RecentlyDelivered:
    """The newest 100,000 ids, in the order of delivery. Kept in memory as long as the store is open."""

    def __init__(self) -> None:
        self._at_ms: dict[bytes, int] = {}

    def add(self, ids: Iterable[bytes], now_ms: int) -> None:
        for id_ in ids:
            self._at_ms.pop(id_, None)
            self._at_ms[id_] = now_ms
        while len(self._at_ms) > _MOST:
            del self._at_ms[next(iter(self._at_ms))]

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove ids whose later timer has ended, or could not be delivered."""
        for id_ in ids:
            self._at_ms.pop(id_, None)

    def has(self, id_: bytes, now_ms: int) -> bool:
        at_ms = self._at_ms.get(id_)
        return at_ms is not None and now_ms - at_ms <= HOUR_MS
