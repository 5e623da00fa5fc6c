"""Headers of a request -> what it asks for, or why it is refused.

    timer-topic: orders          \\
    timer-delay-ms: 5000          >  parse(...)  ->  Schedule(target="orders", due_ms=timestamp + 5000, ...)
    tenant: a  (foreign, kept)   /
    timer-delay-ms: -5           ->  Refusal("bad-header", "timer-delay-ms ...")

    timer-action: cancel         ->  Cancel(id=...)
    timer-action: move           ->  Move(id=..., due_ms=...)
    timer-action: pause          ->  Move(id=..., due_ms="paused"), or Pause() if it names no timer
    timer-cron: 0 9 * * *        ->  Schedule(..., recurrence=Recurrence(cron="0 9 * * *")): delivered again and again
    timer-of: timers/3/812       ->  ByOrigin(...): the same for the timer of the request at this place, without an id
    timer-origin, timer-rolls    ->  Claim(...): claims to be the bridge's own copy; the journal decides

Rules, in order (design, "Headers"):
1. A header of ours that is duplicate, does not parse, or is null and may not be: `bad-header`, never "at once". Also a
   name that begins with `timer-` in any case and is not ours, and an absolute time that is in seconds or microseconds.
2. `timer-action` is schedule, cancel, replace, move, pause or resume (`unknown-action`). All but schedule need an id
   (`missing-id`), or `timer-of` except for replace; move needs a time too. pause and resume without a name parse, as
   older versions accepted them; intake refuses them.
3. Exactly one time header, else `missing-time` or `ambiguous-time`; later than `max_delay_ms`: `too-far`.
   cancel, pause and resume need none and ignore it, as the id alone names the timer.
   `timer-expire-ms` that is not after the due time: `bad-header`, as the timer could never be delivered.
   A recurring timer needs none: by `timer-cron` it is due when it is sent (its first occurrence is found then), by
   `timer-every-ms` after the first interval.
4. A target (`missing-topic`) that is a legal one (`bad-target`).

The same bytes and the same `Limits` must always give the same result: a rebuild reads old requests again.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from operator import methodcaller
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from kafka_timer.durations import duration_text
from kafka_timer.instants import MICROSECONDS_FROM, SECONDS_BELOW, other_unit
from kafka_timer.levels import DEFAULT_MS, delay_ms

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

TOPIC = "timer-topic"
DELIVER_MS = "timer-deliver-ms"
DELAY_MS = "timer-delay-ms"
DELAY_LEVEL = "timer-delay-level"
ID = "timer-id"
ACTION = "timer-action"
KEY = "timer-key"
PARTITION = "timer-partition"
ORIGIN = "timer-origin"
ROLLS = "timer-rolls"
RELEASED_MS = "timer-released-ms"
PROFILE = "timer-profile"  # only on stored requests: the profile that parsed them (schemas.profiles)
OF = "timer-of"
"""Names a timer by its origin, for a request about a timer without an id; else it is a foreign header."""
ERROR = "timer-error"
ERROR_DETAIL = "timer-error-detail"
LEFT = b"left at timer-origin"  # end of the detail of a rejected record without its headers
BARE = b", so key, value and headers are " + LEFT
"""End of the detail of a rejected record without key, value and headers."""

EXPIRE_MS = "timer-expire-ms"

CRON = "timer-cron"
EVERY_MS = "timer-every-ms"
ZONE = "timer-zone"
UNTIL_MS = "timer-until-ms"
COUNT = "timer-count"
MISSED_POLICY = "timer-missed"
RECURRENCE = (CRON, EVERY_MS, ZONE, UNTIL_MS, COUNT, MISSED_POLICY)
"""The rule of a recurring timer."""
OCCURRENCE = "timer-occurrence"
"""The number of an occurrence, from 1 on. The bridge writes it, on deliveries and copies."""
SCHEDULED_MS = "timer-scheduled-ms"
"""Only on copies of an occurrence that was moved: its time by the rule, from which the next one is found."""
LEAST_EVERY_MS = 1000
"""An occurrence is a delivery and a copy in one transaction. Shorter intervals could never be caught up with."""
MISSED = ("one", "all", "none")
LONGEST_RULE = 100  # bytes of a cron expression or a zone's name: longer ones only cost time

TRACE_ID = "timer-trace-id"
"""A foreign header, if a sender gives one: names its message end to end. Only the audit and the canary read it."""

MOVE = b"move"
Pausing: TypeAlias = Literal["paused", "resumed"]
_PAUSES: Mapping[bytes, Pausing] = {b"pause": "paused", b"resume": "resumed"}
EPOCHS = (DELIVER_MS, EXPIRE_MS, UNTIL_MS)  # absolute times
TIMES = (DELIVER_MS, DELAY_MS, DELAY_LEVEL)
_WRITTEN_BY_US = (PROFILE, OCCURRENCE, SCHEDULED_MS)
_SENT = frozenset({TOPIC, *TIMES, EXPIRE_MS, ID, ACTION, KEY, PARTITION, *RECURRENCE})
CONTROL = _SENT | {ORIGIN, ROLLS, RELEASED_MS, *_WRITTEN_BY_US}
"""Removed before delivery. Every other header is foreign and kept, in order, with duplicates."""

KNOWN = CONTROL | {OF, TRACE_ID, ERROR, ERROR_DETAIL, "timer-retries", "timer-retry-group", "timer-retry-of"}
"""All names that begin with `timer-` and have a meaning: a delivered or rejected record may be sent again with them."""
PREFIX = "timer-"
_SUGGESTED = sorted((*_SENT, OF))
PAUSED_MS = 10**15
"""A paused timer is due at this plus its due time: in the year 33658. It is above every due time of a sender."""

_RARE = CONTROL - {TOPIC, DELIVER_MS, DELAY_MS, ID}
"""A request without any of these takes the fast path."""

MAX_DELAY_MS = 366 * 86_400_000  # default of the setting `max_delay`
MAX_INT64 = 2**63 - 1
SAFE_DIGITS = 18  # a number with at most this many decimal digits is below 2^63
MAX_INT32 = 2**31 - 1
MAX_ID_BYTES = 1024
_SHOWN = 60
"""Characters of a sender's text: the detail of a refusal is stored beside the request, so it must be short."""
_LEGAL_TOPIC = re.compile(rb"[A-Za-z0-9._-]+")
_LONGEST_TOPIC = 249
UNREADABLE_HEADERS: Headers = ((DELIVER_MS, b"a header's name is no UTF-8"),)
"""Replaces headers that the client library cannot decode. Parsing it gives `bad-header` with this reason."""
_headers_of_message = methodcaller("headers")


