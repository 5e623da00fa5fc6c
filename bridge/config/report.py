"""`timer-bridge check-config`: list every setting as `run` would use it, and its source.

    setting               value                                source
    bootstrap_servers     kafka:9092                           environment TIMER_BRIDGE_BOOTSTRAP_SERVERS
    roll_window           172800000 ms                         default
    kafka.sasl.password   (hidden), file:/run/secrets/kafka    file bridge.toml

Librdkafka settings that may be secrets are hidden, and so are the contents of `file:` values.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel

from bridge.config.durations import milliseconds
from bridge.config.settings import Layers, Settings
from bridge.observe.logs import HIDDEN, is_secret, without_secrets
from schemas.kafka_settings import IN_A_FILE, PREFIX, by_full_name


class SettingRow(NamedTuple):
    setting: str
    value: str
    source: str


def report(settings: Settings, layers: Layers) -> str:
    settings_rows = (*_plain(settings, layers), *_tables(settings, layers), *_kafka(settings, layers))
    rows = [SettingRow("setting", "value", "source"), *settings_rows]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    lines = (f"{row.setting:{widths[0]}}  {row.value:{widths[1]}}  {row.source}" for row in rows)
    return without_secrets("\n".join(lines), settings.kafka)


def check(settings: Settings) -> None:
    """Check everything else that `run` checks before it connects to a broker. Raises SettingsError."""
    from bridge.http.assembly import access_of
    from bridge.kafka import ConfluentTopics, Retrier

    if settings.http_port:
        access_of(settings)
    ConfluentTopics(settings.connection(), Retrier())


def _plain(settings: Settings, layers: Layers) -> Iterator[SettingRow]:
    for name in Settings.model_fields:
        if name not in ("kafka", "topics", "targets"):
            yield SettingRow(name, _shown(settings, name), _source(layers, name))


def _tables(settings: Settings, layers: Layers) -> Iterator[SettingRow]:
    """Yield the tables of timer topics and targets, with defaults filled in."""
    resolved = settings.timer_topics()
    tables: dict[str, tuple[BaseModel, BaseModel]] = {
        f'topics."{name}"': (given, resolved[name]) for name, given in settings.topics.items()
    }
    tables |= {f'targets."{pattern}"': (given, given) for pattern, given in settings.targets.items()}
    for table, (given, effective) in tables.items():
        for key in type(given).model_fields:
            source = f"file {layers.file}" if key in given.model_fields_set else "default"
            yield SettingRow(f"{table}.{key}", _shown(effective, key), source)


def _kafka(settings: Settings, layers: Layers) -> Iterator[SettingRow]:
    given = {source: _table(layer.get("kafka")) for source, layer in layers.by_source().items()}
    for name, value in sorted(settings.kafka.items()):
        source = next(source for source in reversed(given) if name in given[source])
        raw = given[source][name]
        shown = f"{HIDDEN}, {raw}" if raw.startswith(IN_A_FILE) else HIDDEN if is_secret(name) else value
        yield SettingRow(f"kafka.{name}", shown, _named(source, f"kafka_{name.replace('.', '_')}", f"kafka {name}=..."))


def _table(given: object) -> dict[str, str]:
    return by_full_name(given) if isinstance(given, Mapping) else {}


def _source(layers: Layers, name: str) -> str:
    by_source = layers.by_source()
    source = next((source for source in reversed(by_source) if by_source[source].get(name) is not None), "default")
    return _named(source, name, name.replace("_", "-"))


def _named(source: str, variable: str, option: str) -> str:
    named = {"environment": f"environment {PREFIX}{variable.upper()}", "flag": f"flag --{option}"}
    return named.get(source, source)


def _shown(model: BaseModel, name: str) -> str:
    value = getattr(model, name)
    if isinstance(value, tuple):
        return ",".join(value) or "none"
    is_duration = any(getattr(each, "func", None) is milliseconds for each in type(model).model_fields[name].metadata)
    return f"{value} ms" if is_duration else "none" if value is None else str(value)
