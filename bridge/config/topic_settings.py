"""Settings of timer topics and of target topics.

    timer.requests            the main one: timer_topic, journal_topic, allow_targets, deny_targets, profiles, ...
    [topics."timer.payments"] a table for each other: allow, deny, actions, profiles, max_requests_per_s, ...
    [targets."orders.*"]      max_per_s: the rate of each target topic that matches the pattern

Each timer topic has its own targets, profiles and limits, so Kafka's ACLs decide who may send where.

Checked together: no two settings may name the same topic, and no pattern or profile may be without effect.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from bridge.partition.options import ACTIONS, Policy, check_policy, milliseconds
from kafka_timer.durations import duration_text
from kafka_timer.headers import KNOWN, PAUSED_MS, PREFIX, legal_topic
from schemas.profiles import NATIVE, PROFILES
from schemas.units import parse_size_bytes, size_text
from timer.options import Engine


def as_list(value: object) -> object:
    return [name.strip() for name in value.split(",") if value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_list)]
"""A list in the TOML; 'one,other' in the environment and as a flag, where an empty string is an empty list."""
Limit = Annotated[int | None, Field(ge=1)]
Duration = Annotated[int, BeforeValidator(milliseconds), PlainSerializer(duration_text)]
"""Milliseconds, given as '2d', '5m' or '500ms'."""
Size = Annotated[int, BeforeValidator(lambda given: parse_size_bytes(str(given))), PlainSerializer(size_text)]
"""Bytes, given as '1GiB', '500MB' or a number."""
SizeLimit = Annotated[Size, Field(ge=1)] | None


class TopicSettings(BaseModel):
    """The keys of `[topics."NAME"]`.

    Without `profiles` or `engine`: the setting of that name; without a journal: NAME.journal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: Names = ("*",)
    deny: Names = ()
    actions: Names = ACTIONS
    passed_headers: Names = ()
    profiles: Names | None = None
    max_requests_per_s: Limit = None
    max_pending: Limit = None
    max_pending_bytes: SizeLimit = None
    max_request_bytes: SizeLimit = None
    max_delay: Annotated[Duration, Field(gt=0, le=PAUSED_MS // 10)] | None = None
    journal_topic: str = ""
    engine: Engine | None = None

    def of(self, name: str, profiles: tuple[str, ...], engine: Engine) -> "TopicSettings":
        """Return these settings with defaults from the topic's name and the bridge's own profiles and engine."""
        own = profiles if self.profiles is None else self.profiles
        journal_topic = self.journal_topic or f"{name}.journal"
        return self.model_copy(
            update={"profiles": own, "journal_topic": journal_topic, "engine": self.engine or engine}
        )

    @property
    def policy(self) -> Policy:
        return Policy(self.allow, self.deny, self.actions)


class TargetSettings(BaseModel):
    """The keys of `[targets."PATTERN"]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_per_s: Annotated[float, Field(gt=0, le=1_000_000)]


def _check_profiles(names: tuple[str, ...], setting: str) -> None:
    for name in names:
        if name != NATIVE and name not in PROFILES:
            raise ValueError(f"{setting}: {name!r} is none: write a list of {', '.join((NATIVE, *PROFILES))}")
    if NATIVE not in names:
        raise ValueError(f"{setting}: native has to be among them, as the bridge's own copies are native")
    if len(set(names)) < len(names):
        raise ValueError(f"{setting}: duplicate profile in {', '.join(names)}: name each once")


def check_timer_topics(main: str, topics: Mapping[str, TopicSettings], shared: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all the bridge's own topics. Raises ValueError with the remedy.

    topics: results of `TopicSettings.of`, with `main` among them. shared: topics by setting that all timer topics use.
    """
    used = [("timer_topic", main), ("journal_topic", topics[main].journal_topic), *shared.items()]
    for name in [name for name in topics if name != main]:
        used += [(f'topics."{name}"', name), (f'topics."{name}".journal_topic', topics[name].journal_topic)]
    meant: dict[str, str] = {}
    for setting, name in used:
        if legal_topic(name.encode()) is None:
            raise ValueError(
                f"{setting} is {name!r}, which is not a legal topic name: write at most 249 letters, digits,"
                f" . _ and -, not beginning with __"
            )
        if name in meant:
            raise ValueError(f"{setting} and {meant[name]} are both {name}: give each a topic of its own")
        meant[name] = setting
    own = frozenset(meant)
    for name, topic in topics.items():
        names = [f'topics."{name}".{key}' for key in ("profiles", "allow", "deny", "actions")]
        if name == main:
            names = ["profiles", "allow_targets", "deny_targets", "allow_actions"]
        for header in topic.passed_headers:
            if not header.lower().startswith(PREFIX) or header in KNOWN:
                raise ValueError(
                    f"passed_headers: {header!r} has no effect: write names of your own, such as timer-tenant"
                )
        _check_profiles(topic.profiles or (), names[0])
        check_policy(topic.policy, own, *names[1:])
    return own