def decoded_headers(message: Any) -> Headers:
    """Return the headers of a confluent_kafka.Message; UNREADABLE_HEADERS if a name is no UTF-8.

    For such a name the client library returns a list with a hole and leaves an error set. A direct call does not see
    the error once CPython has specialised it, and the next call fails instead. methodcaller always sees it. Reading the
    hole ends the process, so the message keeps the replacement.
    """
    try:
        return _headers_of_message(message) or ()
    except (SystemError, UnicodeDecodeError):
        message.set_headers(UNREADABLE_HEADERS)
        return UNREADABLE_HEADERS


class Limits(Protocol):
    """The bridge's settings that decide how a request is parsed.

    own_topics: the bridge's own ones, which are never targets. passed_on: the foreign names that may begin with
    `timer-`; None: any may, and units of times are not checked.
    """

    @property
    def max_delay_ms(self) -> int: ...
    @property
    def levels_ms(self) -> tuple[int, ...]: ...
    @property
    def own_topics(self) -> frozenset[str]: ...
    @property
    def passed_on(self) -> frozenset[str] | None: ...


class FixedLimits(NamedTuple):
    """Limits of a sender, which does not know the bridge's settings: by default there are none."""

    max_delay_ms: int = MAX_INT64
    levels_ms: tuple[int, ...] = DEFAULT_MS
    own_topics: frozenset[str] = frozenset()
    passed_on: frozenset[str] | None = frozenset()


