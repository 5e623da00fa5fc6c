"""Memory of a search for the next tick: repeated searches look at each tick without a pending timer once."""

from collections.abc import Callable


class EmptyTicks:
    def __init__(self) -> None:
        self._span = (0, -1)
        """No tick in (first, second] has a pending timer."""

    def forget(self) -> None:
        """To be called when timers were added."""
        self._span = (0, -1)

    def next(self, after: int, until: int, search: Callable[[int, int], int | None]) -> int | None:
        """Return the first tick in (after, until] with a pending timer. search: finds it without this memory."""
        empty_after, empty_until = self._span
        is_known = empty_after <= after <= empty_until
        if is_known and until <= empty_until:
            return None
        found = search(empty_until if is_known else after, until)
        self._span = (empty_after if is_known else after, until if found is None else found - 1)
        return found
