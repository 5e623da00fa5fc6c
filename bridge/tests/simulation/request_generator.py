"""Requests at random, each with what must become of it; told by the one who makes it, not by the bridge's own parser.

Wish(target="orders", delay_ms=120, may={"delivered"})      -> once on orders, at or after its timestamp + 120
Wish(may={"missing-time"})                                  -> once on timer.rejected, with that code
Wish(target="nowhere", may={"delivered", "unknown-topic"})  -> one of the two: the topic may appear meanwhile
Wish(id=b"id-1", action="cancel")                           -> ends what is pending under the id; told, never delivered
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

Header = tuple[str, bytes | None]

DELIVERED = "delivered"
EXPIRED = "expired"
TIMERS, MORE_TIMERS = "timer.requests", "timer.more"
ORDERS, BILLS, NOWHERE, SECRET, SMALL = "orders", "bills", "nowhere", "secret", "small"
ORDERS_PARTITIONS = 3
SMALL_BYTES = 300

_SOON: Header = ("timer-delay-ms", b"20")
_TO_ORDERS: Header = ("timer-topic", b"orders")
_ID: Header = ("timer-id", b"id-0")
_ORIGIN: Header = ("timer-origin", b"timer.requests/0/0")
_COPY: Sequence[Header] = (_TO_ORDERS, ("timer-deliver-ms", b"1000500"))
MALFORMED: tuple[tuple[str, Sequence[Header]], ...] = (
    ("bad-header", [_TO_ORDERS, ("timer-delay-ms", b"-5")]),
    ("bad-header", [_TO_ORDERS, ("timer-delay-ms", b"")]),
    ("bad-header", [_TO_ORDERS, ("timer-deliver-ms", None)]),
    ("bad-header", [_TO_ORDERS, _TO_ORDERS, _SOON]),
    ("bad-header", [_TO_ORDERS, _SOON, ("timer-key", None)]),
    ("bad-header", [_TO_ORDERS, _SOON, ("timer-partition", b"one")]),
    ("bad-header", [_TO_ORDERS, ("timer-delay-level", b"1.5")]),
    ("bad-header", [_TO_ORDERS, _SOON, ("timer-id", None)]),
    ("bad-header", [_TO_ORDERS, _SOON, ("timer-id", b"")]),
    ("bad-header", [_TO_ORDERS, _SOON, ("timer-id", b"i" * 1025)]),
    ("bad-header", [_TO_ORDERS, _SOON, _ID, _ID]),
    ("bad-header", [_ID, ("timer-action", b"cancel"), ("timer-action", b"cancel")]),
    ("unknown-action", [_TO_ORDERS, _SOON, _ID, ("timer-action", b"Cancel")]),
    ("unknown-action", [_TO_ORDERS, _SOON, _ID, ("timer-action", None)]),
    ("missing-id", [_TO_ORDERS, _SOON, ("timer-action", b"replace")]),
    ("missing-id", [("timer-action", b"cancel")]),
    ("missing-id", [("timer-action", b"move"), _SOON]),
    ("missing-time", [("timer-action", b"move"), _ID]),
    ("ambiguous-time", [("timer-action", b"move"), _ID, _SOON, ("timer-delay-level", b"1")]),
    ("not-ours", [_TO_ORDERS, _SOON, _ORIGIN]),
    ("not-ours", [_TO_ORDERS, _SOON, ("timer-rolls", b"1")]),
    ("not-ours", [_TO_ORDERS, _SOON, _ORIGIN, ("timer-rolls", b"1")]),
    ("not-ours", [*_COPY, _ORIGIN, ("timer-rolls", None)]),
    ("not-ours", [*_COPY, _ORIGIN, ("timer-rolls", b"-1")]),
    ("not-ours", [*_COPY, _ORIGIN, ("timer-rolls", b"99999999999999999999")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", None)]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"\xff/0/0")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"timer.requests/0/-1")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"timer.requests/0/1_0")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"timer.requests/0/99999999999999999999")]),
    ("not-ours", [*_COPY, ("timer-rolls", b"1"), ("timer-origin", b"timer.requests/7/0")]),
    ("not-ours", [("timer-rolls", b"1"), _ORIGIN, _SOON]),
    ("missing-time", [_TO_ORDERS]),
    ("missing-time", []),
    ("ambiguous-time", [_TO_ORDERS, _SOON, ("timer-deliver-ms", b"5")]),
    ("too-far", [_TO_ORDERS, ("timer-deliver-ms", b"9223372036854775807")]),
    ("missing-topic", [_SOON]),
    ("bad-target", [_SOON, ("timer-topic", b"__consumer_offsets")]),
    ("bad-target", [_SOON, ("timer-topic", b"a b")]),
    ("denied-action", [("timer-action", b"pause"), _TO_ORDERS]),
    ("denied-action", [("timer-action", b"resume"), _ID]),
    ("bad-target", [_SOON, ("timer-topic", TIMERS.encode())]),
    ("bad-target", [_SOON, ("timer-topic", MORE_TIMERS.encode())]),
)
MALFORMED_RULES: tuple[tuple[str, Sequence[Header]], ...] = (
    ("bad-header", [_TO_ORDERS, ("timer-cron", b"* * * *")]),
    ("bad-header", [_TO_ORDERS, ("timer-cron", b"61 * * * *")]),
    ("bad-header", [_TO_ORDERS, ("timer-cron", b"* * * * *"), ("timer-every-ms", b"100")]),
    ("bad-header", [_TO_ORDERS, ("timer-cron", b"* * * * *"), ("timer-zone", b"Nowhere")]),
    ("bad-header", [_TO_ORDERS, ("timer-every-ms", b"100"), ("timer-occurrence", b"2")]),
    ("bad-header", [_TO_ORDERS, ("timer-every-ms", b"100"), ("timer-scheduled-ms", b"2")]),
    ("bad-header", [_TO_ORDERS, ("timer-every-ms", b"100"), ("timer-missed", b"some")]),
    ("missing-topic", [("timer-every-ms", b"100")]),
)
MALFORMED_BY_ORIGIN: tuple[tuple[str, Sequence[Header]], ...] = (
    ("missing-id", [_TO_ORDERS, _SOON, ("timer-action", b"replace"), ("timer-of", b"timer.requests/0/0")]),
    ("bad-header", [("timer-action", b"cancel"), ("timer-of", None)]),
    ("bad-header", [("timer-action", b"cancel"), ("timer-of", b"timer.requests/99/0")]),
    ("bad-header", [("timer-action", b"move"), _SOON, ("timer-of", b"timer.requests/0/00")]),
    ("missing-time", [("timer-action", b"move"), ("timer-of", b"timer.requests/0/0")]),
)
FOREIGN: tuple[Header, ...] = (
    ("trace", b"1"),
    ("trace", b"1"),
    ("tenant", b""),
    ("none", None),
    ("raw", b"\xff\xfe\x00"),
    ("Timer-Topic", b"bills"),
    ("timer-unheard-of", b"5"),
)
VALUES: tuple[bytes | None, ...] = (None, b"", b"v", b"value " * 20)
KEYS: tuple[bytes | None, ...] = (None, b"", b"k1", b"k2")
SCHEDULE, REPLACE, CANCEL = "schedule", "replace", "cancel"
MOVE, PAUSE, RESUME = "move", "pause", "resume"
PAUSED, RESUMED = "paused", "resumed"
"""Actions on one timer, by the kinds of their receipts. PAUSE and RESUME are an operator's, on a target."""
TIMES = ("timer-deliver-ms", "timer-delay-ms", "timer-delay-level")
RULE = ("timer-cron", "timer-every-ms", "timer-zone", "timer-until-ms", "timer-count", "timer-missed")
CRON_UNIT_MS = 10
"""The simulation's cron: `*/5` means each 50 ms, counted from 1970, as no history lasts for minutes."""
MOST_OCCURRENCES = 8
ENDLESS_MS = 2**63 - 1