class Recurrence(NamedTuple):
    """The rule of a recurring timer: `cron` in `zone`, or `every_ms` (0: by cron). Times are epoch ms.

    Only its form is checked here; schemas.recurrence finds the times. most: occurrences that are delivered at most.
    needs_first: True if the request gives no time, so that its first occurrence is by `cron`.
    """

    cron: str = ""
    every_ms: int = 0
    zone: str = "UTC"
    until_ms: int = MAX_INT64
    most: int = MAX_INT64
    missed: str = MISSED[0]
    needs_first: bool = False


class Schedule(NamedTuple):
    """Deliver the record to `target` at or after `due_ms` (epoch ms).

    partition: -1 if the partitioner chooses. id: ends the timer that is pending under it. replaces: True if the sender
    expects such a timer. profile: the table that parsed the request; empty for native headers. recurrence: None if it
    is delivered once, and for copies.
    """

    target: str
    due_ms: int
    partition: int
    id: bytes | None = None
    replaces: bool = False
    profile: str = ""
    recurrence: Recurrence | None = None


class Cancel(NamedTuple):
    """End the timer that is pending under `id`.

    fallback: a real topic and an id; if no timer is pending under `id`, end the one under that id for that topic.
    """

    id: bytes
    fallback: tuple[str, bytes] | None = None


class Move(NamedTuple):
    """Make the timer that is pending under `id` due at `due_ms`, or pause or resume it."""

    id: bytes
    due_ms: int | Pausing


class ByOrigin(NamedTuple):
    """As `Move`, for the timer of the request at `origin` (topic/partition/offset). due_ms: None cancels it."""

    origin: bytes
    due_ms: int | Pausing | None


class Pause(NamedTuple):
    """Pause or resume a real topic: older versions read this from timer topics. See kafka_timer.control."""


class Claim(NamedTuple):
    """A record that claims to be the `rolls`-th copy of the request at `origin` (topic/partition/offset)."""

    origin: bytes
    rolls: int
    schedule: Schedule


class Refusal(NamedTuple):
    """An invalid request: a stable `code` for programs and a `detail` for people."""

    code: str
    detail: str


NOT_OURS = Refusal(
    "not-ours",
    f"{ORIGIN} and {ROLLS} are written by the bridge alone; to send a delivered record again, leave out its headers"
    f" {ORIGIN}, {DELIVER_MS}, {RELEASED_MS} and {ROLLS}",
)


_new_tuple = tuple.__new__
"""Makes a NamedTuple from its fields in order, in a third of the time of its constructor."""


class RefusedError(ValueError):
    """An invalid request. `bad-header`: a header is not in its form, such as a plain decimal number in range."""

    def __init__(self, detail: str, code: str = "bad-header") -> None:
        super().__init__(detail)
        self.refusal = Refusal(code, detail)


Asked: TypeAlias = Schedule | Cancel | Move | ByOrigin | Pause | Claim | Refusal


def parse(headers: Headers, timestamp_ms: int, limits: Limits) -> Asked:
    """Parse the headers of a record that was appended at `timestamp_ms` (the broker's clock)."""
    by_name = dict(headers)
    if len(by_name) == len(headers) and _RARE.isdisjoint(by_name):
        return _parse_fast(by_name, timestamp_ms, limits) or _parse_by_rules(headers, timestamp_ms, limits)
    return _parse_by_rules(headers, timestamp_ms, limits)


