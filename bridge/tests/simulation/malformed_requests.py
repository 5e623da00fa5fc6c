"""Records as anybody may write them: header sets drawn from what breaks parsers, in every spelling, and no word on what
they mean. For test_malformed_requests.py. request_generator.py draws requests of which the outcome is known.

    half    a request that is right in one of the spellings, then spoilt: a header doubled, dropped, renamed, its value
            null, empty, cut, no UTF-8, out of range, or another header's
    half    any names with any values
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

from kafka_timer.headers import CONTROL
from schemas.profiles import PROFILES

Header = tuple[str, bytes | None]


class Raw(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[Header]


TARGETS = (b"orders", b"orders", b"orders", b"bills", b"small", b"secret", b"nowhere")
_NAMES: Sequence[str] = (
    *sorted(CONTROL),
    *sorted(name for profile in PROFILES.values() for name in profile.control),
    *("", " ", "\0", "é", "\U0001f642", "trace", "traceparent"),
    *("Timer-Topic", "timer-topic ", "TIMER-DELAY-MS", "delay"),
    *("timer-error", "timer-error-detail", "timer-unheard-of", "x" * 300),
)
_IDS = (*(b"id-%d" % number for number in range(40)), b"\xff\x00", b"i" * 1024)
_JUNK: Sequence[bytes | None] = (
    *(None, None, b"", b" ", b"\0", b"\xff", b"\xff\xfe" * 30, "é".encode(), b"null", b"{}", b"[1]", b"%s", b"'; --"),
    *(b"+5", b"-5", b"-0", b"00", b"5.0", b"5e3", b"0x10", b"1_000", b" 5", b"5\n", b"5\0", b"\xd9\xa3"),
    *(b"NaN", b"inf"),
    *(b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"9" * 400),
    *(b"__consumer_offsets", b"timer.requests", b"timer.journal", b".", b"..", b"a/b", b"a b", b"x" * 250, b"orders\n"),
    *(b"schedule", b"cancel", b"replace", b"Cancel", b"ADD", b"CANCEL", b"REPLACE", b"tombstone", b"native", b"etf1"),
    *(b"timer.requests/0/0", b"timer.requests/0/-1", b"timer.requests/7/0", b"/0/1", b"1.0.0", b"2", b"+", b"a+b"),
    *(b"9999-12-31T23:59:59Z", b"0001-01-01T00:00:00Z", b"2026-13-01T00:00:00Z", b"2026-01-01T00:00:00+99:00"),
)


class RawRequests:
    """Draws them. `reach_ms`: right ones are due within this; `large`: how long a value now and then is, in bytes."""

    def __init__(self, rng: Random, reach_ms: int, large: int) -> None:
        self._rng = rng
        self._reach_ms = reach_ms
        self._large = large

    def draw(self, now_ms: int, copies: Sequence[Sequence[Header]]) -> Raw:
        """`copies`: headers of the bridge's own copies, which somebody may forge."""
        rng = self._rng
        key = rng.choice((None, b"", b"k", rng.choice(_IDS)))
        value = rng.choice((None, b"", b"v", b"value" * rng.randint(1, 20)))
        if rng.random() < 0.5:
            headers = [self._any() for _ in range(rng.choice((0, 1, 2, 3, 5, 8)))]
        else:
            key, headers = self._right(now_ms, key)
            if copies and rng.random() < 0.05:
                headers = list(rng.choice(copies))
            for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4))):
                self._spoil(headers)
        if rng.random() < 0.002:
            headers += [("many", b"%d" % number) for number in range(1000)]
        if rng.random() < 0.002:
            value = bytes(self._large)
        if headers and rng.random() < 0.002:
            at = rng.randrange(len(headers))
            headers[at] = (headers[at][0], b"\xff" * rng.choice((5000, self._large)))
        return Raw(key, value, headers)

    def _any(self) -> Header:
        rng = self._rng
        value = rng.choice((*_JUNK, rng.choice(TARGETS), rng.choice(_IDS), rng.randbytes(rng.randint(0, 12))))
        return rng.choice(_NAMES), value

    def _spoil(self, headers: list[Header]) -> None:
        rng = self._rng
        if not headers or rng.random() < 0.3:
            headers.insert(rng.randint(0, len(headers)), self._any())
            return
        at = rng.randrange(len(headers))
        name, value = headers[at]
        match rng.randrange(7):
            case 0:
                headers.insert(rng.randint(0, len(headers)), (name, value))
            case 1:
                del headers[at]
            case 2:
                headers[at] = rng.choice(_NAMES), value
            case 3:
                headers[at] = name, rng.choice(headers)[1]
            case 4:
                headers[at] = name, (value or b"")[: rng.randint(0, 5)]
            case 5:
                headers[at] = name, (value or b"") + rng.choice((b"\0", b"0", b"\xff", b" "))
            case _:
                headers[at] = name, rng.choice(_JUNK)

    def _right(self, now_ms: int, key: bytes | None) -> tuple[bytes | None, list[Header]]:
        rng = self._rng
        target, id_ = rng.choice(TARGETS), rng.choice(_IDS)
        due_ms = now_ms + rng.randint(-1000, self._reach_ms)
        due_s, iso = b"%d" % (due_ms // 1000 + 1), _iso(due_ms)
        match rng.randrange(10):
            case 0:
                time = rng.choice((("TIMER_DELIVER_MS", b"%d" % due_ms), ("TIMER_DELAY_SEC", b"2"), ("DELAY", b"1")))
                return key, self._perhaps([("REAL_TOPIC", target), time], ("UNIQ_KEY", id_), ("REAL_QID", b"0"))
            case 1:
                return key, [("TIMER_DEL_UNIQKEY", rng.choice((id_, target + b"+" + id_)))]
            case 2:
                return id_, self._perhaps(
                    [("scheduler-target-topic", target), ("scheduler-epoch", due_s)], ("scheduler-target-key", b"k")
                )
            case 3:
                action = rng.choice((b"ADD", b"REPLACE", b"CANCEL"))
                asked: list[Header] = [("x-scheduler-deliver-to", target), ("x-scheduler-deliver-at", iso)]
                return key, [*asked, ("x-scheduler-request-id", id_), ("x-scheduler-action", action)]
            case 4:
                asked = [("schedule_schema_version", b"1.0.0"), ("schedule_target_epoch", due_s)]
                kind = rng.choice((b"schedule", b"cancel"))
                return id_, [*asked, ("schedule_target_topic", target), ("schedule_source_type", kind)]
            case 5:
                return key, [("X-Timebridge-Where", target), ("X-Timebridge-When", iso)]
            case 6:
                return key, [("timer-action", b"cancel"), ("timer-id", id_)]
            case _:
                time = rng.choice(
                    (("timer-deliver-ms", b"%d" % due_ms), ("timer-delay-ms", b"500"), ("timer-delay-level", b"2"))
                )
                return key, self._perhaps(
                    [("timer-topic", target), time],
                    ("timer-id", id_),
                    ("timer-key", b"other"),
                    ("timer-partition", rng.choice((b"0", b"3"))),
                    ("timer-action", rng.choice((b"schedule", b"replace"))),
                )

    def _perhaps(self, asked: list[Header], *more: Header) -> list[Header]:
        found = asked + [header for header in more if self._rng.random() < 0.3]
        self._rng.shuffle(found)
        return found


def _iso(at_ms: int) -> bytes:
    whole_s, ms = divmod(at_ms, 1000)
    return datetime.fromtimestamp(whole_s, UTC).strftime(f"%Y-%m-%dT%H:%M:%S.{ms:03d}Z").encode()
