"""Which real topics the requests of one timer topic may name: glob patterns over the whole name.

    allow = ["orders.*", "bill?"]   deny = ["*.secret"]         deny wins

    orders.eu -> taken      orders.secret -> denied      bills -> taken      refunds -> denied

`*` matches any number of characters, dots too; `?` matches one; all else matches itself (case-sensitive). A request
is judged once, when it is read: a later change of the patterns does not affect it.

Topics of `INTERNAL` are denied unless `allow` names them exactly. `actions` lists what requests may ask for.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property, lru_cache

from schemas.headers import Refusal, legal_topic

PATTERN = re.compile(r"[A-Za-z0-9._*?-]+")
INTERNAL = ("_*", "connect-*", "timer.*", "*.journal")
"""Patterns for topics of other systems (schemas, Connect) and of any bridge, with its default names and journals."""
ACTIONS = ("schedule", "cancel", "replace", "move")
_REMEMBERED = 4096
"""Targets whose verdict is kept; senders choose the names, so there is a limit."""


@dataclass(frozen=True)
class Policy:
    """The policy of one timer topic. No policy allows Kafka's internal topics or the bridge's own (schemas.headers)."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    actions: tuple[str, ...] = ACTIONS

    @property
    def is_open(self) -> bool:
        """True if senders may name every topic that is not internal."""
        return "*" in self.allow and not self.deny

    def __reduce__(self) -> "tuple[type[Policy], tuple[tuple[str, ...], ...]]":
        """Pickle the rules alone, without the cache of judged topics."""
        return Policy, (self.allow, self.deny, self.actions)

    def action_refusal(self, action: str) -> Refusal | None:
        """Return why requests may not ask for `action`, None if they may."""
        return None if action in self.actions else denied_action(action)

    def refusal(self, target: str) -> Refusal | None:
        """Return why requests may not name `target`, None if they may."""
        return self._verdict(target)

    @cached_property
    def _verdict(self) -> Callable[[str], Refusal | None]:
        allowed, denied, internal = _matcher(self.allow), _matcher(self.deny), _matcher(INTERNAL)
        named = frozenset(self.allow)

        @lru_cache(_REMEMBERED)
        def verdict(target: str) -> Refusal | None:
            if not allowed(target) or denied(target):
                return _denied(target)
            return _internal(target) if internal(target) and target not in named else None

        return verdict


def _denied(target: str) -> Refusal:
    return Refusal(
        "denied-target",
        f"{target} is no target of this timer topic: send it to one that allows it, or have allow and deny changed",
    )


def _internal(target: str) -> Refusal:
    return Refusal("denied-target", f"{target} looks internal ({', '.join(INTERNAL)}): have allow name it exactly")


def denied_action(action: str) -> Refusal:
    return Refusal(
        "denied-action", f"this timer topic takes no {action}: send it to one that does, or have actions changed"
    )


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    # translate() makes a pattern of many stars match in linear time: senders choose the names that are matched.
    return re.compile("|".join(map(translate, patterns)) if patterns else "(?!)").match


def check_policy(
    policy: Policy, own_topics: frozenset[str], allow: str = "allow", deny: str = "deny", actions: str = "actions"
) -> None:
    """Raise ValueError if a pattern matches nothing or an action is unknown. `allow`, ... are names of settings."""
    if not policy.allow:
        raise ValueError(f"{allow} is empty, so nothing could be sent: leave it out to allow every topic")
    if not policy.actions or not set(policy.actions) <= set(ACTIONS):
        raise ValueError(f"{actions} is {list(policy.actions)}: write a list of {', '.join(ACTIONS)}")
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
        is_internal = any(_covers(each, pattern) for each in INTERNAL)
        if is_internal and not is_name:
            raise ValueError(f"{allow}: {pattern!r} matches internal topics only: name each of them exactly")
        covering = next((each for each in policy.deny if _covers(each, pattern)), None)
        if covering is not None:
            raise ValueError(
                f"{allow}: {pattern!r} is denied as a whole by {covering!r} of {deny}: take one of them out"
            )


def _covers(pattern: str, other: str) -> bool:
    """True if `pattern` matches all that `other` does, by a match with the text of `other` (only `*` matches `*`)."""
    own = {"*": ".*", "?": "[^*]"}
    return re.fullmatch("".join(own.get(each, re.escape(each)) for each in pattern), other) is not None