def _parse_fast(by_name: dict[str, bytes | None], timestamp_ms: int, limits: Limits) -> Schedule | None:
    """Parse the usual request: topic, one time, perhaps an id. Return None if the other rules may apply."""
    time, base_ms = by_name.get(DELIVER_MS), 0
    if DELAY_MS in by_name:
        if DELIVER_MS in by_name:
            return None
        time, base_ms = by_name[DELAY_MS], timestamp_ms
    if time is None or not time.isdigit() or len(time) > SAFE_DIGITS:
        return None
    id_ = by_name.get(ID)
    if ID in by_name and (id_ is None or not 0 < len(id_) <= MAX_ID_BYTES):
        return None
    due_ms = base_ms + int(time)
    target = legal_topic(by_name.get(TOPIC))
    if target is None or target in limits.own_topics or due_ms - timestamp_ms > limits.max_delay_ms:
        return None
    if limits.passed_on is not None and (
        not SECONDS_BELOW <= due_ms < MICROSECONDS_FROM or unknown_name(by_name, limits.passed_on) is not None
    ):
        return None
    return _new_tuple(Schedule, (target, due_ms, -1, id_, False, "", None))


def _parse_by_rules(headers: Headers, timestamp_ms: int, limits: Limits) -> Asked:
    try:
        ours = once_each(headers, CONTROL)
        if ORIGIN in ours or ROLLS in ours:
            return _claim(ours)
        unknown = None if limits.passed_on is None else unknown_name((name for name, _ in headers), limits.passed_on)
        if unknown is not None:
            raise RefusedError(_unknown_header(unknown[: _SHOWN + 1]))
        if ID in ours or ACTION in ours:
            return _with_id(headers, ours, timestamp_ms, limits)
        return _schedule(ours, timestamp_ms, limits, None)
    except RefusedError as wrong:
        return wrong.refusal


def unknown_name(names: Iterable[str], passed_on: frozenset[str]) -> str | None:
    """Return the first name that begins with `timer-`, in any case, and neither has a meaning nor is in `passed_on`."""
    for name in names:
        if name not in KNOWN and name[:6].lower() == PREFIX and name not in passed_on:
            return name
    return None


@lru_cache(maxsize=1024)
def _unknown_header(beginning: str) -> str:
    near = get_close_matches(beginning.lower(), _SUGGESTED, n=1)
    remedy = f"did you mean {near[0]}? Otherwise rename it" if near else "rename it"
    return f"the header {shown(beginning)} is none of the bridge's: {remedy}, or have passed_headers allow it"


def once_each(headers: Headers, names: Collection[str]) -> dict[str, bytes | None]:
    """Return the headers of these names. Raises RefusedError if one is there twice."""
    found: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in names:
            if name in found:
                raise RefusedError(f"duplicate {name}: send it once")
            found[name] = value
    return found


def _with_id(headers: Headers, ours: dict[str, bytes | None], timestamp_ms: int, limits: Limits) -> Asked:
    action = ours.get(ACTION, b"schedule")
    if action not in (b"schedule", b"cancel", b"replace", MOVE, *_PAUSES):
        wanted = "schedule, cancel, replace, move, pause or resume"
        raise RefusedError(f"{ACTION} is {shown(action)}: send {wanted}", "unknown-action")
    id_ = ours.get(ID)
    if ID in ours and not 0 < len(id_ or b"") <= MAX_ID_BYTES:
        raise RefusedError(f"{ID} is null, empty or longer than {MAX_ID_BYTES} bytes")
    if action in (b"schedule", b"replace"):
        if id_ is None and action == b"replace":
            raise RefusedError(f"replace needs the {ID} of a timer", "missing-id")
        schedule = _schedule(ours, timestamp_ms, limits, id_)
        return schedule._replace(replaces=True) if action == b"replace" else schedule
    if action in _PAUSES and id_ is None and all(name != OF for name, _ in headers):
        return Pause()
    place = _place(headers, action) if id_ is None else b""
    due_ms: int | Pausing | None = _PAUSES.get(action or b"")
    if action == MOVE:
        due_ms = _near(_due_ms(ours, timestamp_ms, limits), timestamp_ms, limits)
    if id_ is None:
        return ByOrigin(place, due_ms)
    return Cancel(id_) if due_ms is None else Move(id_, due_ms)


def _place(headers: Headers, action: bytes) -> bytes:
    """Return the origin of the timer of a request about a timer without an id."""
    named = [value for name, value in headers if name == OF]
    if not named:
        raise RefusedError(f"{action.decode()} needs the {ID} of a timer", "missing-id")
    if len(named) > 1 or not named[0]:
        raise RefusedError(f"{OF} is null, empty or there twice: send topic/partition/offset once")
    return named[0]


