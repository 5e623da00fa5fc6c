"""Limit how many wrong tokens are tried: after that, no token is looked at until the minute ends."""

from collections import Counter
from collections.abc import Callable

MINUTE_S = 60
MOST_WRONG = 10
"""From one address in a minute: room for a mistyped token, and for a script that runs with an old one."""
MOST_WRONG_OF_ALL = 100
"""From all addresses in a minute, so that many addresses together cannot guess either."""
_MOST_TRUSTED = 1000


class WrongTokens:
    """Memory is bounded: addresses are kept for a minute, and only as many as may try in it.

    An address that has given a right token is exempt from the limit of all: others cannot lock it out.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._minute = 0
        self._wrong: Counter[str] = Counter()
        self._trusted: dict[str, None] = {}

    def wait_s(self, address: str) -> int:
        """Return the seconds until `address` may try again; 0: now."""
        minute, second = divmod(int(self._now_s()), MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        is_over = self._wrong.total() >= MOST_WRONG_OF_ALL and address not in self._trusted
        return MINUTE_S - second if is_over or self._wrong[address] >= MOST_WRONG else 0

    def count(self, address: str, *, is_right: bool) -> None:
        if not is_right:
            self._wrong[address] += 1
            return
        self._trusted.pop(address, None)
        self._trusted[address] = None
        if len(self._trusted) > _MOST_TRUSTED:
            del self._trusted[next(iter(self._trusted))]
