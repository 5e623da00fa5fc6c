"""Log a lasting fault when it begins and then at intervals, with the number of times it occurred."""

import logging
from dataclasses import dataclass, field

from bridge.partition.options import has_passed


@dataclass(eq=False)
class LogRateLimit:
    """Logs one line an interval (a minute) for faults with the same key."""

    _log: logging.Logger
    _interval_ms: int = 60_000
    _logged_ms: dict[str, int] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)

    def warn(self, now_ms: int, key: str, message: str, *arguments: object, times: int = 1) -> None:
        """Log `message` with its %-arguments, unless one with the same `key` was logged within the interval."""
        times = self._times[key] = self._times.get(key, 0) + times
        if key not in self._logged_ms or has_passed(self._logged_ms[key], now_ms, self._interval_ms):
            self._logged_ms[key] = now_ms
            self._log.warning(f"{message}%s", *arguments, f" ({times} times so far)" if times > 1 else "")

    def clear(self, key: str) -> None:
        """Forget a fault that has passed, so that the next one is logged at once."""
        self._logged_ms.pop(key, None)
        self._times.pop(key, None)
