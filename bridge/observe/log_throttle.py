"""Trouble that lasts is logged when it begins and then each minute, with how often it was met."""

import logging

from bridge.config.durations import has_passed

_EACH_MS = 60_000


class LogThrottle:
    """One log line for many of the same."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said_ms: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def say(self, now_ms: int, key: str, message: str, *arguments: object) -> None:
        """Logs `message` with its %-arguments, unless one of the same `key` was logged within the last minute."""
        times = self._times[key] = self._times.get(key, 0) + 1
        if key not in self._said_ms or has_passed(self._said_ms[key], now_ms, _EACH_MS):
            self._said_ms[key] = now_ms
            self._log.warning(f"{message}%s", *arguments, f" ({times} times so far)" if times > 1 else "")

    def over(self, key: str) -> None:
        """It is good again: the next time is a first time."""
        self._said_ms.pop(key, None)
        self._times.pop(key, None)
