"""`timer-bridge check-config`: list every setting as `run` would use it, and its source.

    setting               value                                source
    bootstrap_servers     kafka:9092                           environment TIMER_BRIDGE_BOOTSTRAP_SERVERS
    roll_window           2d                                   default
    kafka.sasl.password   (hidden), file:/run/secrets/kafka    file bridge.toml

Librdkafka settings that may be secrets are hidden, and so are the contents of `file:` values.
"""

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from bridge.config.settings import TABLES, Given, Settings
from bridge.observe.logs import HIDDEN, is_secret, without_secrets
from schemas.kafka_settings import IN_A_FILE


def report(settings: Settings, given: Mapping[str, Given]) -> str:
    """Return the lines. given: what the settings were made of, by `collect`."""
    rows = [
        ("setting", "value", "source"),
        *_plain(settings, given),
        *_tables(settings, given),
        *_kafka(settings, given),
    ]
    name_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = (f"{name:{name_width}}  {value:{value_width}}  {source}" for name, value, source in rows)
    return without_secrets("\n".join(lines), settings.kafka)


def _plain(settings: Settings, given: Mapping[str, Given]) -> Iterator[tuple[str, str, str]]:
    for name in Settings.model_fields:
        if name not in TABLES:
            yield name, _shown(settings, name), given[name].source if name in given else "default"


def _tables(settings: Settings, given: Mapping[str, Given]) -> Iterator[tuple[str, str, str]]:
    """Yield the tables of timer topics and targets, with defaults filled in."""
    effective: dict[str, Mapping[str, BaseModel]] = {"topics": settings.timer_topics(), "targets": settings.targets}
    for tables, of_name in effective.items():
        for name, in_file in getattr(settings, tables).items():
            for key in type(in_file).model_fields:
                source = given[tables].source if key in in_file.model_fields_set else "default"
                yield f'{tables}."{name}".{key}', _shown(of_name[name], key), source


def _kafka(settings: Settings, given: Mapping[str, Given]) -> Iterator[tuple[str, str, str]]:
    for name, value in sorted(settings.kafka.items()):
        raw, source = given[f"kafka.{name}"]
        shown = HIDDEN if is_secret(name) else value
        if str(raw).startswith(IN_A_FILE):
            shown = f"{HIDDEN}, {raw}"
        yield f"kafka.{name}", shown, source


def _shown(model: BaseModel, name: str) -> str:
    value = getattr(model, name)
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(model.model_dump(include={name})[name])
