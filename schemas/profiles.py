"""Profiles: tables that translate other schedulers' headers into ours.

    REAL_TOPIC: orders      \\                      timer-topic: orders
    TIMER_DELAY_SEC: 5       >  rocketmq's table  ->  timer-delay-ms: 5000  ->  kafka_timer.headers.parse  ->  Schedule
    UNIQ_KEY: 7F00          /                      timer-id: 7F00

Which profile applies: docs/headers.md#headers-of-other-schedulers. `silent` headers select none. The native parser
reads the translated headers, so limits, targets and ids have one rule. A number or name that does not parse is
`bad-header`, also if another one of higher rank is present.

A translated request is stored with a first header of ours, `timer-profile`. A stored timer itself says which headers to
remove, whatever the settings are by then. A copy (a roll) is written in native headers.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum, member
from typing import NamedTuple

from kafka_timer import headers as native
from kafka_timer.headers import Asked, Cancel, Headers, RefusedError, Schedule, decimal, parse, shown
from kafka_timer.instants import parse_iso8601_ms
from schemas.rules import Rules

_RFC3339 = re.compile(r"[^T]{10}T[\d:]{8}(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


def parse_rfc3339_ms(text: str) -> int:
    """Parse an RFC 3339 instant from 1970 on. Raises ValueError."""
    if not _RFC3339.fullmatch(text):
        raise ValueError("not in RFC 3339 format")
    return parse_iso8601_ms(text)


NATIVE = "native"
DEFAULT_PROFILES = (NATIVE, "rocketmq")
"""Default of the setting `profiles`."""
Number = Callable[[str, bytes | None], int]
ProfileHeaders = Mapping[str, bytes | None]


def _seconds(name: str, value: bytes | None) -> int:
    return decimal(name, value, native.MAX_INT64 // 1000) * 1000


def _instant(parse_ms: Callable[[str], int], example: str) -> Number:
    def read_ms(name: str, value: bytes | None) -> int:
        try:
            return parse_ms((value or b"").decode("ascii"))
        except ValueError as wrong:
            raise RefusedError(f"{name} is {shown(value)}: {wrong}; send an instant such as {example}") from wrong

    return read_ms


class Unit(Enum):
    """Unit and format of a time header; the value is the function that returns the number for the native header."""

    NUMBER = member(decimal)
    SECONDS = member(_seconds)
    """Since 1970, or from now."""
    ISO8601 = member(_instant(parse_iso8601_ms, "2026-12-24T18:00:00+00:00"))
    RFC3339 = member(_instant(parse_rfc3339_ms, "2026-12-24T18:00:00Z"))


class Time(NamedTuple):
    header: str
    ours: str
    unit: Unit
    zero_yields: bool = False
    """0 counts only if no time header of lower rank is present."""


class Profile(NamedTuple):
    """One table. Names are those of the other scheduler's headers."""

    topic: str
    times: tuple[Time, ...]
    """Time headers by rank: the first one that is present counts."""
    partition: str | None = None
    id: str | None = None
    id_is_key: bool = False
    """The record's key is the id, and not the delivered record's key."""
    key: str | None = None
    """Header with the delivered record's key if the request's key is the id; absent: null key."""
    action: str | None = None
    actions: Mapping[bytes, bytes] = {}
    null_cancels: bool = False
    """A null value is a cancel, unless `action` says otherwise."""
    bare_null_cancels: bool = False
    """A null value without any header is a cancel, too."""
    cancels: str | None = None
    """Header of cancels only: the id, or the real topic and the id, joined by `+`."""
    versions: tuple[str, re.Pattern[bytes]] | None = None
    cron: str | None = None
    """Header with the cron expression of a recurring timer, in UTC."""
    missed: tuple[str, Mapping[bytes | None, bytes]] | None = None
    """Header for `timer-missed`, and its values; None: the header is absent."""
    unserved: frozenset[str] = frozenset()
    """Headers of features that we lack: a request with one is refused."""
    silent: frozenset[str] = frozenset()
    """Headers that do not select the profile."""

    @property
    def control(self) -> frozenset[str]:
        """Return every header of the table: removed before delivery."""
        named = (self.topic, self.partition, self.id, self.key, self.action, self.cancels)
        some = [each[0] for each in (self.versions, self.missed) if each is not None]
        return frozenset(filter(None, (*named, self.cron, *some, *(t.header for t in self.times)))) | self.unserved


