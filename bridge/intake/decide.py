"""Decide what each request means for the store, without I/O.

    key = (visit_ms, origin)          visit_ms: the wake-up time (timer.schedule.wake_time)

    refused                          -> rejected topic, named in the journal
    key >  K                         -> store, in its order        (a target that waits: timer.schedule.target_backlog)
    key <= K, wake-up time <= now    -> overdue: leaves in the transaction that moves C past it
    key <= K, its target waits       -> out of order ("held"), until it may leave
    key <= K, wake-up time >  now    -> out of order: the clock went back below K; stored, named in the journal
    a copy that would roll again at once -> out of order, for a cool-down (timer.schedule.out_of_order)

One rule for ids: a request with an id ends each earlier pending timer with that id, in the store, in this batch or as a
copy in flight. A schedule then takes its place; a cancel does not. Timers to release are chosen after intake, so a
cancel that is read before the release commits wins.

A move is a roll with another due time: the timer leaves the store, and its next copy has the new time. If a
copy is in flight at that time, it rolls once more when it lands. The next request must find a moved timer in flight, so
a batch ends with a move (`until_move`).

A copy that lands is a timer again under its old origin, and ends nothing. A copy that is not awaited is refused.

Policy and quota apply once to each request. A replay uses the journal's refusals, a copy was accepted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bridge.intake.copies_in_flight import CopiesInFlight, size_of
from bridge.intake.target_policy import Policy
from bridge.ports import Record, UndecodableRecord
from schemas.headers import (
    ACTION,
    BARE,
    MOVE,
    NOT_OURS,
    Asked,
    Cancel,
    Claim,
    Headers,
    Move,
    Pause,
    Refusal,
    Rules,
    Schedule,
)
from schemas.journal import CopyInFlight
from schemas.profiles import as_sent, has_profile, marked, read
from schemas.receipts import Kind
from timer.format.batch import Batch
from timer.format.body import Body, LongNameError, frame_size, pack_headers, unpack_headers
from timer.format.unit import Rows
from timer.schedule.wake_time import roll_cooldown_ms, visit_ms

_MOVES = (ACTION, MOVE)
ROLLED_EXTRA_BYTES = 512
"""Upper bound of what a copy has more than its request: an absolute time, its origin, its number."""


_WITH_ID = (Schedule, Cancel, Move)
_EVERYWHERE = Policy()
_BEYOND_QUOTA = Refusal(
    "quota-exceeded",
    "its partition holds as many pending timers as max_pending allows: send it again later, or have max_pending raised",
)


_BEYOND_BYTES = Refusal(
    "quota-exceeded",
    "its partition holds as many bytes of pending timers as max_pending_bytes allows: send it again later, or have"
    " max_pending_bytes raised",
)
MOST_PAUSED = 1000
"""Paused targets of one partition: each journal record names them all."""
_NO_PAUSE = Refusal(
    "denied-action",
    "pause and resume are not taken from senders: use `timer-bridge pause` or `resume`, which need the control topic",
)


MOST_LIMITED = 10_000
"""Targets with pending timers in one partition, beyond which no further one with a rate is accepted."""
_TOO_MANY_LIMITED = Refusal(
    "quota-exceeded",
    f"timers for {MOST_LIMITED} real topics are pending in its partition, and one more that has a rate would be too"
    f" many: send it again later, or give it no max_per_s",
)


_UNDECODABLE = Refusal(
    "undecodable",
    "the Kafka client cannot decode it, and an operator skipped it" + BARE.decode(),
)
_TOO_LARGE_TO_MOVE = Refusal("too-large", "with the headers of a moved copy it would not fit: replace it instead")


class PendingTimers(Protocol):
    """The part of the store that intake needs."""

    def is_unreleased(self, target: str, place: tuple[int, int]) -> bool: ...

    def find(self, ids: list[bytes]) -> Mapping[bytes, Rows]: ...

    def bodies(self, rows: Rows) -> list[Body]: ...


class ReceiptDraft(NamedTuple):
    """A receipt to be written. request, origin: offsets (-1: no timer). id: empty if there is none."""

    kind: Kind
    request: int
    origin: int
    id: bytes
    due_ms: int | None = None
    code: str | None = None


class _Place(NamedTuple):
    """Position of an id's timer in this batch: in `Batch`, or among the overdue ones."""

    late: bool
    at: int
    body: Body


