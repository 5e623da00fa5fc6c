"""Which real topics the requests of one timer topic may name: glob patterns over the whole name.

    allow = ["orders.*", "bill?"]   deny = ["*.secret"]         deny wins

    orders.eu -> taken      orders.secret -> denied      bills -> taken      refunds -> denied

`*` stands for any characters, dots among them, also for none; `?` for one; all else for itself, in its case. A request
is judged once, when it is read: what was taken stays taken, whatever the patterns say by then.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache

from schemas.headers import Refusal, legal_topic

PATTERN = re.compile(r"[A-Za-z0-9._*?-]+")
_REMEMBERED = 4096
"""Targets whose verdict is kept; senders choose the names, so there is a limit."""


@dataclass(frozen=True)
class Policy:
    """Of one timer topic. Internal topics and the bridge's own are no targets under any policy (schemas.headers)."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Every target is allowed."""
        return "*" in self.allow and not self.deny

    def __reduce__(self) -> "tuple[type[Policy], tuple[tuple[str, ...], tuple[str, ...]]]":
        """To another process goes what it says, not what it has judged."""
        return Policy, (self.allow, self.deny)

    def refusal(self, target: str) -> Refusal | None:
        """Why requests may not name `target`, None where they may."""
        return self._verdict(target)

    @cached_property
    def _verdict(self) -> Callable[[str], Refusal | None]:
        allowed, denied = _matcher(self.allow), _matcher(self.deny)

        @lru_cache(_REMEMBERED)
        def verdict(target: str) -> Refusal | None:
            return None if allowed(target) and not denied(target) else _denied(target)

        return verdict


def _denied(target: str) -> Refusal:
    return Refusal(
        "denied-target",
        f"{target} is no target of this timer topic: send it to one that allows it, or have allow and deny changed",
    )


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    # translate() makes a pattern of many stars match in linear time: senders choose what it is held against.
    return re.compile("|".join(map(translate, patterns)) if patterns else "(?!)").match


def check_policy(policy: Policy, own_topics: frozenset[str], allow: str = "allow", deny: str = "deny") -> None:
    """Raises ValueError, with the remedy, where a pattern can do nothing. `allow` and `deny` name the settings."""
    if not policy.allow:
        raise ValueError(f"{allow} is empty, so nothing could be sent: leave it out to allow every topic")
    for name, patterns in ((allow, policy.allow), (deny, policy.deny)):
        for pattern in patterns:
            if not PATTERN.fullmatch(pattern):
                raise ValueError(
                    f"{name}: {pattern!r} matches no topic: write a name of letters, digits, . _ and -, with * for any"
                    f" characters and ? for one"
                )
    for pattern in policy.allow:
        is_name = not set(pattern) & set("*?")
        if pattern.startswith("__") or pattern in own_topics or (is_name and legal_topic(pattern.encode()) is None):
            raise ValueError(f"{allow}: {pattern!r} is internal or the bridge's own, never a target: take it out")
        covering = next((each for each in policy.deny if _covers(each, pattern)), None)
        if covering is not None:
            raise ValueError(
                f"{allow}: {pattern!r} is denied as a whole by {covering!r} of {deny}: take one of them out"
            )


def _covers(pattern: str, other: str) -> bool:
    """Whether `pattern` matches all that `other` does: held against the other's own text, where only `*` meets `*`."""
    own = {"*": ".*", "?": "[^*]"}
    return re.fullmatch("".join(own.get(each, re.escape(each)) for each in pattern), other) is not None
