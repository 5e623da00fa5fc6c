"""Settings of `timer-bridge run`, from flags, environment and a TOML file; an earlier source overrides a later one.

    --partitions 8                    TIMER_BRIDGE_PARTITIONS=8              partitions = 8
    --kafka sasl.password=x           TIMER_BRIDGE_KAFKA_SASL_PASSWORD=x     [kafka]  sasl.password = "x"

Only bootstrap_servers is required. The value `file:/run/secrets/password` is replaced by that file's content.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bridge.config.kafka_config import RESERVED, Connection
from bridge.config.topic_requirements import FETCH_SIZES, TopicState, fetch_limits
from bridge.config.topic_settings import (
    Duration,
    Limit,
    Names,
    Size,
    SizeLimit,
    TargetSettings,
    TopicSettings,
    as_list,
    check_timer_topics,
)
from bridge.errors import SettingsError
from bridge.observe.logs import Format, Level
from bridge.partition.options import ACTIONS, PATTERN, TurnOptions
from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.headers import PAUSED_MS
from kafka_timer.instants import other_unit
from kafka_timer.levels import DEFAULT as LEVELS
from kafka_timer.levels import parse_levels
from schemas import resent
from schemas.kafka_settings import PREFIX, by_full_name, from_environment, from_file, merged
from schemas.profiles import DEFAULT_PROFILES, NATIVE
from schemas.receipts import Mode
from schemas.resent import FORMER_TOPICS, Job, MarkTopics
from schemas.rules import Rules
from timer.options import TICK_MS, Engine, StoreOptions

DAY_MS = 86_400_000
_STANDSTILL_MS = 10 * DAY_MS
"""How long delivery may stand still before the wheel has no slot for new timers and intake pauses."""

Compression = Literal["none", "lz4", "zstd", "snappy", "gzip"]

_HOST_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_URL = re.compile(r"https?://[^\s/@]+(/[^\s@]*)?")


_Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], BeforeValidator(as_list)]
_FORMER = "Marks of `{}` by versions up to 0.2.0: only read."


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores of this process. A container may have only a part of the machine's, and memory to match."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such limit
        quota, period = map(int, cpu_max.read_text().split())
        cores = min(cores, -(-quota // period))
    return cores


_Workers = Annotated[int, BeforeValidator(lambda given: usable_cores() if given == "auto" else given)]


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    """Return the field of a setting. The default of a duration or size is text with a unit, as --help shows it."""
    return Field(default, description=description, **bounds)


class Settings(BaseModel):
    """Settings of `timer-bridge run`. Made by `load`, whose errors name the wrong setting."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    bootstrap_servers: str = Field(description="Kafka's address, host:port[,host:port...].")
    data_dir: Path = Field(Path("timer-data"), description="Folder of the local store.")
    workers: _Workers = _setting(
        1, "Processes that share the partitions, each a member of the group; auto: one for each core.", ge=1, le=99
    )
    group: str = _setting("timer-bridge", "The consumer group, shared by all instances.", min_length=1)
    group_protocol: Literal["classic", "consumer"] = _setting(
        "classic", "How the group balances; with consumer, the session time-out is the broker's."
    )
    static_membership: bool = _setting(
        True, "A restart moves no partition; a stop hands over after the session time-out. Off with standby."
    )
    standby: bool = _setting(
        False, "Keep stores of others' partitions nearly up to date, so that they move without a rebuild."
    )
    standby_cpu_percent: int = _setting(25, "Share of a core that standbys take at most, in percent.", ge=1, le=100)
    timer_topic: str = _setting("timer.requests", "Topic of requests.")
    rejected_topic: str = _setting("timer.rejected", "Topic of refused and undeliverable records.")
    journal_topic: str = _setting("timer.journal", "The bridge's own record of its decisions.")
    receipts_topic: str = _setting("timer.receipts", "Topic of receipts, which say how each request ended.")
    allow_targets: Names = _setting(("*",), "Target topics that timer_topic allows: patterns with * and ?.")
    deny_targets: Names = _setting((), "Exceptions from allow_targets.")
    allow_actions: Names = _setting(
        ACTIONS, "Actions that timer_topic allows: schedule, cancel, replace, move, pause, recur."
    )
    passed_headers: Names = _setting(
        (), "Headers that are delivered though they begin with timer-: names of senders' own ones."
    )
    max_requests_per_s: Limit = _setting(
        None, "Limit of timer_topic on this instance, divided by its workers; more wait."
    )
    max_pending: Limit = _setting(None, "Most pending timers of timer_topic, divided by its partitions.")
    max_pending_bytes: SizeLimit = _setting(None, "Most bytes of timer_topic's pending timers, divided too.")
    max_request_bytes: SizeLimit = _setting(None, "Most bytes of a request of timer_topic, decompressed.")
    topics: dict[str, TopicSettings] = Field(
        default_factory=dict, description='Other timer topics, tables [topics."NAME"] of the config.'
    )
    targets: dict[str, TargetSettings] = Field(
        default_factory=dict, description='Limits of target topics, tables [targets."PATTERN"] of the config.'
    )
    resent_topic: str = _setting(resent.TOPIC, "Topic where redrive, backfill and import mark what they sent.")
    redriven_topic: str = _setting(FORMER_TOPICS[Job.REDRIVE], _FORMER.format(Job.REDRIVE))
    backfilled_topic: str = _setting(FORMER_TOPICS[Job.BACKFILL], _FORMER.format(Job.BACKFILL))
    imported_topic: str = _setting(FORMER_TOPICS[Job.IMPORT], _FORMER.format(Job.IMPORT))
    control_topic: str = _setting(CONTROL_TOPIC, "Topic of operators' pauses and skips; senders need no right to it.")
    receipts: Mode = _setting("outcomes", "Which receipts are sent: none, outcomes or all.")
    partitions: int = _setting(4, "Partitions of a timer topic that the bridge creates.", ge=1)
    replication_factor: int = _setting(-1, "Copies of topics that it creates; -1: the broker's default.")
    compressed_requests: Literal["refuse", "allow"] = _setting(
        "refuse", "Whether timer topics may keep compressed records: allow if brokers cannot forbid it."
    )
    max_delay: Duration = _setting("366d", "The longest delay that is accepted.", gt=0, le=PAUSED_MS // 10)
    max_missed: int = _setting(
        1000, "Most occurrences before the request of a recurring timer with timer-missed: all.", ge=1
    )
    levels: str = _setting(LEVELS, "Delays of timer-delay-level 1, 2, ...; the last one holds for all above.")
    profiles: Names = _setting(DEFAULT_PROFILES, "Profiles of headers that the bridge reads, in order.")
    engine: Engine = _setting("wheel", "Engine of the local store: wheel or rocksdb. A change rebuilds it.")
    roll_window: Duration = _setting(
        "2d", "How far ahead the local store looks; at most 24d with the engine wheel.", gt=0
    )
    lateness_target: Duration = _setting(
        "50ms",
        "How late a timer may be so that others leave with it; less takes more CPU, in brokers too.",
        ge=10,
        le=1000,
    )
    min_free_bytes: Size = _setting("1GiB", "Free disk space below which intake pauses.")
    compression: Compression = _setting("none", "Of published records: none, lz4, zstd, snappy or gzip.")
    adopt_progress: str | None = _setting(None, "Start if progress is lost: earliest, latest or an epoch ms.")
    startup_timeout: Duration = _setting("1m", "How long to wait for a broker at start.", gt=0)
    http_port: int = _setting(0, "Port of health and pending timers over HTTP; 0: off.", ge=0, le=65535)
    http_host: str = _setting("127.0.0.1", "Address of the port; 0.0.0.0 lets every host read.")
    http_hosts: Names = _setting(
        (), "Names in the Host header that are answered, beside IP addresses: patterns with * and ?."
    )
    page: bool = _setting(False, "Serve a page and an API on http_port, to look after the group.")
    page_read_tokens: Path | None = _setting(None, "A file of tokens, by `timer-bridge token`, that may read.")
    page_operator_tokens: Path | None = _setting(None, "The same, of tokens that may also change something.")
    page_secret: Path | None = _setting(
        None, "A file with a secret that all instances share; needed if a file of tokens holds hashes."
    )
    page_proxy: _Networks = _setting(
        (), "Addresses of proxies that log users in, such as oauth2-proxy: the page believes their header."
    )
    page_proxy_header: str = _setting("X-Forwarded-User", "Header in which page_proxy names the user.")
    page_proxy_operators: Names = _setting(
        (), "Patterns (* and ?) of the users of page_proxy who may change something; others may read."
    )
    schema_registry: str | None = _setting(
        None, "URL of a schema registry, by which the page shows values of Avro, Protobuf and JSON Schema."
    )
    schema_registry_auth: Path | None = _setting(None, "A file with user:password for schema_registry.")
    audit_tables: str | None = _setting(
        None, "Folder or URI of an audit, its --out: the page shows the audit's verdict on a timer."
    )
    peer_networks: _Networks = _setting(
        (), "Networks where other instances are, such as 10.1.0.0/16; only these are asked."
    )
    advertised_http: str | None = _setting(
        None, "host:port by which other instances ask this one; its own address if left out."
    )
    log_format: Format = _setting("text", "Format of log lines: text or json.")
    log_level: Level = _setting("info", "debug, info, warning or error.")
    tracing: bool = _setting(False, "Export spans of deliveries to OTEL_EXPORTER_OTLP_ENDPOINT.")
    kafka: dict[str, str] = Field(default_factory=dict, description="librdkafka settings, passed through.", repr=False)

    @model_validator(mode="after")
    def _fits(self) -> "Settings":
        has_wheel = any(topic.engine == "wheel" for topic in self.timer_topics().values())
        if has_wheel and self.roll_window > 24 * DAY_MS:
            raise ValueError(
                "roll_window: at most 24d with the engine wheel, as its units cannot hold a longer delay; the engine"
                " rocksdb has no such limit"
            )
        parse_levels(self.levels)
        self.own_topics()
        for pattern in self.targets:
            if not PATTERN.fullmatch(pattern):
                text = "write a name, with * for any characters and ? for one"
                raise ValueError(f'targets."{pattern}" fits no topic: {text}')
        begin = self.adopt_progress
        if begin not in (None, "earliest", "latest") and (not str(begin).isdecimal() or other_unit(int(str(begin)))):
            raise ValueError("adopt_progress: give earliest, latest or epoch milliseconds")
        self._check_page()
        if self.workers > 1 and "group.instance.id" in self.kafka:
            raise ValueError("workers: each needs a name of its own, so leave kafka.group.instance.id out")
        if self.standby and "group.instance.id" in self.kafka:
            raise ValueError(
                "standby: a static member hands over only when its session ends, so leave kafka.group.instance.id out"
            )
        for name in self.kafka.keys() & RESERVED.keys():
            raise ValueError(f"kafka: {name} may not be set: {RESERVED[name]}")
        for name in self.kafka.keys() & FETCH_SIZES if self.compressed_requests == "allow" else ():
            raise ValueError(f"kafka: {name} may not be set with compressed_requests = allow: it bounds each read")
        return self

    @property
    def has_tokens(self) -> bool:
        """True if callers have to prove who they are: by a token, or by page_proxy."""
        return self.page_read_tokens is not None or self.page_operator_tokens is not None or bool(self.page_proxy)

    def _check_page(self) -> None:
        if self.page and not self.http_port:
            raise ValueError("page: give --http-port, the port to serve it on")
        if self.page_proxy and self.page_secret is None:
            raise ValueError("page_proxy: give page_secret too, by which instances sign reads for its users")
        if self.page and not self.has_tokens and not is_loopback(self.http_host):
            raise ValueError(
                f"page: on {self.http_host} others reach it: give --page-operator-tokens or --page-read-tokens, files"
                f" of name:token, or --http-host 127.0.0.1"
            )
        if self.schema_registry is not None and not _URL.fullmatch(self.schema_registry):
            raise ValueError(
                "schema_registry: write http://host:port or https://host, without a user: schema_registry_auth names a"
                " file for that"
            )
        for name in ("schema_registry", "audit_tables"):
            if getattr(self, name) is not None and not self.page:
                raise ValueError(f"{name}: only the page uses it, so give --page and --http-port too")
        if self.schema_registry_auth is not None and self.schema_registry is None:
            raise ValueError("schema_registry_auth: give schema_registry, whose password it is")
        if self.advertised_http is not None and not _HOST_PORT.fullmatch(self.advertised_http):
            raise ValueError("advertised_http: write host:port, such as 10.1.2.3:8321")

    @property
    def pace_s(self) -> float:
        """Shortest time between two turns. The rest of lateness_target, 5 ms at most, is for the transaction."""
        return (self.lateness_target - min(5, 0.2 * self.lateness_target)) / 1000

    def timer_topics(self) -> dict[str, TopicSettings]:
        """Return every timer topic by name, `timer_topic` first, with defaults filled in."""
        own = {name: getattr(self, name) for name in TopicSettings.model_fields if name in Settings.model_fields}
        targets = {"allow": self.allow_targets, "deny": self.deny_targets, "actions": self.allow_actions}
        main = TopicSettings().model_copy(update=own | targets)
        named = {self.timer_topic: main} | self.topics
        return {name: topic.of(name, self.profiles, self.engine) for name, topic in named.items()}

    def journal_topics(self) -> dict[str, str]:
        return {name: topic.journal_topic for name, topic in self.timer_topics().items()}

    def own_topics(self) -> frozenset[str]:
        """Return the bridge's own topics; records to others are deliveries. Raises ValueError if topics do not fit."""
        if self.timer_topic in self.topics:
            raise ValueError(
                f'topics."{self.timer_topic}" is timer_topic: write its keys as the settings allow_targets,'
                f" deny_targets, allow_actions, passed_headers, profiles, max_requests_per_s, max_pending,"
                f" max_pending_bytes, max_request_bytes, max_delay and journal_topic, outside of a table"
            )
        own = ("timer_topic", "journal_topic")
        names = [name for name in Settings.model_fields if name.endswith("_topic") and name not in own]
        shared: dict[str, str] = {name: getattr(self, name) for name in names}
        return check_timer_topics(self.timer_topic, self.timer_topics(), shared)

    @property
    def redrive_marks(self) -> MarkTopics:
        return MarkTopics(Job.REDRIVE, self.resent_topic, self.redriven_topic)

    def turn_options(self, found: Mapping[str, TopicState], era_ms: int = 0) -> TurnOptions:
        """Return the loop's options. Raises SettingsError if a quota allows a partition no timer.

        found: state of each timer topic.
        """
        own, topics = self.own_topics(), self.timer_topics()
        each = [self._options_of(name, topic, found[name], own) for name, topic in topics.items()]
        main, *others = [replace(options, era_ms=era_ms) for options in each]
        return replace(main, topics=dict(zip(self.topics, others, strict=True)))

    def _options_of(self, name: str, topic: TopicSettings, found: TopicState, own: frozenset[str]) -> TurnOptions:
        for limit in ("max_pending", "max_pending_bytes"):
            if (most := getattr(topic, limit)) is not None and most < found.partitions:
                why = f"{name} has {found.partitions} partitions, each of which takes its part"
                raise SettingsError(f"{limit} = {most}: {why}: give {found.partitions} or more")
        lap_ms = 2 * self.roll_window + _STANDSTILL_MS
        return TurnOptions(
            rules=self._rules_of(topic, own),
            store=StoreOptions(engine=topic.engine or self.engine, slots=lap_ms // TICK_MS),
            rejected_topic=self.rejected_topic,
            journal_topic=topic.journal_topic,
            receipts_topic=self.receipts_topic,
            receipts=self.receipts,
            max_message_bytes=found.max_message_bytes,
            min_free_bytes=self.min_free_bytes,
            adopt_progress=self.adopt_progress,
            policy=topic.policy,
            partitions=found.partitions,
            max_requests_per_s=topic.max_requests_per_s and -(-topic.max_requests_per_s // self.workers),
            max_pending=topic.max_pending and topic.max_pending // found.partitions,
            max_pending_bytes=topic.max_pending_bytes and topic.max_pending_bytes // found.partitions,
            max_request_bytes=topic.max_request_bytes,
            max_missed=self.max_missed,
            targets={name: each.max_per_s / found.partitions for name, each in self.targets.items()},
        )

    def rules(self) -> dict[str, Rules]:
        """Return the rules for reading requests, by timer topic."""
        own = self.own_topics()
        return {name: self._rules_of(topic, own) for name, topic in self.timer_topics().items()}

    def _rules_of(self, topic: TopicSettings, own: frozenset[str]) -> Rules:
        return Rules(
            max_delay_ms=self.max_delay if topic.max_delay is None else topic.max_delay,
            roll_window_ms=self.roll_window,
            levels_ms=parse_levels(self.levels),
            profiles=topic.profiles or (NATIVE,),
            own_topics=own,
            passed_on=frozenset(topic.passed_headers),
        )

    def fetched(self, found: Mapping[str, TopicState]) -> dict[str, str]:
        """Return librdkafka settings for consumers of timer topics."""
        largest = max(each.max_message_bytes for each in found.values())
        return fetch_limits(largest, is_compressed=self.compressed_requests == "allow")

    def connection(self, instance: str = "") -> Connection:
        """Return the connection. instance: tells this process from the others of its group."""
        of_group: dict[str, str] = {"group.protocol": self.group_protocol}
        if self.static_membership and instance and not self.standby:
            of_group["group.instance.id"] = instance
        published = {"compression.type": self.compression}
        return Connection(self.bootstrap_servers, self.group, instance, of_group | self.kafka, published)


_BY_DUE_TIME = "take it out: the timers of a target with a rate leave in the order of their due times"

REMOVED = {
    "targets.fresh_share": _BY_DUE_TIME,
    "targets.fresh": _BY_DUE_TIME,
    "delivery": "take it out: delivery is exactly once, and readers set isolation.level=read_committed",
    "fix_topics": "take it out, and run the kafka-configs.sh command that a refused start prints",
    "tick_ms": "take it out: due times are exact, and a store with another tick is rebuilt from Kafka",
    "slots": "take it out: the wheel's size follows from roll_window",
    "segment_bytes": "take it out: a file of the local store has 64 MiB",
    "checkpoint_interval": "take it out: the local store is made durable every 2 s",
    "max_poll_records": "take it out: a turn reads at most 2,000 requests",
    "max_due_records": "take it out: a transaction releases at most 4,000 timers and 16 MiB",
    "commit_interval": "take it out: progress of stored requests is committed every 200 ms",
    "read_interval": "set fetch.wait.max.ms under kafka instead",
    "linger_ms": "set linger.ms under kafka instead",
    "prepare_from": "take it out: a start that reads 100,000 records or more reads them in the background",
    "max_clock_skew": "take it out: a clock that is wrong by more than 1 s is logged; alert on clock_skew_seconds",
}
"""Settings of former versions, each with what to do instead."""

TABLES = ("kafka", "topics", "targets")
"""Settings that are TOML tables, so they have no option of their own name."""


class Given(NamedTuple):
    """A setting as it was given. source: `flag --group`, `environment TIMER_BRIDGE_GROUP` or `file x.toml`."""

    value: object
    source: str


def collect(
    flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None, *, about_topic: bool = False
) -> dict[str, Given]:
    """Return the given settings by name, librdkafka's as `kafka.NAME`. None means not given.

    about_topic: True for a command about one timer topic. If that topic has a table in the file, the flag or variable
    does not make it the main one. Raises SettingsError.
    """
    try:
        in_file = {} if file is None else from_file(file)
    except ValueError as wrong:
        raise SettingsError(f"config {wrong}") from wrong
    tables = in_file.get("topics")
    others = tables if about_topic and isinstance(tables, Mapping) else {}
    found: dict[str, Given] = {}
    for origin, layer in ((f"file {file}", in_file), ("environment", from_environment(environment)), ("flag", flags)):
        for name, value in layer.items():
            if value is None or (name == "timer_topic" and layer is not in_file and value in others):
                continue
            values = by_full_name({name: value}) if name == "kafka" else {name: value}
            found |= {each: Given(values[each], _source(origin, each)) for each in values}
    return found


def _source(origin: str, name: str) -> str:
    if origin == "environment":
        return f"environment {PREFIX}{name.upper().replace('.', '_')}"
    if origin == "flag":
        is_kafka = name.startswith("kafka.")
        return f"flag --kafka {name.removeprefix('kafka.')}=..." if is_kafka else f"flag --{name.replace('_', '-')}"
    return origin


def load(flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Return the settings. Raises SettingsError, which names the setting, the value and the remedy."""
    return validated(collect(flags, environment, file))


def validated(given: Mapping[str, Given]) -> Settings:
    """Return the settings, with the contents of `file:` values. Raises SettingsError as `load` does."""
    values = {name: value for name, (value, _) in given.items() if not name.startswith("kafka.")}
    kafka = {name.removeprefix("kafka."): value for name, (value, _) in given.items() if name.startswith("kafka.")}
    try:
        return Settings.model_validate({"kafka": merged([kafka]), **values})
    except ValidationError as wrong:
        raise SettingsError("; ".join(map(_error_text, wrong.errors()))) from wrong
    except ValueError as wrong:
        raise SettingsError(str(wrong)) from wrong


_NAMED_TABLES: dict[str, tuple[type[BaseModel], str]] = {
    "topics": (TopicSettings, '[topics."NAME"] for each timer topic'),
    "targets": (TargetSettings, '[targets."PATTERN"] for each limit'),
}


def _error_text(error: Any) -> str:
    place, kind, text = [*map(str, error["loc"])], error["type"], error["msg"].removeprefix("Value error, ")
    if not place:
        return str(text)
    name = ".".join(place)
    if place[0] == "kafka":  # its values may be secrets
        return (
            f"{name}: give a table [kafka] of librdkafka settings in the config, --kafka name=value, or one variable"
            f" for each, such as {PREFIX}KAFKA_SASL_PASSWORD"
        )
    model: type[BaseModel] = Settings
    removed, unknown, otherwise = REMOVED.get(name), f"there is no setting {name!r}", ""
    remedy = f"give --{name.replace('_', '-')}, {PREFIX}{name.upper()} or {name} in the config"
    if place[0] in _NAMED_TABLES:
        model, form = _NAMED_TABLES[place[0]]
        if len(place) < 3:
            return f"{place[0]}: write a table {form} in the config"
        tables, table, key, *_ = place
        name, removed = f'{tables}."{table}".{key}', REMOVED.get(f"{tables}.{key}")
        remedy = "give it, or take the table out"
        unknown = f'{tables}."{table}" has no key {key!r}'
        otherwise = f': a name with dots stands in quotes: [{tables}."{table}.{key}"]'
    if kind == "missing":
        return f"{name} is missing: {remedy}"
    if kind == "extra_forbidden" and removed is not None:
        return f"{name}: removed; {removed}"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(place[-1], model.model_fields, n=1)
        return unknown + (f": did you mean {near[0]!r}?" if near else otherwise)
    return f"{name} = {error['input']!r}: {text}"