@dataclass(slots=True)
class Intake:
    """Decisions on one batch. `batch` is stored first; `late` and `refused` are published. Numbers are offsets."""

    batch: Batch = field(default_factory=Batch)
    late: dict[int, Body] = field(default_factory=dict)
    refused: list[tuple[Record, Refusal]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Origins."""
    ended_ids: set[bytes] = field(default_factory=set)
    landed: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Origins."""
    released: list[int] = field(default_factory=list)
    """Origins of moved timers: not in the store any more, whatever K says."""
    told: list[ReceiptDraft] = field(default_factory=list)
    moved: list[tuple[Body, int]] = field(default_factory=list)
    """Moved timers with their new due time: they roll through the timer topic."""
    moved_in_flight: list[CopyInFlight] = field(default_factory=list)
    """Copies in flight that were moved, with their new due time."""


def body_of(record: Record, schedule: Schedule, origin: int, rolls: int) -> Body:
    offset, timestamp_ms, key, value, headers = record
    target, due_ms, partition, id_, _, profile = schedule
    encoded, plain = pack_headers(marked(headers, profile) if profile else headers)
    # As Body(...), but that is a Python function, which takes twice as long.
    return tuple.__new__(
        Body,
        (target, partition, offset, timestamp_ms, due_ms, key, value, encoded, plain, origin, rolls, id_),
    )


class ReleaseUndecidedError(Exception):
    """A request names a timer of a transaction in flight, whose outcome decides which of them came first."""


def until_move(records: Sequence[Record]) -> int:
    """Return how many of `records` may be one batch: up to the first move, with it."""
    return next((at + 1 for at, record in enumerate(records) if _MOVES in record.headers), len(records))


def needing_no_room(records: Sequence[Record], rules: Rules) -> int:
    """Return how many of the first `records` store no body: cancels, pauses, and what no rule can read.

    A move takes a timer out of the store, and its copy would have to wait for room: it could leave later than without.
    """
    need = (at for at, record in enumerate(records) if isinstance(_read(record, rules), Schedule | Claim | Move))
    return next(need, len(records))


def _read(record: Record, rules: Rules) -> Asked:
    if type(record) is UndecodableRecord:
        return _UNDECODABLE
    return read(record.headers, record.timestamp_ms, rules, record.key, record.value)


@dataclass
class BatchIntake:
    """Decide one batch, request by request: construct it, then call `take_in` once."""

    store: PendingTimers
    flights: CopiesInFlight
    delivered_lately: Callable[[bytes], bool]
    """True if the timer of an id was delivered recently."""
    now_ms: int
    rules: Rules
    max_message_bytes: int
    late: Mapping[int, Body] = field(default_factory=dict)
    """Overdue timers of earlier parts of the batch. The result's `late` begins with them."""
    tells_accepted: bool = True
    """True if each accepted timer gets a receipt."""
    policy: Policy = _EVERYWHERE
    room: int | None = None
    """How many more timers may be pending; None: any number."""
    room_bytes: int | None = None
    """How many more bytes of bodies may be pending, without copies in flight; None: any number."""
    max_request_bytes: int | None = None
    """The most bytes that key, value and headers of a schedule may have."""
    must_wait: Callable[[str], bool] = lambda _: False
    """True if an overdue timer for this target may not leave at once."""
    is_one_too_many: Callable[[str], bool] = lambda _: False
    """True if this target has a rate, and too many targets have pending timers."""

    def __post_init__(self) -> None:
        self._taken = Intake(late=dict(self.late))
        self._stored: dict[bytes, Rows] = {}
        self._placed = {body.id: _Place(True, at, body) for at, body in self.late.items() if body.id is not None}
        self._going: dict[bytes, tuple[Body, int]] = {}
        """Moved timers by id, with their new due time."""
        self._landed: set[tuple[int, int]] = set()
        self._ended: set[int] = set()

    def take_in(self, records: Iterable[Record], leaving: Sequence[frozenset[bytes]] = ()) -> Intake:
        """Return what becomes of `records`.

        Raises ReleaseUndecidedError before anything is decided if a record names an id that is in one of `leaving`.
        """
        asked = [(record, _read(record, self.rules)) for record in records]
        ids = list({ask.id: None for _, ask in asked if isinstance(ask, _WITH_ID) and ask.id is not None})
        ids += {ask.on[1]: None for _, ask in asked if isinstance(ask, Cancel) and ask.on is not None}
        if not all(each.isdisjoint(ids) for each in leaving):
            raise ReleaseUndecidedError
        self._stored = dict(self.store.find(ids)) if ids else {}
        for record, ask in asked:
            self._take(record, ask)
        return self._taken

    def _take(self, record: Record, ask: Asked) -> None:
        match ask:
            case Schedule():
                self._schedule(record, ask)
            case Cancel():
                self._cancel(record, ask)
            case Move():
                self._move(record, ask)
            case Pause():
                self._refuse(record, _NO_PAUSE)
            case Claim():
                self._land(record, ask)
            case Refusal():
                self._refuse(record, ask)

    def _cancel(self, record: Record, ask: Cancel) -> None:
        if denied := self.policy.action_refusal("cancel"):
            self._refuse(record, denied)
            return
        if self._end("cancelled", record, ask.id):
            return
        if ask.on is not None and self._stands_on(*ask.on):
            self._end("cancelled", record, ask.on[1])
            return
        missed = self._missed(ask.id)
        if ask.on is not None and missed == "not-found":
            missed = self._missed(ask.on[1])
        self._taken.told.append(ReceiptDraft(missed, record.offset, -1, ask.id))

    def _move(self, record: Record, ask: Move) -> None:
        """Roll the timer with its new due time, so that every rule of rolls holds for moves."""
        if denied := self.policy.action_refusal("move"):
            self._refuse(record, denied)
            return
        in_flight = self._in_flight(ask.id)
        body = self._pending_body(ask.id)
        if body is None and not in_flight:
            self._taken.told.append(ReceiptDraft(self._missed(ask.id), record.offset, -1, ask.id))
            return
        if body is not None:
            stored = unpack_headers(body.headers)
            told = body.key, body.value, as_sent(stored), body.id if has_profile(stored) else None
            if body.rolls == 0 and self._is_too_large_to_roll(*told):
                self._refuse(record, _TOO_LARGE_TO_MOVE)
                return
            self._take_out(ask.id)
            self._go_round(body, ask.due_ms)
        self._taken.moved_in_flight += [flight._replace(due_ms=ask.due_ms) for flight in in_flight]
        origin = in_flight[0].origin if body is None else body.origin
        self._taken.told.append(ReceiptDraft("moved", record.offset, origin, ask.id, ask.due_ms))

    def _pending_body(self, id_: bytes) -> Body | None:
        place, row = self._placed.get(id_), self._stored.get(id_)
        if id_ in self._going:
            return self._going[id_][0]
        if place is not None:
            return place.body
        return None if row is None else self.store.bodies(row)[0]

    def _take_out(self, id_: bytes) -> list[tuple[int, int | None]]:
        """Take what is pending under `id_` out of the store and of this batch. Return origins and known due times."""
        self._give_room_back(id_)
        taken_out: list[tuple[int, int | None]] = []
        row = self._stored.pop(id_, None)
        if row is not None:
            self._taken.batch.end(row)
            taken_out.append((int(row["origin"][0]), None))
        place = self._placed.pop(id_, None)
        if place is not None:
            self._take_back(place)
            taken_out.append((place.body.origin, place.body.due_ms))
        going = self._stay(id_)
        if going is not None:
            taken_out.append((going[0].origin, going[1]))
        return taken_out

    def _go_round(self, body: Body, due_ms: int) -> None:
        self._taken.moved.append((body, due_ms))
        self._taken.released.append(body.origin)
        if body.id is not None:
            self._going[body.id] = (body, due_ms)

    def _stay(self, id_: bytes) -> tuple[Body, int] | None:
        """Cancel the move of this batch under `id_`, if there is one, and return it."""
        going = self._going.pop(id_, None)
        if going is not None:
            self._taken.moved.remove(going)
        return going

    def _stands_on(self, target: str, id_: bytes) -> bool:
        """True if a timer with this id is pending for this target."""
        place, row = self._placed.get(id_), self._stored.get(id_)
        if place is not None:
            return place.body.target == target
        if row is not None:
            return self.store.bodies(row)[0].target == target
        if id_ in self._going:
            return self._going[id_][0].target == target
        return any(flight.target == target for flight in self._in_flight(id_))

    def _refuse(self, record: Record, refusal: Refusal) -> None:
        self._taken.refused.append((record, refusal))
        self._taken.told.append(ReceiptDraft("rejected", record.offset, record.offset, b"", None, refusal.code))

    def _missed(self, id_: bytes) -> Kind:
        return "too-late" if id_ not in self._taken.ended_ids and self.delivered_lately(id_) else "not-found"

    def _schedule(self, record: Record, ask: Schedule) -> None:
        visit = self._visit_ms(record.timestamp_ms, ask.due_ms)
        refusal = self._refusal(record, ask, visit)
        if refusal is not None:
            self._refuse(record, refusal)
            return  # a bad request changes nothing
        try:
            body = body_of(record, ask, record.offset, 0)
        except LongNameError as wrong:
            self._refuse(record, Refusal("bad-header", f"{wrong}: shorten it"))
            return
        if self.room_bytes is not None and frame_size(body) > self.room_bytes + self._bytes_under(ask.id):
            self._refuse(record, _BEYOND_BYTES)
            return
        if ask.id is not None and not self._end("replaced", record, ask.id) and ask.replaces:
            self._taken.told.append(ReceiptDraft(self._missed(ask.id), record.offset, -1, ask.id))
        self._place(body, visit)
        if self.room is not None:
            self.room -= 1
        if self.tells_accepted:
            self._taken.told.append(ReceiptDraft("accepted", record.offset, record.offset, ask.id or b"", ask.due_ms))

    def _refusal(self, record: Record, ask: Schedule, visit: int) -> Refusal | None:
        """Return why a well-formed request is not accepted, None if it is."""
        most = self.max_request_bytes
        if most is not None and (size := size_of(record.key, record.value, record.headers)) > most:
            return Refusal(
                "too-large", f"key, value and headers have {size} bytes, max_request_bytes is {most}: shorten it"
            )
        is_pending = self._is_pending(ask.id)
        action = "replace" if ask.replaces or is_pending else "schedule"
        denied = self.policy.action_refusal(action) or self.policy.refusal(ask.target)
        if denied is not None:
            return denied
        if visit < ask.due_ms and self._is_too_large_to_roll(
            record.key, record.value, record.headers, ask.id if ask.profile else None
        ):
            return Refusal("too-large", "with the headers of a rolled copy it would not fit: shorten it")
        if self.room is not None and self.room <= 0 and not is_pending:
            return _BEYOND_QUOTA
        return _TOO_MANY_LIMITED if self.is_one_too_many(ask.target) else None

    def _is_pending(self, id_: bytes | None) -> bool:
        if id_ is None:
            return False
        return id_ in self._placed or id_ in self._stored or id_ in self._going or bool(self._in_flight(id_))

    def _bytes_under(self, id_: bytes | None) -> int:
        """Return the bytes that the store, or this batch, holds of the timer that is pending under `id_`."""
        if id_ is None:
            return 0
        place, row = self._placed.get(id_), self._stored.get(id_)
        held = 0 if row is None else int(row["body_size"][0])
        return held if place is None else held + frame_size(place.body)

    def _take_room(self, body: Body) -> None:
        if self.room_bytes is not None:
            self.room_bytes -= frame_size(body)

    def _give_room_back(self, id_: bytes) -> None:
        if self.room_bytes is not None:
            self.room_bytes += self._bytes_under(id_)

    def _is_too_large_to_roll(
        self, key: bytes | None, value: bytes | None, headers: Headers, spelled_id: bytes | None
    ) -> bool:
        """True if a copy would exceed `max_message_bytes`.

        spelled_id: id of a request in another profile. Its copy has native headers, so an id that was the key is added.
        """
        return size_of(key, value, headers) + len(spelled_id or b"") > self.max_message_bytes - ROLLED_EXTRA_BYTES

    def _visit_ms(self, timestamp_ms: int, due_ms: int) -> int:
        return visit_ms(due_ms, timestamp_ms, self.rules.roll_window_ms)

    def _place(self, body: Body, visit: int) -> None:
        self._take_room(body)
        is_late = False
        if self.store.is_unreleased(body.target, (visit, body.origin)):
            at = self._taken.batch.add(body, visit)
        elif visit <= self.now_ms and not self.must_wait(body.target):
            is_late, at = True, body.offset
            self._taken.late[at] = body
        else:
            at = self._taken.batch.hold(body, visit)
            self._taken.held.append(body.origin)
        if body.id is not None:
            self._placed[body.id] = _Place(is_late, at, body)

    def _land(self, record: Record, claim: Claim) -> None:
        flight = self.flights.claimed(record, claim)
        if flight is None or (flight.origin, flight.rolls) in self._landed:
            self._refuse(record, NOT_OURS)
            return
        self._landed.add((flight.origin, flight.rolls))
        self._taken.landed.append((flight.origin, flight.rolls))
        if flight.origin in self.flights.ended or flight.origin in self._ended:
            self._taken.dropped.append(record.offset)
        else:
            visit = self._visit_ms(record.timestamp_ms, claim.schedule.due_ms)
            body = body_of(record, claim.schedule, flight.origin, flight.rolls)
            if flight.due_ms != claim.schedule.due_ms:
                self._go_round(body, flight.due_ms)
            elif self._must_rest(flight, visit):
                self._rest(body, visit)
            else:
                self._place(body, visit)

    def _must_rest(self, flight: CopyInFlight, visit: int) -> bool:
        """True if it would roll again within the cool-down, because our clock is ahead of the brokers'."""
        rest_ms = roll_cooldown_ms(self.rules.roll_window_ms)
        is_soon = visit < min(self.now_ms + rest_ms, flight.due_ms) and flight.due_ms > self.now_ms
        return is_soon and self.flights.was_rolled_within(flight, rest_ms, self.now_ms)

    def _rest(self, body: Body, visit: int) -> None:
        until_ms = self.now_ms + roll_cooldown_ms(self.rules.roll_window_ms)
        self._take_room(body)
        at = self._taken.batch.cool_down(body, visit, self.now_ms, until_ms)
        self._taken.held.append(body.origin)
        if body.id is not None:
            self._placed[body.id] = _Place(late=False, at=at, body=body)

    def _end(self, kind: Kind, record: Record, id_: bytes) -> bool:
        """End every timer that is pending under `id_`. Return True if there was any."""
        origins = self._take_out(id_)
        origins += [(flight.origin, flight.due_ms) for flight in self._in_flight(id_)]
        if origins:
            self._taken.ended_ids.add(id_)
        for origin, due_ms in origins:
            self._ended.add(origin)
            self._taken.ended.append(origin)
            self._taken.told.append(ReceiptDraft(kind, record.offset, origin, id_, due_ms))
        if self.room is not None:
            self.room += len(origins)
        return bool(origins)

    def _in_flight(self, id_: bytes) -> list[CopyInFlight]:
        return [
            flight
            for flight in self.flights.with_id(id_)
            if (flight.origin, flight.rolls) not in self._landed and flight.origin not in self._ended
        ]

    def _take_back(self, place: _Place) -> None:
        if place.late:
            del self._taken.late[place.at]
        else:
            self._taken.batch.drop(place.at)


class Decided(Protocol):
    """The journal's decisions that a replay needs."""

    refused: set[int]
    ended: set[int]
    dropped: set[int]
    rolled: set[tuple[int, int]]
    held: set[int]
    released: set[int]


def replay(
    records: Iterable[Record],
    is_unreleased: Callable[[str, tuple[int, int]], bool],
    rules_from: Callable[[int], tuple[Rules, int]],
    decided: Decided,
    origin_of: Callable[[bytes], int],
) -> Batch:
    """Return the timers of `records` that are still pending by the journal's decisions.

    is_unreleased(target, (visit_ms, origin)): True if a timer with this key has not left.
    rules_from(offset): the rules by which it was first read, and the offset up to which they hold.
    Raises ValueError if a request that the journal calls a timer does not parse as one.
    """
    batch = Batch()
    refused, dropped, ended, released = decided.refused, decided.dropped, decided.ended, decided.released
    rolled = decided.rolled
    rules: Rules | None = None
    until = 0
    for record in records:
        offset = record.offset
        if offset in refused or offset in dropped:
            continue
        if rules is None or offset >= until:
            rules, until = rules_from(offset)
        asked = _read(record, rules)
        if type(asked) is Schedule:
            schedule, origin, rolls = asked, offset, 0
        elif isinstance(asked, Claim):
            schedule, origin, rolls = asked.schedule, origin_of(asked.origin), asked.rolls
        elif isinstance(asked, Refusal):
            raise ValueError(f"offset {offset} was taken once, but now reads as {asked.code}: {asked.detail}")
        else:
            continue
        if origin in ended or origin in released or (rolled and (origin, rolls + 1) in rolled):
            continue
        visit = visit_ms(schedule.due_ms, record.timestamp_ms, rules.roll_window_ms)
        if origin in decided.held:
            batch.hold(body_of(record, schedule, origin, rolls), visit)
        elif is_unreleased(schedule.target, (visit, origin)):
            batch.add(body_of(record, schedule, origin, rolls), visit)
    return batch