PROFILES: Mapping[str, Profile] = {
    "rocketmq": Profile(
        topic="REAL_TOPIC",
        times=(
            Time("DELAY", native.DELAY_LEVEL, Unit.NUMBER, zero_yields=True),
            Time("TIMER_DELAY_SEC", native.DELAY_MS, Unit.SECONDS),
            Time("TIMER_DELAY_MS", native.DELAY_MS, Unit.NUMBER),
            Time("TIMER_DELIVER_MS", native.DELIVER_MS, Unit.NUMBER),
        ),
        partition="REAL_QID",
        id="UNIQ_KEY",
        cancels="TIMER_DEL_UNIQKEY",
        silent=frozenset({"UNIQ_KEY", "REAL_QID"}),
    ),
    "etf1": Profile(
        topic="scheduler-target-topic",
        times=(Time("scheduler-epoch", native.DELIVER_MS, Unit.SECONDS),),
        id_is_key=True,
        key="scheduler-target-key",
        null_cancels=True,
        bare_null_cancels=True,
    ),
    "kaspr": Profile(
        topic="x-scheduler-deliver-to",
        times=(Time("x-scheduler-deliver-at", native.DELIVER_MS, Unit.ISO8601),),
        id="x-scheduler-request-id",
        action="x-scheduler-action",
        actions={
            b"ADD": b"schedule",
            b"CANCEL": b"cancel",
            b"REPLACE": b"replace",
            b"CRON_ADD": b"schedule",
            b"CRON_CANCEL": b"cancel",
            b"CRON_PAUSE": b"pause",
            b"CRON_RESUME": b"resume",
        },
        cron="x-scheduler-cron-expr",
        missed=("x-scheduler-cron-missed-fire-policy", {None: b"all", b"replay": b"all", b"skip": b"none"}),
    ),
    "karafka": Profile(
        topic="schedule_target_topic",
        times=(Time("schedule_target_epoch", native.DELIVER_MS, Unit.SECONDS),),
        partition="schedule_target_partition",
        id_is_key=True,
        key="schedule_target_key",
        action="schedule_source_type",
        actions={b"schedule": b"schedule", b"cancel": b"cancel", b"tombstone": b"cancel"},
        null_cancels=True,
        versions=("schedule_schema_version", re.compile(rb"1(\.[0-9]{1,9}){0,2}")),
        unserved=frozenset({"schedule_target_partition_key"}),
    ),
    "timebridge": Profile(
        topic="X-Timebridge-Where", times=(Time("X-Timebridge-When", native.DELIVER_MS, Unit.RFC3339),)
    ),
}
RECURRING = frozenset(
    {native.CRON, native.EVERY_MS, *(profile.cron for profile in PROFILES.values() if profile.cron is not None)}
)
"""Headers of recurring timers: each has one of them."""
_CONTROL = {name: profile.control for name, profile in PROFILES.items()}
_MARKS = {name: profile.control - profile.silent for name, profile in PROFILES.items()}


def read(headers: Headers, timestamp_ms: int, rules: Rules, key: bytes | None, value: bytes | None) -> Asked:
    """Parse a record with native headers or those of a profile.

    Raises ValueError if `rules` name a profile of a later version. `parse` refuses a record without any header of ours,
    so profiles cost native requests nothing.
    """
    asked = parse(headers, timestamp_ms, rules)
    if not isinstance(asked, native.Refusal) or len(rules.profiles) < 2:
        return asked
    names = {name for name, _ in headers}
    if not native.CONTROL.isdisjoint(names) or (
        rules.passed_on is not None and native.unknown_name(names, rules.passed_on)
    ):
        return asked
    name = _select(names, rules.profiles, is_bare_null=key is not None and value is None)
    if name is None:
        return asked
    try:
        ours = _native_headers(PROFILES[name], native.once_each(headers, _CONTROL[name]), key, value)
    except RefusedError as wrong:
        return wrong.refusal
    asked = ours if isinstance(ours, Cancel) else parse(ours, timestamp_ms, rules)
    return asked._replace(profile=name) if isinstance(asked, Schedule) else asked


def _select(names: set[str], profiles: tuple[str, ...], *, is_bare_null: bool) -> str | None:
    theirs = [name for name in profiles if name != NATIVE]
    for name in theirs:
        if name not in PROFILES:
            raise ValueError(f"profile {name!r} is unknown to this version: start the version that wrote it")
        if not _MARKS[name].isdisjoint(names):
            return name
    bare = (name for name in theirs if is_bare_null and not names and PROFILES[name].bare_null_cancels)
    return next(bare, None)


def _native_headers(
    profile: Profile, owned: ProfileHeaders, key: bytes | None, value: bytes | None
) -> Cancel | list[tuple[str, bytes | None]]:
    """Return the request in our headers, or a cancel, which our headers cannot always express. Raises RefusedError."""
    if profile.cancels is not None and profile.cancels in owned:
        whole = _named(profile.cancels, owned)
        name, _, rest = whole.partition(b"+")  # separates topic and id, or belongs to the id, which is tried first
        target = native.legal_topic(name)
        return Cancel(whole, (target, rest) if target is not None and rest else None)
    action, id_ = _action(profile, owned, value), _id(profile, owned, key)
    if id_ is None and (profile.id_is_key or action != b"schedule"):
        raise RefusedError(f"send the id as {'the key' if profile.id_is_key else profile.id}", "missing-id")
    if action == b"cancel":
        assert id_ is not None
        return Cancel(id_)
    ours: list[tuple[str, bytes | None]] = []
    if action not in (b"pause", b"resume"):
        ours = _schedule(profile, owned)
    ours += [(native.ACTION, action)] if action != b"schedule" else []
    ours += [(native.ID, id_)] if id_ is not None else []
    return ours


