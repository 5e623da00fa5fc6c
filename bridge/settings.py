"""Settings: one name each, `--tick-ms`, TIMER_BRIDGE_TICK_MS, `tick_ms` in the TOML file. Flag over environment over
file over default; only the brokers' address has to be given.

librdkafka's: `--kafka sasl.password=x`, TIMER_BRIDGE_KAFKA_SASL_PASSWORD=x, `sasl.password = "x"` in the table [kafka].
A value `file:/run/secrets/password` stands for what is in that file.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from bridge.connection import RESERVED, Connection
from bridge.durations import parse_duration_ms
from bridge.errors import SettingsError
from bridge.logs import Format, Level
from bridge.options import TurnOptions
from bridge.timer_topics import Limit, Names, Patterns, TopicSettings, check_timer_topics
from bridge.topics import Found
from schemas.headers import Rules
from schemas.kafka_table import PREFIX, by_full_name, from_environment, merged
from schemas.levels import DEFAULT as LEVELS
from schemas.levels import parse_levels
from schemas.profiles import NATIVE
from schemas.receipts import Mode
from timer.options import StoreOptions

DAY_MS = 86_400_000


def _milliseconds(value: object) -> object:
    return parse_duration_ms(value) if isinstance(value, str) else value


Duration = Annotated[int, BeforeValidator(_milliseconds)]
"""Milliseconds, given as '2d', '5m', '500ms' or a plain number."""


def _by_full_name(table: object) -> object:
    return by_full_name(table) if isinstance(table, Mapping) else table


class Settings(BaseSettings):
    """Of `timer-bridge run`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    bootstrap_servers: str = Field(description="Kafka's address, host:port[,host:port...].")
    data_dir: Path = Field(Path("timer-data"), description="Where the local cache lies.")
    group: str = Field("timer-bridge", description="The consumer group, shared by all instances.", min_length=1)
    group_protocol: Literal["classic", "consumer"] = Field(
        "classic", description="How the group balances; with consumer, the session time-out is the broker's."
    )
    static_membership: bool = Field(
        False, description="A restart within the session time-out moves no partition; a stop hands over only then."
    )
    timer_topic: str = Field("timer.requests", description="Where producers send requests.")
    rejected_topic: str = Field("timer.rejected", description="Where refused and undeliverable records go.")
    journal_topic: str = Field("timer.journal", description="The bridge's own record of its decisions.")
    receipts_topic: str = Field("timer.receipts", description="Where it is told what became of requests.")
    allow_targets: Patterns = Field(("*",), description="Real topics that timer_topic takes: patterns with * and ?.")
    deny_targets: Patterns = Field((), description="Those of them that it does not take.")
    max_requests_per_s: Limit = Field(None, description="Of timer_topic on this instance; more wait.")
    max_pending: Limit = Field(
        None, description="Timers of timer_topic, shared out to its partitions; no more is taken."
    )
    topics: dict[str, TopicSettings] = Field(
        default_factory=dict, description='Other timer topics, tables [topics."NAME"] of the config.'
    )
    redriven_topic: str = Field("timer.redriven", description="Where `redrive` marks what it has sent again.")
    backfilled_topic: str = Field("timer.backfilled", description="Where `backfill` marks what it has delivered.")
    imported_topic: str = Field("timer.imported", description="Where `import` marks how far it has come.")
    receipts: Mode = Field("outcomes", description="Which receipts are sent: none, outcomes or all.")
    partitions: int = Field(4, description="Of a timer topic that is missing and made.", ge=1)
    replication_factor: int = Field(-1, description="Of topics that are made; -1: the broker's default.")
    max_delay: Duration = Field(366 * DAY_MS, description="The longest delay that is accepted.", gt=0)
    levels: str = Field(LEVELS, description="Delays of timer-delay-level 1, 2, ...; the last one for all above.")
    profiles: Names = Field((NATIVE, "rocketmq"), description="Spellings of requests that are understood, in order.")
    roll_window: Duration = Field(2 * DAY_MS, description="How far ahead the local store looks; at most 24d.", gt=0)
    tick_ms: int = Field(1000, description="Width of a slot of the wheel; due times stay exact.", ge=1)
    slots: int = Field(1_209_600, description="Slots of the wheel: a lap is slots x tick.", ge=2)
    segment_bytes: int = Field(64 << 20, description="Size of a file of the local store.", ge=68)
    min_free_bytes: int = Field(1 << 30, description="Room on the disk below which intake pauses.", ge=0)
    checkpoint_interval: Duration = Field(2000, description="How often the local store is made durable.", gt=0)
    max_poll_records: int = Field(2000, description="Requests read in one turn.", ge=1)
    max_due_records: int = Field(4000, description="Timers released in one transaction.", ge=1)
    commit_interval: Duration = Field(200, description="How long stored requests may wait for their commit.", ge=0)
    prepare_from: int = Field(
        100_000, description="So much to look through at a start is left to a process of its own.", ge=0
    )
    adopt_progress: str | None = Field(None, description="Where progress is lost: earliest, latest or an epoch ms.")
    startup_timeout: Duration = Field(60_000, description="How long to wait for a broker at start.", gt=0)
    http_port: int = Field(0, description="For health and pending timers over HTTP; 0: off.", ge=0, le=65535)
    http_host: str = Field("127.0.0.1", description="Where the port is opened; 0.0.0.0 lets everybody read.")
    log_format: Format = Field("text", description="Of log lines: text or json.")
    log_level: Level = Field("info", description="debug, info, warning or error.")
    kafka: Annotated[dict[str, str], BeforeValidator(_by_full_name)] = Field(
        default_factory=dict, description="librdkafka settings, passed through.", repr=False
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment, file and flags come in by `load`, which can tell which setting is wrong."""
        return (init_settings,)

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        if self.roll_window > 24 * DAY_MS:
            raise ValueError("roll_window: at most 24d, as a unit of the store holds no longer delay")
        if self.slots * self.tick_ms <= 2 * self.roll_window:
            raise ValueError("slots: a lap of the wheel (slots x tick_ms) has to be longer than two roll windows")
        parse_levels(self.levels)
        self._check_topics()
        if self.adopt_progress not in (None, "earliest", "latest") and not str(self.adopt_progress).isdigit():
            raise ValueError("adopt_progress: give earliest, latest or an epoch ms")
        for name in self.kafka.keys() & RESERVED.keys():
            raise ValueError(f"kafka: {name} is not to be set: {RESERVED[name]}")
        return self

    def timer_topics(self) -> dict[str, TopicSettings]:
        """Every timer topic by name, `timer_topic` first, with nothing left open."""
        main = TopicSettings(
            allow=self.allow_targets,
            deny=self.deny_targets,
            max_requests_per_s=self.max_requests_per_s,
            max_pending=self.max_pending,
            journal_topic=self.journal_topic,
        )
        named = {self.timer_topic: main} | self.topics
        return {name: topic.of(name, self.profiles) for name, topic in named.items()}

    def _check_topics(self) -> frozenset[str]:
        """The bridge's own topics. Raises ValueError."""
        if self.timer_topic in self.topics:
            raise ValueError(
                f'topics."{self.timer_topic}" is timer_topic: write its keys as the settings allow_targets,'
                f" deny_targets, profiles, max_requests_per_s, max_pending and journal_topic, outside of a table"
            )
        shared = {
            "rejected_topic": self.rejected_topic,
            "receipts_topic": self.receipts_topic,
            "redriven_topic": self.redriven_topic,
            "backfilled_topic": self.backfilled_topic,
            "imported_topic": self.imported_topic,
        }
        return check_timer_topics(self.timer_topic, self.timer_topics(), shared)

    def turn_options(self, found: Mapping[str, Found]) -> TurnOptions:
        """`found`: of each timer topic. Raises SettingsError where a quota leaves a partition without any timer."""
        own, topics = self._check_topics(), self.timer_topics()
        main, *others = [self._options_of(name, topic, found[name], own) for name, topic in topics.items()]
        return replace(main, topics=dict(zip(self.topics, others, strict=True)))

    def _options_of(self, name: str, topic: TopicSettings, found: Found, own: frozenset[str]) -> TurnOptions:
        if topic.max_pending is not None and topic.max_pending < found.partitions:
            raise SettingsError(
                f"max_pending = {topic.max_pending}: {name} has {found.partitions} partitions, each of which takes its"
                f" part: give {found.partitions} or more"
            )
        return TurnOptions(
            rules=self._rules_of(topic, own),
            store=StoreOptions(
                tick_ms=self.tick_ms,
                slots=self.slots,
                segment_bytes=self.segment_bytes,
                checkpoint_interval_ms=self.checkpoint_interval,
            ),
            rejected_topic=self.rejected_topic,
            journal_topic=topic.journal_topic,
            receipts_topic=self.receipts_topic,
            receipts=self.receipts,
            max_message_bytes=found.max_message_bytes,
            min_free_bytes=self.min_free_bytes,
            max_poll_records=self.max_poll_records,
            max_due_records=self.max_due_records,
            commit_interval_ms=self.commit_interval,
            prepare_from=self.prepare_from,
            adopt_progress=self.adopt_progress,
            policy=topic.policy,
            max_requests_per_s=topic.max_requests_per_s,
            max_pending=topic.max_pending and topic.max_pending // found.partitions,
        )

    def rules(self) -> dict[str, Rules]:
        """By which a request reads, by timer topic."""
        own = self._check_topics()
        return {name: self._rules_of(topic, own) for name, topic in self.timer_topics().items()}

    def _rules_of(self, topic: TopicSettings, own: frozenset[str]) -> Rules:
        return Rules(
            max_delay_ms=self.max_delay,
            roll_window_ms=self.roll_window,
            levels_ms=parse_levels(self.levels),
            profiles=topic.profiles or (NATIVE,),
            own_topics=own,
        )

    def connection(self, instance: str = "") -> Connection:
        """`instance`: what tells this process from the others of its group."""
        of_group: dict[str, str] = {"group.protocol": self.group_protocol}
        if self.static_membership and instance:
            of_group["group.instance.id"] = instance
        return Connection(self.bootstrap_servers, self.group, instance, of_group | self.kafka)


def load(flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Raises SettingsError, which names the setting, the value and the remedy."""
    layers = [{} if file is None else _from_file(file), from_environment(environment), flags]
    given = {name: value for layer in layers for name, value in layer.items() if value is not None}
    if "kafka" in given:
        given["kafka"] = _merged([layer["kafka"] for layer in layers if layer.get("kafka") is not None])
    for name in given:
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            raise SettingsError(f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    try:
        return Settings.model_validate(given)
    except ValidationError as wrong:
        raise SettingsError("; ".join(_told(error) for error in wrong.errors())) from wrong


def _from_file(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as wrong:
        raise SettingsError(f"config {file}: {wrong.strerror}: give the path of a TOML file") from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise SettingsError(f"config {file}: {wrong}: mend the TOML") from wrong


def _merged(tables: Sequence[object]) -> object:
    """One by one, as each is a setting. What is no table is left to be told so."""
    found: list[Mapping[str, object]] = []
    for table in tables:
        if not isinstance(table, Mapping):
            return table
        found.append(table)
    try:
        return merged(found)
    except ValueError as wrong:
        raise SettingsError(str(wrong)) from wrong


def _told(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"{name} is missing: give --{name.replace('_', '-')}, {PREFIX}{name.upper()} or {name} in the config"
    if name.startswith("kafka"):  # its values may be secrets
        return (
            f"{name}: give a table [kafka] of librdkafka settings in the config, --kafka name=value, or one variable"
            f" for each, such as {PREFIX}KAFKA_SASL_PASSWORD"
        )
    if name.startswith("topics"):
        return _told_of_topics(error)
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{name} = {error['input']!r}: {text}" if name else text


def _told_of_topics(error: Any) -> str:
    _, *place = (str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        table, key = place[0], place[1]
        near = difflib.get_close_matches(key, TopicSettings.model_fields, n=1)
        remedy = (
            f"did you mean {near[0]!r}?" if near else f'a name with dots stands in quotes: [topics."{table}.{key}"]'
        )
        return f'topics."{table}" has no key {key!r}: {remedy}'
    if len(place) < 2:
        return 'topics: write a table [topics."NAME"] for each timer topic in the config'
    return f'topics."{place[0]}".{place[1]} = {error["input"]!r}: {error["msg"]}'
