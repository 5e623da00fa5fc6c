"""Command lines of the jobs: the fields of a job's arguments, with an Option, are its flags.

    from_ms: Annotated[int | None, Option("--from", parse=parse_instant_ms, metavar="TIME")] = None
    timer_topic: Setting = "timer.requests"         --timer-topic, or the setting timer_topic of the bridge

Flag over environment (TIMER_BRIDGE_*) over file (--config, the bridge's own) over default, as for the bridge itself.
"""

from argparse import SUPPRESS, ArgumentParser, HelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

from schemas.kafka_settings import from_environment, from_file, merged
from schemas.profiles import DEFAULT_PROFILES, NATIVE, PROFILES
from spark_jobs.errors import UsageError
from spark_jobs.kafka.security import KafkaAccess, read_properties
from spark_jobs.platform.files import parse_location

Parse: TypeAlias = Callable[[str], object]


class Option:
    """The flag of a field, by default `--` and its name.

    parse: from text to the value; a ValueError has no name of the flag. is_setting: environment and file may have it,
    too, and the table of a timer topic, which wins. Others: of argparse.
    """

    def __init__(
        self, flag: str = "", *, parse: Parse | None = None, is_setting: bool = False, **for_argparse: Any
    ) -> None:
        self.flag, self.parse, self.is_setting, self.for_argparse = flag, parse, is_setting, for_argparse


def setting(text: str, metavar: str = "NAME", flag: str = "", parse: Parse | None = None, **others: Any) -> Option:
    return Option(flag, parse=parse, is_setting=True, metavar=metavar, help=text, **others)


Setting: TypeAlias = Annotated[str, setting("default %(default)s")]
FormerTopic: TypeAlias = Annotated[str, setting("marks of former versions, only read; default %(default)s")]


def switch(text: str) -> Option:
    return Option(action="store_true", help=text)


def removed(remedy: str) -> Option:
    """Return the flag of a removed setting: it is refused with what to do instead."""

    def refuse(_: str) -> None:
        raise ValueError(f"removed; {remedy}")

    return Option(parse=refuse, is_setting=True, help=SUPPRESS)


def number(text: str, flag: str = "", **for_argparse: Any) -> Option:
    return Option(flag, type=int, help=text, **for_argparse)


def location(text: str = "", **for_argparse: Any) -> Option:
    """Return the flag of a folder that Spark can reach: a path or a URI."""
    return Option(parse=parse_location, metavar="DIR", help=text or "a path, or a URI of Hadoop's", **for_argparse)


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    access: KafkaAccess
    timer_topic: Setting = "timer.requests"
    master: Annotated[str | None, Option(help="Spark's master; default: local[*], or what spark-submit says")] = None
    jars: Annotated[
        Path | None, Option(type=Path, metavar="DIR", help="a folder with Spark's Kafka connector; default: fetched")
    ] = None