def _action(profile: Profile, owned: ProfileHeaders, value: bytes | None) -> bytes:
    if profile.action is None or profile.action not in owned:
        return b"cancel" if profile.null_cancels and value is None else b"schedule"
    requested = owned[profile.action]
    known = profile.actions.get(requested or b"")
    if known is None:
        wanted = ", ".join(action.decode() for action in profile.actions)
        raise RefusedError(f"{profile.action} is {shown(requested)}: send one of {wanted}", "unknown-action")
    return known


def _id(profile: Profile, owned: ProfileHeaders, key: bytes | None) -> bytes | None:
    if profile.id_is_key:
        if key is not None and len(key) > native.MAX_ID_BYTES:
            raise RefusedError(f"the record's key, which is the id, is longer than {native.MAX_ID_BYTES} bytes")
        return key or None
    return _named(profile.id, owned) if profile.id is not None and profile.id in owned else None


def _named(header: str, owned: ProfileHeaders) -> bytes:
    id_ = owned[header]
    if not id_ or len(id_) > native.MAX_ID_BYTES:
        raise RefusedError(f"{header} is null, empty or longer than {native.MAX_ID_BYTES} bytes")
    return id_


def _schedule(profile: Profile, owned: ProfileHeaders) -> list[tuple[str, bytes | None]]:
    for header in sorted(profile.unserved & owned.keys()):
        raise RefusedError(f"{header} is not served: leave it out")
    if profile.versions is not None and profile.versions[0] in owned:
        header, versions = profile.versions
        if not versions.fullmatch(owned[header] or b""):
            raise RefusedError(f"{header} is {shown(owned[header])}, a version that is not known here")
    ours: list[tuple[str, bytes | None]] = []
    if profile.partition is not None and profile.partition in owned:
        ours.append((native.PARTITION, b"%d" % decimal(profile.partition, owned[profile.partition], native.MAX_INT32)))
    told = [(time, time.unit.value(time.header, owned[time.header])) for time in profile.times if time.header in owned]
    recurs = _recurrence(profile, owned)
    if not told and not recurs:
        raise RefusedError(f"send {' or '.join(time.header for time in profile.times)}", "missing-time")
    if profile.topic not in owned:
        raise RefusedError(f"send the target topic's name in {profile.topic}", "missing-topic")
    ours += [*recurs, (native.TOPIC, owned[profile.topic])]
    if told:
        time, number = next(((time, number) for time, number in told if number or not time.zero_yields), told[0])
        ours.append((time.ours, b"%d" % number))
    return ours


def _recurrence(profile: Profile, owned: ProfileHeaders) -> list[tuple[str, bytes | None]]:
    """Return the rule of a recurring timer in our headers; empty if there is none."""
    if profile.cron is None or profile.missed is None or owned.keys().isdisjoint({profile.cron, profile.missed[0]}):
        return []
    name, policies = profile.missed
    missed = policies.get(owned.get(name))
    if profile.cron not in owned or missed is None:
        raise RefusedError(f"{name} is {shown(owned.get(name))}: send {profile.cron}, and a policy that it knows")
    return [(native.CRON, owned[profile.cron]), (native.MISSED_POLICY, missed)]


def as_stored(headers: Headers, profile: str) -> Headers:
    """Return the headers as they are stored: after the name of the profile that parsed them, if any."""
    return [(native.PROFILE, profile.encode()), *headers] if profile else headers


def as_sent(stored: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    return stored[1:] if has_profile(stored) else stored


def has_profile(stored: list[tuple[str, bytes | None]]) -> bool:
    return bool(stored) and stored[0][0] == native.PROFILE


def has_time(stored: list[tuple[str, bytes | None]]) -> bool:
    """Return True if these stored headers of a profile give a time. A recurring timer needs none."""
    names = {name for name, _ in stored}
    return any(time.header in names for time in PROFILES[(stored[0][1] or b"").decode()].times)


def without_profile(stored: list[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return stored headers without those of their profile, and with the delivered record's key in `timer-key`."""
    if not has_profile(stored):
        return stored
    name = (stored[0][1] or b"").decode()
    control, profile = _CONTROL[name], PROFILES[name]
    kept = [(header, value) for header, value in stored[1:] if header not in control]
    kept += _recurrence(profile, dict(stored))
    return [*kept, (native.KEY, dict(stored).get(profile.key or ""))] if profile.id_is_key else kept