def _near(due_ms: int, timestamp_ms: int, limits: Limits) -> int:
    """Return `due_ms`. Raises RefusedError if it is beyond the longest delay."""
    if (ahead_ms := due_ms - timestamp_ms) > limits.max_delay_ms:
        raise RefusedError(
            f"due {duration_text(ahead_ms)} ahead; max_delay is {duration_text(limits.max_delay_ms)}", "too-far"
        )
    return due_ms


def _claim(ours: dict[str, bytes | None]) -> Claim | Refusal:
    """Parse a copy. It has an absolute due time; limits do not apply, as the first request was within them."""
    origin, target = ours.get(ORIGIN), legal_topic(ours.get(TOPIC))
    try:
        partition = decimal(PARTITION, ours[PARTITION], MAX_INT32) if PARTITION in ours else -1
        due_ms, rolls = decimal(DELIVER_MS, ours.get(DELIVER_MS)), decimal(ROLLS, ours.get(ROLLS), MAX_INT32)
    except RefusedError:
        return NOT_OURS
    if not origin or target is None:
        return NOT_OURS
    return Claim(origin, rolls, Schedule(target, due_ms, partition, ours.get(ID)))


def _schedule(ours: dict[str, bytes | None], timestamp_ms: int, limits: Limits, id_: bytes | None) -> Schedule:
    partition = decimal(PARTITION, ours[PARTITION], MAX_INT32) if PARTITION in ours else -1
    for name in _WRITTEN_BY_US:
        if name in ours:
            raise RefusedError(f"{name} is written by the bridge alone: leave it out")
    if KEY in ours and ours[KEY] is None:
        raise RefusedError(f"{KEY} is null: give the delivered record's key, or leave the header out")
    for name in (EXPIRE_MS, UNTIL_MS):
        if name in ours:
            _require_ms(name, decimal(name, ours[name]), limits)
    recurrence = recurrence_of(ours)
    if recurrence is not None and not any(name in ours for name in TIMES):
        due_ms = timestamp_ms + recurrence.every_ms
    else:
        due_ms = _due_ms(ours, timestamp_ms, limits)
    if EXPIRE_MS in ours and decimal(EXPIRE_MS, ours[EXPIRE_MS]) <= due_ms:
        raise RefusedError(f"{EXPIRE_MS} is not after the due time {due_ms}: it could never be delivered")
    _near(due_ms, timestamp_ms, limits)
    if TOPIC not in ours:
        raise RefusedError(f"send the target topic's name in {TOPIC}", "missing-topic")
    target = legal_topic(ours[TOPIC])
    if target is None or target in limits.own_topics:
        why = "the bridge's own topic" if target else "internal, or no legal topic name"
        raise RefusedError(f"{TOPIC} is {shown(ours[TOPIC])}, which is {why}: send a target topic's name", "bad-target")
    return Schedule(target, due_ms, partition, id_, recurrence=recurrence)


