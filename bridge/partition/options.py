"""Options of a partition and of the loop. `bridge.config.settings` makes them from flags, environment and file.

The policy of a timer topic says which target topics and actions its requests may name.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import translate
from functools import cached_property, lru_cache

from kafka_timer.durations import parse_duration_ms
from kafka_timer.headers import Refusal, legal_topic
from kafka_timer.instants import parse_instant_ms as parse_instant_ms
from schemas.receipts import Mode
from schemas.rules import Rules
from timer.options import StoreOptions as StoreOptions


def has_passed(since_ms: int, now_ms: int, least_ms: int) -> bool:
    """True if `least_ms` have passed since `since_ms`, or if the clock was set back, so that this cannot be known."""
    return not 0 <= now_ms - since_ms < least_ms


def milliseconds(value: object) -> object:
    """Parse a setting's duration. A number of TOML has no unit, so it is refused."""
    return parse_duration_ms(str(value))


def instant_text(at_ms: int) -> str:
    """Return epoch ms as ISO 8601 text in UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


PATTERN = re.compile(r"[A-Za-z0-9._*?-]+")
INTERNAL = ("_*", "connect-*", "timer.*", "*.journal")
"""Patterns for topics of other systems (schemas, Connect) and of any bridge, with its default names and journals."""
ACTIONS = ("schedule", "cancel", "replace", "move", "pause", "recur")
"""recur: a schedule or replace with a rule. It needs both actions."""
_REMEMBERED = 4096
"""Targets whose verdict is kept; senders choose the names, so there is a limit."""


@dataclass(frozen=True)
class Policy:
    """The policy of one timer topic. None allows Kafka's internal topics or the bridge's own (schemas.rules)."""

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
        if action in self.actions:
            return None
        detail = f"this timer topic does not allow {action}: use one that does, or have its actions changed"
        return Refusal("denied-action", detail)

    @cached_property
    def refusal(self) -> Callable[[str], Refusal | None]:
        """A function of a target: why requests may not name it, None if they may."""
        allowed, denied, internal = _matcher(self.allow), _matcher(self.deny), _matcher(INTERNAL)
        named = frozenset(self.allow)

        @lru_cache(_REMEMBERED)
        def refusal(target: str) -> Refusal | None:
            if not allowed(target) or denied(target):
                why = "is no target of this timer topic: send it to one that allows it, or have allow and deny changed"
            elif internal(target) and target not in named:
                why = f"looks internal ({', '.join(INTERNAL)}): have allow name it exactly"
            else:
                return None
            return Refusal("denied-target", f"{target} {why}")

        return refusal


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


MAX_POLL_RECORDS = 2000
MAX_DUE_RECORDS = 4000
MAX_CLOCK_SKEW_MS = 1000
"""Difference between a broker's clock and ours above which a warning is logged."""


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Options and limits of a turn. Topic names are the settings of the same name."""

    rules: Rules
    store: StoreOptions = field(default_factory=StoreOptions)
    rejected_topic: str = "timer.rejected"
    receipts_topic: str = "timer.receipts"
    receipts: Mode = "outcomes"
    max_message_bytes: int = 1_048_576
    """Limit of the timer topic for one record. A request whose rolled copy would be larger is refused at intake."""
    journal_topic: str = "timer.journal"
    max_poll_records: int = MAX_POLL_RECORDS
    max_due_records: int = MAX_DUE_RECORDS
    """Timers released in one transaction. A larger burst is cut at a key K."""
    max_due_bytes: int = 16 << 20
    commit_interval_ms: int = 200
    """Longest time until the progress of stored requests is committed."""
    min_free_bytes: int = 1 << 30
    """Free disk space below which intake pauses. Delivery goes on and frees space.

    Timer topics that hold less than their equal share of the stores' bytes may use half of it.
    """
    prepare_from: int = 100_000
    """Number of timers and requests to read at a start from which on they are read in the background."""
    max_wait_ms: int = 500
    """Longest wait for a message."""
    clock_skew_margin_ms: int = 360_000
    """A rebuild reads the journal from this much before L. Clocks of two brokers may differ by a minute, and records of
    one transaction by its longest duration if a leader was away."""
    adopt_progress: str | None = None
    """If progress is lost: 'earliest', 'latest' or epoch ms."""
    era_ms: int = 0
    """Start of this process (epoch ms). It names progress that begins in it, see schemas.progress."""
    policy: Policy = field(default_factory=Policy)
    partitions: int | None = None
    """Number of partitions of the timer topic; `max_pending` and `targets` were divided by it. None: any number."""
    max_requests_per_s: int | None = None
    """Most requests a second of the timer topic on this instance. Above it, intake of that topic pauses."""
    max_pending: int | None = None
    """Pending timers of one partition. Above it, a request is refused."""
    max_pending_bytes: int | None = None
    """Bytes of pending bodies in the store of one partition. Above it, a request is refused."""
    max_request_bytes: int | None = None
    """Key, value and headers of a request, decompressed. A larger request is refused."""
    max_missed: int = 1000
    """Occurrences before the request of a recurring timer, if all are to be delivered. With more, it is refused."""
    targets: Mapping[str, float] = field(default_factory=dict)
    """By pattern: most timers a second of one partition for a target."""
    topics: Mapping[str, "TurnOptions"] = field(default_factory=dict)
    """Options of timer topics that have their own."""

    def of(self, timer_topic: str) -> "TurnOptions":
        """Return the options of `timer_topic`. Limits of a turn are read from the main options."""
        return self.topics.get(timer_topic, self)
