"""One row of a file -> a request for the timer topic, or why it is invalid. Pure.

    {"when": "2026-12-24T18:00:00Z", "body": "hi"} + due=when, value=body, topic:=orders
        ->  Request(key=None, value=b"hi", headers=[timer-topic orders, timer-deliver-ms 1798135200000])

A file that `timer-bridge export` wrote needs no mapping: key, value and foreign headers are those of the request, and
its due time is absolute. The foreign header `imported-from` names the original request. kafka_timer.headers validates,
as in the bridge.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from kafka_timer import headers as names
from kafka_timer.headers import CONTROL, Refusal, parse
from kafka_timer.origin import TimerPartition
from schemas.pending_table import PENDING, parse_stores
from schemas.profiles import without_profile
from schemas.progress import Age
from schemas.rules import Rules
from spark_jobs.errors import UsageError

FIELDS = ("topic", "due", "value", "key", "id", "partition", "headers")
HEADER = "header:"
EXPORTED = frozenset({"origin_offset", "target", "due_ms", "headers"})
"""Columns that identify an export (schemas.pending_table)."""
IMPORTED_FROM = "imported-from"
"""Header of an exported timer: topic/partition/offset of its first request in the original cluster."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}0*[1-9]")
"""Digits that datetime leaves out."""
_JSON = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=int)
"""Leaves numbers as text; raises ValueError for NaN and Infinity, which are not JSON."""
_MARK = re.compile(r"\s*[{,:]\s*")