@dataclass(slots=True)
class Series:
    """The rule of a recurring timer: at multiples of `step_ms` (is_cron), or so long after each other."""

    step_ms: int
    is_cron: bool
    starts_itself: bool
    """No time is given: the first one is by the rule."""
    missed: str = "one"
    until_ms: int = ENDLESS_MS
    most: int = ENDLESS_MS

    def after(self, scheduled_ms: int, after_ms: int) -> int | None:
        """Return the first time of the rule after `after_ms`; None if the series is over by then."""
        base_ms = 0 if self.is_cron else scheduled_ms
        beyond_ms = max(scheduled_ms, after_ms) - base_ms
        found_ms = base_ms + (beyond_ms // self.step_ms + 1) * self.step_ms
        return found_ms if found_ms <= self.until_ms else None


@dataclass(slots=True)
class Wish:
    """A record for the timer topic, and what may become of it: `delivered`, or a code on the rejected topic.

    Due at `deliver_ms`, else so much behind its timestamp as `level` says, else `delay_ms`. From `expire_ms` on it may
    only be `expired`.
    """

    may: frozenset[str]
    key: bytes | None
    value: bytes | None
    foreign: list[Header]
    control: list[Header]
    target: str = ""
    deliver_ms: int | None = None
    delay_ms: int = 0
    partition: int = -1
    delivered_key: bytes | None = None
    id: bytes | None = None
    of: int | None = None
    """Offset of the request whose timer is named by its origin."""
    action: str = SCHEDULE
    level: int | None = None
    expire_ms: int | None = None
    series: Series | None = None
    headers: list[Header] = field(default_factory=list)

    def due_ms(self, timestamp_ms: int, levels_ms: Sequence[int]) -> int:
        if self.deliver_ms is not None:
            return self.deliver_ms
        if self.level is None:
            return timestamp_ms + self.delay_ms
        return timestamp_ms + (0, *levels_ms)[min(self.level, len(levels_ms))]

    def copy_headers(
        self, due_ms: int, origin: str, rolls: int, number: int = 1, scheduled_ms: int | None = None
    ) -> list[Header]:
        """Those of its `rolls`-th copy: the time made absolute, its origin told; if it recurs, its number too."""
        headers = self.absolute_headers(due_ms)
        if self.series is not None:
            headers.append(("timer-occurrence", b"%d" % number))
            if scheduled_ms not in (None, due_ms):
                headers.append(("timer-scheduled-ms", b"%d" % scheduled_ms))
        return [*headers, ("timer-origin", origin.encode()), ("timer-rolls", b"%d" % rolls)]

    def absolute_headers(self, due_ms: int) -> list[Header]:
        absolute = ("timer-deliver-ms", b"%d" % due_ms)
        headers = [absolute if name in TIMES else (name, value) for name, value in self.headers]
        return headers if absolute in headers else [*headers, absolute]

    def occurrence_headers(self, due_ms: int, number: int) -> list[Header]:
        """Those of the rejected record of an occurrence: a request for it alone."""
        headers = [header for header in self.absolute_headers(due_ms) if header[0] not in RULE]
        return [*headers, ("timer-occurrence", b"%d" % number)]


class Wishes:
    """Draws them. `reach_ms`: how far ahead they are due; some further, so that they are refused."""

    def __init__(self, rng: Random, reach_ms: int) -> None:
        self._rng = rng
        self._crowd_ms = rng.choice((50, 100, 400))
        """Absolute times are often multiples of this, so that many are due in the same ms."""
        self._ids = [b"id-%d" % number for number in range(rng.choice((1, 2, 5, 20)))]
        self._ids[-1] = rng.choice((self._ids[-1], b"\xff\x00 id"))
        near = (-1000, -50, 0, 1, 10, 30, 100, 300, reach_ms, reach_ms * 3 // 2, reach_ms * 2)
        self._aheads_ms = rng.choice((near, (-50, 0, 30, reach_ms // 2, reach_ms, reach_ms, reach_ms * 3 // 2)))
        self._pause_chance = rng.choice((0.0, 0.0, 0.03, 0.1))
        self._expiry_chance = rng.choice((0.0, 0.0, 0.2))
        self._id_chance = rng.choice((0.0, 0.3, 0.6, 0.9))
        self._move_chance = rng.choice((0.05, 0.1, 0.3)) if self._id_chance else 0.0
        self._cancel_chance = rng.choice((0.05, 0.2, 0.4)) if self._id_chance else 0.0

    def draw(self, now_ms: int) -> Wish:
        drawn = self._rng.random()
        if self._pause_chance and self._rng.random() < self._pause_chance:
            wish = self._pause(self._rng.choice((ORDERS, ORDERS, BILLS)), self._rng.choice((PAUSE, RESUME)))
        elif self._move_chance and self._rng.random() < self._move_chance:
            wish = self._move_of(self._rng.choice(self._ids), now_ms)
        elif drawn < 0.1:
            wish = self._malformed()
        else:
            wish = self._cancel() if drawn < 0.1 + 0.9 * self._cancel_chance else self._schedule(now_ms)
        return self._told(wish)

    def _malformed(self) -> Wish:
        code, control = self._rng.choice(MALFORMED)
        wish = self._wish({code}, list(control))
        if code != "missing-id" and "timer-id" not in dict(control) and self._rng.random() < 0.5:
            wish.control.append(("timer-id", self._rng.choice(self._ids)))  # a bad request changes nothing
        if code == "denied-action" and "timer-id" in dict(wish.control):
            wish.may, wish.id = frozenset(), dict(wish.control)["timer-id"]
            wish.action = PAUSED if ("timer-action", b"pause") in wish.control else RESUMED
        return wish

    def _cancel(self) -> Wish:
        """Of anything: what is pending, delivered, on its way, never heard of. Its other headers are not looked at."""
        wish = self.cancel_of(self._rng.choice(self._ids))
        if self._rng.random() < 0.2:
            others: Sequence[Header] = (_SOON, _TO_ORDERS, ("timer-delay-ms", b"junk"), ("timer-topic", None))
            wish.control.append(self._rng.choice(others))
        return wish

    def _move_of(self, id_: bytes, now_ms: int) -> Wish:
        wish = self._wish(set(), [("timer-action", b"move"), ("timer-id", id_)])
        wish.action, wish.id = MOVE, id_
        self._set_time(wish, now_ms)
        return _switched(wish)

    def _pause(self, target: str, action: str) -> Wish:
        """Not a request, but what an operator writes to the control topic."""
        wish = self._wish(set(), [])
        wish.action, wish.target = action, target
        return wish

    def far(self, due_ms: int, target: str = ORDERS, *, has_id: bool = True) -> Wish:
        wish = self._wish({DELIVERED}, [("timer-topic", target.encode()), ("timer-deliver-ms", b"%d" % due_ms)])
        wish.target, wish.deliver_ms, wish.delivered_key = target, due_ms, wish.key
        if has_id:
            self._set_id(wish)
        return self._told(wish)

    def cancel_of(self, id_: bytes) -> Wish:
        wish = self._wish(set(), [("timer-action", b"cancel"), ("timer-id", id_)])
        wish.action, wish.id = CANCEL, id_
        return self._told(wish)

    def by_origin(self, topic: str, partition: int, offset: int, now_ms: int) -> Wish:
        """Return a cancel, a move or a pause of the timer of a request, if it has one; now and then a malformed one."""
        if self._rng.random() < 0.1:
            code, control = self._rng.choice(MALFORMED_BY_ORIGIN)
            return self._told(self._wish({code}, list(control)))
        wish = self._wish(set(), [("timer-of", b"%s/%d/%d" % (topic.encode(), partition, offset))])
        wish.of, wish.action = offset, self._rng.choice((CANCEL, MOVE))
        wish.control.append(("timer-action", wish.action.encode()))
        if wish.action == MOVE:
            self._set_time(wish, now_ms)
            _switched(wish)
        return self._told(wish)

    def resume_of(self, topic: str, partition: int, offset: int) -> Wish:
        of = ("timer-of", b"%s/%d/%d" % (topic.encode(), partition, offset))
        wish = self._wish(set(), [("timer-action", b"resume"), of])
        wish.of, wish.action = offset, RESUMED
        return self._told(wish)

    def end_of(self, id_: bytes, now_ms: int) -> Wish:
        """A cancel, a move, a pause or a resume."""
        return self._told(self._rng.choice((self.cancel_of(id_), self._move_of(id_, now_ms))))

    def _told(self, wish: Wish) -> Wish:
        wish.headers = _shuffled(self._rng, wish.control, wish.foreign)
        return wish

    def _schedule(self, now_ms: int) -> Wish:
        rng = self._rng
        target, may, partition = self._target()
        wish = self._wish(may, [("timer-topic", target.encode())])
        wish.target, wish.partition, wish.delivered_key = target, partition, wish.key
        if target == SMALL:
            wish.value = b"x" * rng.choice((1, SMALL_BYTES))
            wish.may = frozenset({DELIVERED if wish.value == b"x" else "too-large"})
        if partition >= 0:
            wish.control.append(("timer-partition", b"%d" % partition))
        if rng.random() < 0.15:
            wish.delivered_key = rng.choice((b"", b"other"))
            wish.control.append(("timer-key", wish.delivered_key))
        self._set_time(wish, now_ms)
        if rng.random() < self._expiry_chance:
            ahead_ms = rng.choice((-10, 20, 100, rng.choice(self._aheads_ms) + rng.randint(0, 400)))
            wish.expire_ms = max(0, now_ms + ahead_ms)
            wish.control.append(("timer-expire-ms", b"%d" % wish.expire_ms))
        if rng.random() < self._id_chance:
            self._set_id(wish)
        return wish

    def recurring(self, now_ms: int, reach_ms: int) -> Wish:
        """Return a recurring timer whose series is over in time; now and then a malformed one."""
        rng = self._rng
        if rng.random() < 0.1:
            code, control = rng.choice(MALFORMED_RULES)
            return self._told(self._wish({code}, list(control)))
        wish = self._schedule(now_ms)
        is_cron, starts_itself = rng.random() < 0.4, rng.random() < 0.5
        steps = rng.choice((2, 7, 30, 59)) if is_cron else 0
        step_ms = steps * CRON_UNIT_MS or rng.choice((15, 50, 100, reach_ms // 3, reach_ms, reach_ms * 3 // 2))
        wish.series = series = Series(step_ms, is_cron, starts_itself, rng.choice(("one", "all", "none")))
        repeats = ("timer-cron", b"*/%d * * * *" % steps) if is_cron else ("timer-every-ms", b"%d" % step_ms)
        rule: list[Header] = [repeats]
        if is_cron and rng.random() < 0.3:
            rule.append(("timer-zone", b"Europe/Berlin"))
        if series.missed != "one" or rng.random() < 0.5:
            rule.append(("timer-missed", series.missed.encode()))
        if starts_itself:
            wish.control = [header for header in wish.control if header[0] not in TIMES]
            wish.deliver_ms, wish.level, wish.delay_ms = None, None, 0 if is_cron else step_ms
        series.most = rng.randint(1, max(1, min(MOST_OCCURRENCES, 6 * reach_ms // step_ms)))
        rule.append(("timer-count", b"%d" % series.most))
        # A bridge that is slower than the interval skips all of them, so such a series needs an end.
        if series.missed == "none" or rng.random() < 0.3:
            series.until_ms = now_ms + rng.randint(-20, 5 * reach_ms)
            rule.append(("timer-until-ms", b"%d" % series.until_ms))
        if wish.expire_ms is not None:
            series.until_ms = min(series.until_ms, wish.expire_ms - 1)
        wish.control += rule
        return self._told(wish)

    def _set_id(self, wish: Wish) -> None:
        wish.id = self._rng.choice(self._ids)
        wish.control.append(("timer-id", wish.id))
        wish.action, told = self._rng.choice(((SCHEDULE, False), (SCHEDULE, True), (REPLACE, True)))
        if told:
            wish.control.append(("timer-action", wish.action.encode()))

    def _target(self) -> tuple[str, set[str], int]:
        drawn = self._rng.random()
        if drawn < 0.6:
            return ORDERS, {DELIVERED}, self._rng.choice((-1, -1, 0, 2))
        if drawn < 0.85:
            return BILLS, {DELIVERED}, -1
        return self._rng.choice(
            (
                (NOWHERE, {DELIVERED, "unknown-topic"}, -1),
                (SECRET, {DELIVERED, "not-authorized"}, -1),
                (SMALL, {DELIVERED}, -1),
                (ORDERS, {"unknown-partition"}, ORDERS_PARTITIONS),
            )
        )

    def _set_time(self, wish: Wish, now_ms: int) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            wish.level = rng.choice((0, 1, 2, 3, 4, 5, 99))
            wish.control.append(("timer-delay-level", b"%d" % wish.level))
            return
        ahead_ms = rng.choice(self._aheads_ms)
        ahead_ms = rng.randint(min(0, ahead_ms), max(0, ahead_ms))
        if rng.random() < 0.4:
            wish.delay_ms = max(0, ahead_ms)
            wish.control.append(("timer-delay-ms", b"%d" % wish.delay_ms))
            return
        wish.deliver_ms = max(0, now_ms + ahead_ms)
        if rng.random() < 0.7:
            wish.deliver_ms -= wish.deliver_ms % self._crowd_ms
        wish.control.append(("timer-deliver-ms", b"%d" % wish.deliver_ms))

    def _wish(self, may: set[str], control: list[Header]) -> Wish:
        rng = self._rng
        foreign = [rng.choice(FOREIGN) for _ in range(rng.choice((0, 0, 1, 3)))]
        return Wish(frozenset(may), rng.choice(KEYS), rng.choice(VALUES), foreign, control)


def _switched(wish: Wish) -> Wish:
    """Make some moves a pause or a resume, by their key and value, as a draw would shift what comes after it."""
    action = {b"k1": PAUSED, b"k2": RESUMED}.get(wish.key or b"")
    if action is not None and wish.value is not None:
        wish.action = action
        raw = b"pause" if action == PAUSED else b"resume"
        wish.control = [(name, raw if name == "timer-action" else value) for name, value in wish.control]
    return wish


def _shuffled(rng: Random, control: list[Header], foreign: list[Header]) -> list[Header]:
    """Ours anywhere between the foreign ones, which keep their order."""
    headers = list(foreign)
    for header in control:
        headers.insert(rng.randint(0, len(headers)), header)
    return headers
