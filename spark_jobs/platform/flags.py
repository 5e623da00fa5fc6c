"""Flags that all jobs share: the cluster, its topics, the login.

Flag over environment (TIMER_BRIDGE_*) over file (--config, the bridge's own) over default, as for the bridge itself.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.kafka_settings import from_environment, from_file, merged
from schemas.levels import DEFAULT as LEVELS
from spark_jobs.errors import UsageError
from spark_jobs.kafka.security import KafkaAccess

_DEFAULTS = {
    "timer_topic": "timer.requests",
    "rejected_topic": "timer.rejected",
    "receipts_topic": "timer.receipts",
    "journal_topic": "timer.journal",
    "backfilled_topic": "timer.backfilled",
    "imported_topic": "timer.imported",
    "lateness_topic": "timer.lateness",
    "group": "timer-bridge",
    "levels": LEVELS,
}


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the shared flags. `names`: settings of the bridge that the job needs."""
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings, such as the bridge's")
    parser.add_argument(
        "--kafka",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a librdkafka setting, such as sasl.username=audit; file:PATH for what is in a file; may repeat",
    )
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="NAME", help=f"default {_DEFAULTS[name]}")
    parser.add_argument("--master", help="Spark's master; default: local[*], or what spark-submit says")


def resolved(given: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return argparse's `given`, completed from environment, file and defaults, with `access`. Raises UsageError."""
    given = dict(given)
    layers = [_from_file(given.pop("config")), from_environment(environment)]
    missing = {name for name in given.keys() & {"bootstrap_servers", *_DEFAULTS} if given[name] is None}
    said = {name: str(layer[name]) for layer in layers for name in missing if layer.get(name) is not None}
    given |= said
    if "journal_topic" in missing:  # a timer topic may have its own
        given["journal_topic"] = _own_journal(given["timer_topic"], layers[0]) or given["journal_topic"]
    for name in given.keys() & _DEFAULTS.keys():
        given[name] = _DEFAULTS[name] if given[name] is None else given[name]
    servers, tables = given.pop("bootstrap_servers"), [*(layer.get("kafka", {}) for layer in layers)]
    tables.append(_pairs(given.pop("kafka")))
    if servers is None:
        raise UsageError("--bootstrap-servers is missing: give host:port, or --config")
    if not all(isinstance(table, Mapping) for table in tables):
        raise UsageError("kafka is no table: write [kafka] above librdkafka's settings")
    try:
        return {**given, "access": KafkaAccess(servers, merged(tables))}  # type: ignore[arg-type]
    except UsageError:
        raise
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong


def _own_journal(timer_topic: str | None, file: Mapping[str, Any]) -> str | None:
    """Return the journal topic of a timer topic with its own table in the config; None for the main timer topic."""
    table = file.get("topics", {})
    if timer_topic is None or not isinstance(table, Mapping) or not isinstance(own := table.get(timer_topic), Mapping):
        return None
    return str(own.get("journal_topic") or f"{timer_topic}.journal")


def _pairs(given: list[str]) -> dict[str, str]:
    if any("=" not in pair for pair in given):  # without the text, which may be a secret
        raise UsageError("--kafka: write name=value")
    return dict(pair.split("=", 1) for pair in given)


def _from_file(file: Path | None) -> dict[str, object]:
    try:
        return {} if file is None else from_file(file)
    except ValueError as wrong:
        raise UsageError(f"--config {wrong}") from wrong