class ImportedRequest(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class InvalidRowError(ValueError):
    """The row is invalid; the message has the reason."""


@dataclass(frozen=True)
class ColumnMapping:
    """Fields from columns (field -> column, `header:NAME` -> column) and constants (`given`: field -> value)."""

    columns: Mapping[str, str]
    given: Mapping[str, str]
    max_delay_ms: int
    zone: str | None = None
    """The time zone of times without one; None: they are refused."""

    def request(self, row: Mapping[str, Any], now_ms: int) -> ImportedRequest:
        """Raises InvalidRowError."""
        is_exported = row.keys() >= EXPORTED and not self.columns
        if is_exported and self.given:
            raise InvalidRowError("an export sets all fields: leave --set out, or --map its columns")
        found = _exported(row) if is_exported else self._by_columns(row)
        for name, _ in found.headers:
            if "\0" in name:
                raise InvalidRowError(f"header {name!r} has a NUL, where Kafka clients cut its name: leave the NUL out")
        passed_on = None if is_exported else frozenset[str]()  # the next bridge judges what one has accepted
        rules = Rules(max_delay_ms=self.max_delay_ms, roll_window_ms=1, passed_on=passed_on)
        asked = parse(found.headers, now_ms, rules)
        if isinstance(asked, Refusal):
            raise InvalidRowError(f"{asked.code}: {asked.detail}")
        return found

    def _by_columns(self, row: Mapping[str, Any]) -> ImportedRequest:
        got: dict[str, Any] = {name: row.get(column) for name, column in self.columns.items()}
        got |= self.given
        ours = {
            names.TOPIC: _bytes(got.get("topic")),
            names.DELIVER_MS: b"%d" % _due_ms(got.get("due"), self.zone),
            names.ID: _bytes(got.get("id")),
            names.PARTITION: _bytes(got.get("partition")),
        }
        headers: list[tuple[str, bytes | None]] = [(name, value) for name, value in ours.items() if value is not None]
        foreign = _foreign(got.get("headers"))
        foreign += [(name.removeprefix(HEADER), _bytes(got[name])) for name in got if name.startswith(HEADER)]
        for name in CONTROL & dict(foreign).keys():
            raise InvalidRowError(f"{name} is the bridge's own: map topic, due, id, key or partition instead")
        return ImportedRequest(_bytes(got.get("key")), _bytes(got.get("value")), headers + foreign)


def _exported(row: Mapping[str, Any]) -> ImportedRequest:
    if row.get("is_paused"):
        raise InvalidRowError("the timer is paused, and an import would deliver it: resume it before the export")
    kept = without_profile([(header["name"], header["value"]) for header in row["headers"]])
    told = dict(kept)
    ours: dict[str, bytes | None] = {names.TOPIC: _bytes(row["target"]), names.DELIVER_MS: b"%d" % row["due_ms"]}
    ours |= {names.ID: row.get("id"), names.PARTITION: _bytes(row.get("target_partition"))}
    ours |= {name: told.get(name) for name in (names.KEY, names.EXPIRE_MS)} | _rule_left(told)
    if names.CRON in told and names.OCCURRENCE not in told and row["due_ms"] == row.get("timestamp_ms"):
        del ours[names.DELIVER_MS]  # its first occurrence is still to be found
    headers = [header for header in ours.items() if header[1] is not None]
    headers += [header for header in kept if header[0] not in CONTROL]
    # A profile with its id in the key may deliver without a key; the native headers cannot say that.
    key = None if told.get(names.KEY, b"") is None else row.get("key")
    place = [row.get(name) for name in ("topic", "partition", "origin_offset")]
    headers += [] if None in place else [(IMPORTED_FROM, "/".join(map(str, place)).encode())]
    return ImportedRequest(key, row.get("value"), headers)


def _rule_left(told: Mapping[str, bytes | None]) -> dict[str, bytes | None]:
    """Return the rule of a recurring timer: it begins again with number 1, with as many occurrences as are left."""
    rule: dict[str, bytes | None] = {name: told.get(name) for name in names.RECURRENCE}
    if rule[names.COUNT] is not None:
        delivered = max(0, int(told.get(names.OCCURRENCE) or 1) - 1)
        rule[names.COUNT] = b"%d" % max(1, int(rule[names.COUNT] or 1) - delivered)
    return rule


def _bytes(value: Any) -> bytes | None:
    """Return text as UTF-8, and any other value, of Parquet, as JSON. Raises InvalidRowError."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    try:
        return json.dumps(value, separators=(",", ":"), default=_plain, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as wrong:
        raise InvalidRowError(f"a value has no JSON form: {wrong}: give it as text") from wrong


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        raise ValueError("it has bytes inside")
    return str(value)


def json_fields(text: str) -> dict[str, Any]:
    """Return the fields of a JSON object: the letters of a text, None, or another value as it is written.

    Raises InvalidRowError, also if a name is there twice.
    """
    try:
        if not isinstance(_JSON.decode(text), dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise InvalidRowError("not a JSON object") from None
    parts: list[Any] = []
    at = 0
    while (mark := _MARK.match(text, at)) and text[mark.end()] != "}":
        value, at = _JSON.raw_decode(text, mark.end())
        parts.append(value if value is None or isinstance(value, str) else text[mark.end() : at])
    fields: dict[str, Any] = {}
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        if name in fields:
            raise InvalidRowError(f"{name!r} is there twice: give it once")
        fields[name] = value
    return fields


def _due_ms(value: Any, zone: str | None) -> int:
    """Parse a due time: epoch ms, or ISO 8601 text. Return epoch ms. zone: for a text without a time zone."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = value if isinstance(value, str) else ""
    with suppress(ValueError):
        if text.isascii() and text.isdigit():
            return int(text)
        if len(text) > len("2026-12-24"):
            value = datetime.fromisoformat(text)
    if not isinstance(value, datetime):
        raise InvalidRowError(f"due is {value!r}: give epoch ms, or 2026-12-24T18:00:00Z")
    moment = value if value.tzinfo is not None else _in_zone(value, zone)
    left = _BELOW_MICROSECONDS.search(text) is not None
    return -(-((moment - _EPOCH) // timedelta(microseconds=1) + left) // 1000)  # never early


def _in_zone(moment: datetime, zone: str | None) -> datetime:
    """Return the time with its zone. Raises InvalidRowError if the zone's clock shows it never, or twice."""
    if zone is None:
        raise InvalidRowError(f"due is {moment.isoformat()}: give its time zone, such as Z or +01:00, or --zone")
    first, second = (moment.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        raise InvalidRowError(f"due is {moment.isoformat()}: the clock of {zone} shows it never, or twice: give +01:00")
    return first


def _foreign(value: Any) -> list[tuple[str, bytes | None]]:
    """Return headers from an object of names and values, or its JSON."""
    if isinstance(value, str):
        try:
            value = json_fields(value)
        except InvalidRowError as wrong:
            raise InvalidRowError(f"headers are broken: {wrong}") from None
    if value is None:
        return []
    pairs = [*value.items()] if isinstance(value, Mapping) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and isinstance(pair[0], str) for pair in pairs):
        raise InvalidRowError("headers are not an object of names and values")
    return [(name, _bytes(each)) for name, each in pairs]


def is_export(columns: Sequence[str]) -> bool:
    return {*columns, "is_paused"} >= set(PENDING.names)


def older_partitions(exports: Mapping[str, Mapping[bytes, bytes]]) -> dict[str, list[TimerPartition]]:
    """Return for each export the partitions that another export has newer. If two are equal, the first counts.

    When a partition moves to another instance, the former owner keeps its old store. Timers in it were delivered or
    ended since, or are in the newer store too.
    exports: the metadata of each file. Raises UsageError if a file does not say how new it is.
    """
    found = {file: _stores(file, metadata) for file, metadata in exports.items()}
    newest: dict[TimerPartition, tuple[Age, str]] = {}
    for file, stores in found.items():
        for partition, age in stores.items():
            if partition not in newest or age > newest[partition][0]:
                newest[partition] = age, file
    return {file: [partition for partition in stores if newest[partition][1] != file] for file, stores in found.items()}


def _stores(file: str, metadata: Mapping[bytes, bytes]) -> dict[TimerPartition, Age]:
    try:
        stores = parse_stores(metadata)
    except ValueError as wrong:
        raise UsageError(f"{file}: {wrong}") from wrong
    if stores is None:
        raise UsageError(f"{file}: an older version wrote it, and it does not say how new it is: export it again")
    return stores