class _HelpFormatter(HelpFormatter):
    """Writes help as the other commands do."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix or "Usage: ")


class JobParser(ArgumentParser):
    """The command line of a job. example: arguments of a typical call, besides --bootstrap-servers."""

    def __init__(self, job: str, description: str, arguments: type[JobArguments], example: str) -> None:
        super().__init__(
            prog=f"timer-bridge {job}",
            usage="%(prog)s [OPTIONS]",
            description=description,
            epilog=f"Example: timer-bridge {job} --bootstrap-servers broker:9092 {example}",
            formatter_class=partial(_HelpFormatter, max_help_position=34),
            add_help=False,
        )
        options, cluster = self.add_argument_group("Options"), self.add_argument_group("Cluster")
        options.add_argument("-h", "--help", action="help", help="Show this message and exit.")
        cluster.add_argument("--bootstrap-servers", metavar="<host:port>", help="Of brokers.")
        text = "A TOML file of settings, such as the bridge's."
        cluster.add_argument("--config", type=Path, metavar="<path>", help=text)
        text = "A librdkafka setting, such as sasl.username=audit; file:PATH for what is in a file; may repeat."
        cluster.add_argument("--kafka", action="append", default=[], metavar="<name=value>", help=text)
        text = "Properties of Java's Kafka client, passed to Spark as they are: Kerberos, OAuth, key stores."
        cluster.add_argument("--kafka-properties", type=Path, metavar="<path>", help=text)
        settings = self.add_argument_group("The bridge's settings")
        hints = get_type_hints(arguments, include_extras=True)
        self._main = arguments.timer_topic
        self._flags: dict[str, tuple[str, Option]] = {}
        """Flags by the name of their field."""
        for each in fields(arguments):
            for option in getattr(hints[each.name], "__metadata__", ()):
                flag = option.flag or f"--{each.name.replace('_', '-')}"
                self._flags[each.name] = flag, option
                given = {"required": each.default is MISSING, **option.for_argparse, "default": None}
                text = str(given.get("help", "")).replace("%(default)s", str(each.default))
                text += "; required" * given["required"]
                given["help"] = text if text == SUPPRESS else f"{text[:1].upper()}{text[1:]}."
                if given.get("action") != "store_true" and "choices" not in given:
                    metavar = given.get("metavar", "int" if given.get("type") is int else "str")
                    given["metavar"] = f"<{str(metavar).lower()}>"
                (settings if option.is_setting else options).add_argument(flag, dest=each.name, **given)

    def resolved(self, argv: Sequence[str] | None, environment: Mapping[str, str], **chosen: str) -> dict[str, Any]:
        """Return the values that flags, environment and file give, with `access`. Raises UsageError.

        argparse's SystemExit follows --help or a wrong flag. `chosen`: fields that win over all of these.
        """
        given = vars(self.parse_args(argv)) | chosen
        layers: list[dict[str, Any]] = [_from_file(given.pop("config")), from_environment(environment)]
        settings = {name: flag for name, (flag, option) in self._flags.items() if option.is_setting}
        settings["bootstrap_servers"] = "--bootstrap-servers"
        missing = {name: flag[2:].replace("-", "_") for name, flag in settings.items() if given[name] is None}
        for layer in layers:
            given |= {name: _text(layer[of]) for name, of in missing.items() if layer.get(of) is not None}
        own = _own_table(given.get("timer_topic"), layers[0])
        found = {name: own.get(of.removesuffix("_targets")) for name, of in missing.items()}  # there: allow, deny
        given |= {name: _text(value) for name, value in found.items() if value is not None}
        for name, (flag, option) in self._flags.items():
            if option.parse is not None and given[name] is not None:
                try:
                    given[name] = option.parse(given[name])
                except ValueError as wrong:
                    raise UsageError(f"{flag}: {wrong}") from wrong
        given["access"] = _access(given, layers)
        return {name: value for name, value in given.items() if value is not None}

    def resolved_each(self, argv: Sequence[str] | None, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return `resolved` by timer topic: for those that `--timer-topic` names, else for all of the settings."""
        given = self.parse_args(argv)
        topics = given.timer_topic
        if topics is None:
            main, tables = self.resolved(argv, environment), _from_file(given.config).get("topics")
            topics = [main.get("timer_topic", self._main), *(tables if isinstance(tables, Mapping) else ())]
        return {topic: self.resolved(argv, environment, timer_topic=topic) for topic in topics}


def _access(given: dict[str, Any], layers: Sequence[Mapping[str, Any]]) -> KafkaAccess:
    """Return the access by flags and layers; drop these flags. Raises UsageError."""
    pairs = [pair.partition("=") for pair in given.pop("kafka")]
    if not all(equals for _, equals, _ in pairs):  # without the text, which may be a secret
        raise UsageError("--kafka: write name=value")
    tables = [*(layer.get("kafka", {}) for layer in layers), {name: value for name, _, value in pairs}]
    servers, properties = given.pop("bootstrap_servers"), given.pop("kafka_properties")
    if servers is None:
        raise UsageError("--bootstrap-servers is missing: give host:port, or --config")
    if not all(isinstance(table, Mapping) for table in tables):
        raise UsageError("kafka is not a table: write [kafka] above librdkafka's settings")
    try:
        return KafkaAccess(servers, merged(tables), {} if properties is None else read_properties(properties))
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong


def _own_table(timer_topic: str | None, file: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table of a timer topic in the config, with its defaults; empty for the main timer topic."""
    tables = file.get("topics", {})
    own = tables.get(timer_topic) if isinstance(tables, Mapping) else None
    defaults = {"journal_topic": f"{timer_topic}.journal", "allow": "*", "deny": ""}
    return {**defaults, **own} if isinstance(own, Mapping) else {}


def _text(value: object) -> str:
    """Return a setting as it would be on the command line: a list as "a,b"."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def parse_profiles(text: str) -> tuple[str, ...]:
    """Parse "native,rocketmq". Raises ValueError with the unknown name."""
    profiles = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in profiles if name != NATIVE and name not in PROFILES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a profile: give some of {', '.join((NATIVE, *PROFILES))}")
    return profiles


Profiles: TypeAlias = Annotated[
    tuple[str, ...],
    setting(f"profiles of requests; default {','.join(DEFAULT_PROFILES)}", "NAME,...", parse=parse_profiles),
]


def _from_file(file: Path | None) -> dict[str, object]:
    try:
        return {} if file is None else from_file(file)
    except ValueError as wrong:
        raise UsageError(f"--config {wrong}") from wrong