def recurrence_of(ours: Mapping[str, bytes | None]) -> Recurrence | None:
    """Return the rule in native headers; None if they have none. Raises RefusedError.

    An expiry ends the series too, as nothing that is due later could be delivered.
    """
    if all(name not in ours for name in RECURRENCE):
        return None
    if (CRON in ours) == (EVERY_MS in ours):
        raise RefusedError(f"a recurring timer has {CRON} or {EVERY_MS}: send one of them, once")
    every_ms = decimal(EVERY_MS, ours[EVERY_MS]) if EVERY_MS in ours else 0
    if EVERY_MS in ours and (every_ms < LEAST_EVERY_MS or ZONE in ours):
        raise RefusedError(f"{EVERY_MS} is {every_ms}: send at least {LEAST_EVERY_MS}, without {ZONE}")
    cron = " ".join(_rule_text(CRON, ours[CRON]).split()) if CRON in ours else ""
    if CRON in ours and cron.count(" ") != 4:
        raise RefusedError(f"{CRON} is {shown(cron)}: send five fields, such as 0 9 * * MON-FRI")
    count = decimal(COUNT, ours[COUNT]) if COUNT in ours else MAX_INT64
    until_ms = decimal(UNTIL_MS, ours[UNTIL_MS]) if UNTIL_MS in ours else MAX_INT64
    if EXPIRE_MS in ours:
        until_ms = min(until_ms, decimal(EXPIRE_MS, ours[EXPIRE_MS]) - 1)
    missed = _rule_text(MISSED_POLICY, ours[MISSED_POLICY]) if MISSED_POLICY in ours else MISSED[0]
    if not count or missed not in MISSED:
        raise RefusedError(f"{COUNT} is 0, or {MISSED_POLICY} is not one of {', '.join(MISSED)}: correct it")
    zone = _rule_text(ZONE, ours[ZONE]) if ZONE in ours else "UTC"
    needs_first = bool(cron) and not any(name in ours for name in TIMES)
    return Recurrence(cron, every_ms, zone, until_ms, count, missed, needs_first)


def _rule_text(name: str, value: bytes | None) -> str:
    if not value or len(value) > LONGEST_RULE or not value.isascii() or not value.decode().isprintable():
        raise RefusedError(f"{name} is {shown(value)}: send 1 to {LONGEST_RULE} printable ASCII characters")
    return value.decode()


def _due_ms(ours: dict[str, bytes | None], timestamp_ms: int, limits: Limits) -> int:
    numbers = {name: decimal(name, ours[name]) for name in TIMES if name in ours}
    if len(numbers) > 1:
        raise RefusedError(f"{' and '.join(numbers)} are both present: send one of them", "ambiguous-time")
    for name, number in numbers.items():
        if name == DELIVER_MS:
            return _require_ms(name, number, limits)
        return timestamp_ms + (number if name == DELAY_MS else delay_ms(number, limits.levels_ms))
    raise RefusedError(f"send {DELIVER_MS} (epoch ms), {DELAY_MS} or {DELAY_LEVEL}", "missing-time")


def _require_ms(name: str, number: int, limits: Limits) -> int:
    """Return an absolute time. Raises RefusedError if it looks like another unit (not by an older version's rules)."""
    if limits.passed_on is not None and (unit := other_unit(number)):
        raise RefusedError(f"{name} is {number}, which looks like {unit}: send milliseconds since 1970")
    return number


def decimal(name: str, value: bytes | None, largest: int = MAX_INT64) -> int:
    """Parse ASCII digits, 0..largest. Raises RefusedError with the header's name and the remedy."""
    if value is None or not value.isdigit() or len(value) > 19 or (number := int(value)) > largest:
        raise RefusedError(f"{name} is {shown(value)}: send plain decimal digits, 0 to {largest}")
    return number


def shown(value: bytes | str | None) -> str:
    """Return null, the text in quotes, or hex if it is not printable; at most 60 characters of it."""
    if value is None:
        return "null"
    raw = value[: 5 * _SHOWN].encode() if isinstance(value, str) else value[: 5 * _SHOWN]
    text = raw.decode(errors="replace")[: _SHOWN + 1]
    if text.isprintable() and "\ufffd" not in text:
        return f'"{text[:_SHOWN]}..."' if len(text) > _SHOWN else f'"{text}"'
    digits = f"0x{raw.hex()}"
    return f"{digits[:_SHOWN]}..." if len(digits) > _SHOWN else digits


def legal_topic(raw: bytes | None) -> str | None:
    """Return a legal topic name that is not internal (Kafka's rule for names); else None."""
    return None if raw is None or len(raw) > _LONGEST_TOPIC else _legal_topic(raw)


@lru_cache(maxsize=65_536)
def _legal_topic(raw: bytes) -> str | None:
    if not _LEGAL_TOPIC.fullmatch(raw) or raw in (b".", b"..") or raw.startswith(b"__"):
        return None
    return raw.decode("ascii")
