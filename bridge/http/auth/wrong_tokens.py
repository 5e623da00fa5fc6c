"""Limit the number of wrong tokens: beyond it, no token is checked until the minute ends."""

from collections import Counter
from collections.abc import Callable

MINUTE_S = 60
MAX_WRONG_PER_ADDRESS = 10
"""Most wrong tokens from one address in a minute: enough for typing errors, and for a script with an old token."""
MAX_WRONG_TOTAL = 100
"""Most wrong tokens from all addresses in a minute, against guessing from many addresses."""
_MAX_TRUSTED = 1000


class WrongTokens:
    """Count wrong tokens by address. Memory is bounded: counts last a minute, and their sum is limited.

    An address that has sent a right token is exempt from the total limit, so others cannot lock it out.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._minute = 0
        self._wrong: Counter[str] = Counter()
        self._trusted: dict[str, None] = {}

    def wait_s(self, address: str) -> int:
        """Return the seconds until `address` may try again, 0 if it may now."""
        minute, second = divmod(int(self._now_s()), MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        is_over_total = self._wrong.total() >= MAX_WRONG_TOTAL and address not in self._trusted
        return MINUTE_S - second if is_over_total or self._wrong[address] >= MAX_WRONG_PER_ADDRESS else 0

    def count(self, address: str, *, is_right: bool) -> None:
        if not is_right:
            self._wrong[address] += 1
            return
        self._trusted.pop(address, None)
        self._trusted[address] = None
        if len(self._trusted) > _MAX_TRUSTED:
            del self._trusted[next(iter(self._trusted))]
