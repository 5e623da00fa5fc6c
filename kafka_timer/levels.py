"""RocketMQ's delay levels: level 1 is the first of "1s 5s 10s 30s 1m ... 2h".

level  0 -> at once     1 -> 1 s     18 -> 2 h     19 and above -> the last
"""

import re

DEFAULT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms. Raises ValueError with the wrong level and the remedy."""
    levels = []
    for place, word in enumerate(text.split(), 1):
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise ValueError(f"level {place} is {word!r}: write a number and s, m, h or d, such as 30s")
        levels.append(int(match[1]) * _UNITS_MS[match[2]])
    if not levels:
        raise ValueError("no level at all: write delays such as '1s 5s 1m'")
    return tuple(levels)


DEFAULT_MS = parse_levels(DEFAULT)


def delay_ms(level: int, levels_ms: tuple[int, ...]) -> int:
    """Return the delay of `level` (0 and up), clamped to the last one."""
    return 0 if level == 0 else levels_ms[min(level, len(levels_ms)) - 1]
