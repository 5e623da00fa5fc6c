"""RocketMQ's delay levels: level 1 is the first of "1s 5s 10s 30s 1m ... 2h".

level  0 -> at once     1 -> 1 s     18 -> 2 h     19 and above -> the last
"""

from kafka_timer.durations import parse_duration_ms

DEFAULT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms. Raises ValueError with the wrong level and the remedy."""
    try:
        levels = tuple(map(parse_duration_ms, text.split()))
    except ValueError as wrong:
        raise ValueError(f"level {wrong}") from wrong
    if not levels:
        raise ValueError("no level at all: write delays such as '1s 5s 1m'")
    return levels


DEFAULT_MS = parse_levels(DEFAULT)


def delay_ms(level: int, levels_ms: tuple[int, ...]) -> int:
    """Return the delay of `level` (0 and up), clamped to the last one."""
    return 0 if level == 0 else levels_ms[min(level, len(levels_ms)) - 1]
