"""librdkafka's own log lines, through logging: what repeats is said once a minute."""

import logging
import re
import time

_EACH_S = 60.0
_VARYING = re.compile(r"\d+")


class OnceAMinute(logging.Filter):
    """Lets a line pass if no line like it, numbers aside, passed within the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        shape = _VARYING.sub("", record.getMessage())
        if now_s - self._said_s.get(shape, -_EACH_S) < _EACH_S:
            return False
        self._said_s[shape] = now_s
        return True


def logger() -> logging.Logger:
    """To be given to every client of librdkafka."""
    found = logging.getLogger("librdkafka")
    if not found.filters:
        found.addFilter(OnceAMinute())
    return found
