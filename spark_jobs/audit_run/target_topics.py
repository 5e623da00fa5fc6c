"""Target topics that an audit reads even if no request names them: those that the timer topic's patterns allow.

    allow orders.*,bills   deny *.secret      of orders.eu, orders.secret, bills, refunds  ->  orders.eu, bills

A delivery that no request asked for is on one of these, or on a topic to which the bridge must not send. The pattern
`*`, the bridge's default, selects none: to read every topic of a cluster, give `?*`. The same rules as
bridge.partition.options, written a second time on purpose.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

EVERYTHING = ("*",)
_INTERNAL = ("_*", "connect-*", "timer.*", "*.journal")
"""Patterns for topics that `allow` has to name exactly."""


def allowed_topics(topics: Iterable[str], allow: Sequence[str], deny: Sequence[str]) -> set[str]:
    """Return those of `topics` that the patterns allow; none if they allow everything."""
    if tuple(allow) == EVERYTHING:
        return set()
    found = {topic for topic in topics if _fits(topic, allow) and not _fits(topic, deny)}
    return {topic for topic in found if topic in allow or not _fits(topic, _INTERNAL)}


def _fits(topic: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(topic, pattern) for pattern in patterns)
