"""One partition that this instance owns, with its open store, between two commits.

take_in(records) -> find_due(now) -> freeze() -> transaction -> committed() | closed with the partition

A frozen draft belongs to one transaction and is repeated as it is if that is aborted. Meanwhile the next draft collects
what comes after it. A request for a timer that is frozen to leave waits for the outcome of that transaction
(`ReleaseUndecidedError`): only then it is known whether the request came before the delivery or too late.
"""

import errno
from collections import Counter, deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import NamedTuple

from bridge.config.durations import has_passed
from bridge.config.loop_options import TurnOptions
from bridge.intake.copies_in_flight import copy_of, hours_of, ranges_of, size_of
from bridge.intake.decide import (
    MOST_LIMITED,
    MOST_PAUSED,
    BatchIntake,
    Intake,
    ReleaseUndecidedError,
    needing_no_room,
    until_move,
)
from bridge.intake.recently_delivered import RecentlyDelivered
from bridge.ports import Outgoing, Record
from bridge.publish.records import expired
from bridge.recovery.recover import Recovered
from bridge.release.circuit_breaker import CircuitBreakers
from bridge.release.draft import BATCH_BYTES, Draft, FrozenDraft
from bridge.release.target_rate_limits import TargetRateLimits
from schemas.headers import MAX_INT64, Refusal
from schemas.journal import CopyInFlight, JournalRecord, Wait
from schemas.origin import Shard
from schemas.progress import Progress
from schemas.receipts import is_sent
from timer.errors import WheelFullError
from timer.files.disk import Disk
from timer.format.body import Body, frame_size
from timer.format.unit import isin
from timer.index.due_counts import DueRange, joined_hours, joined_ranges
from timer.schedule.release_policy import OPEN
from timer.schedule.wake_time import most_wait_ms

_TOO_LARGE_TO_WAIT = Refusal(
    "too-large",
    "its target had it wait for longer than Kafka keeps it here, and a copy of it would be too large: shorten it",
)
_MOST_HELD = 100_000
"""Out-of-order timers of one partition: K had passed their key before they were read. Beyond this they are rolled."""
_STILL_MS = 60_000
"""If nothing leaves, K moves in steps of this, and stays this far behind the clocks."""
_CROWDED_SHARE = 4
_OURS_SINCE = Refusal("bad-target", "its target has become the bridge's own topic since: send it to another")
_BY_DUE_THEN_REQUEST = itemgetter(Body._fields.index("due_ms"), Body._fields.index("origin"))


class TooManyHeldError(Exception):
    """Too many timers are out of order: intake waits until some of them are rolled."""


class StallProbe(NamedTuple):
    """Kafka was asked at `at_ms` (epoch ms) whether it holds more than was read, up to `offset`."""

    offset: int
    at_ms: int
    enough_for_ms: int


class LagSample(NamedTuple):
    """Offsets [start, end) that were not read yet. is_empty: True if they hold no records, None: unknown."""

    start: int
    end: int
    is_empty: bool | None


class OwnedPartition:
    """A partition that is ours, with its store open."""

    def __init__(
        self,
        shard: Shard,
        disk: Disk,
        recovered: Recovered,
        options: TurnOptions,
        least_free_bytes: Callable[[Shard], int],
        *,
        is_claimed: bool,
        breakers: CircuitBreakers,
    ) -> None:
        """least_free_bytes: free bytes on the disk below which intake of a shard pauses, at most `min_free_bytes`.

        is_claimed: True if our group is known to own the journal. Else it is claimed before any read or release.
        """
        self.shard = shard
        self._least_free_bytes = least_free_bytes
        self.disk = disk
        self.store, self.flights, is_adopted = recovered
        self.is_claimed = is_claimed
        self.committed_progress = self.store.progress()._replace(number=self.store.committed_progress.number)
        self.backlog: list[Record] = []
        """Polled, but not taken in: a rate, or the disk, the wheel or the next transaction is full."""
        self.is_full = False
        """True if the next transaction has no room for more moves: the backlog goes on after it."""
        self.admitted = 0
        """Records taken in, for the rate: requests, and copies of timers that were rolled or moved."""
        self.starts_at: int | None = None
        """The offset at which the source was started, until its first record is polled."""
        self.looked = StallProbe(-1, 0, 0)
        self.lagged = LagSample(-1, -1, None)
        self.opened_ms = 0
        self.checkpoint_rests_until_ms = 0
        self.release_barrier: int | None = MAX_INT64
        """Stored timers leave after all requests below this are read: a cancel sent during downtime must win."""
        self._is_caught_up = False
        """True if the requests that were there at the opening are committed."""
        self._options = options
        self._draft = Draft()
        self._frozen: deque[FrozenDraft] = deque()
        self._frozen_number = self.committed_progress.number
        self._frozen_offset = self.committed_progress.next_offset
        """The draft begins at this offset."""
        self._late: dict[int, Body] = {}
        """Overdue timers of a part of the backlog, while the rest waits for the outcome of a transaction."""
        # An adopted progress is committed at once: the operator gives the word for one start.
        # The claim of a journal is committed at once too: before it, no request is read and no timer leaves.
        self._dirty_since_ms: int | None = 0 if is_adopted or not self.is_claimed else None
        self._lately = RecentlyDelivered()
        self._breakers = breakers
        self._limits = TargetRateLimits(options.targets, breakers)
        self._most_wait_ms = most_wait_ms(options.rules.roll_window_ms)
        self._still_ms = min(_STILL_MS, options.rules.roll_window_ms // 8)
        self._newest_ms = 0
        """Timestamp of the newest request, by the brokers' clocks."""
        self._frozen_waits = self.store.release_queue.waits
        self._journalled_ms = 0

    def use(self, options: TurnOptions) -> None:
        """Apply the limits of `options`: the timer topic has more partitions, so each has a smaller share."""
        self._options = options
        self._limits = TargetRateLimits(options.targets, self._breakers)

    def claim(self) -> None:
        """Write the claim of the journal again, with the next transaction."""
        self._dirty_since_ms = 0

    def pending_by_topic(self) -> Counter[str]:
        """Return the number of pending timers of each target topic, with copies in flight."""
        counts = Counter(self.store.pending_by_topic())
        counts.update(flight.target for flight in self.flights.alive())
        return counts

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """For each target topic: number of pending timers with copies in flight, first and last due time.

        If a search for these times is needed and `is_over`, they are rounded to the hour; so are last ones not needed.
        """
        return joined_ranges(
            (self.store.queries.due_ranges(is_over, needs_last=needs_last), ranges_of(self.flights.alive()))
        )

    def due_hours(self) -> dict[str, Counter[int]]:
        """For each target topic: start of the hour (epoch ms) to the number of pending timers that are due in it."""
        return joined_hours((self.store.queries.due_hours(), hours_of(self.flights.alive())))

    def leaving(self) -> list[Body]:
        """Return the timers that are drafted or frozen to leave."""
        parts = [*(frozen.draft for frozen in self._frozen), self._draft]
        return [body for part in parts for body in part.bodies]

    def take_in(self, records: list[Record], now_ms: int, most: int | None = None) -> None:
        """Take in `records` after the backlog, at most `most` records in all (None: any number).

        Raises OSError, WheelFullError or TooManyHeldError. Records that are not taken in wait in `backlog`.
        Raises ReleaseUndecidedError: call again, without records, when no transaction is in flight.
        A batch that spans more than a lap of the wheel is taken in by parts. Moves may fill half of a transaction; the
        rest is for due timers. If the disk is full, requests that store no body (cancels) are still taken, in order, up
        to the first request that stores one.
        """
        self.backlog += records
        if records:
            self._newest_ms = max(self._newest_ms, records[-1].timestamp_ms)
        self.is_full = False
        left = count = len(self.backlog) if most is None else min(most, len(self.backlog))
        late, self._late = self._late, {}
        full = self._full_disk()
        if full is not None:
            left = count = needing_no_room(self.backlog[:left], self._options.rules)
        try:
            if self.backlog and self.store.release_queue.held >= _MOST_HELD:
                raise TooManyHeldError(f"{_MOST_HELD} timers are held: it goes on when some have left or are rolled")
            rolling = self._rolling()
            while left and not self._has_moved_enough():
                count = min(count, left)
                before = len(self.backlog)
                try:
                    late = self._take_in_first(count, late, rolling, now_ms)
                except WheelFullError:
                    if count == 1:
                        raise
                    count = max(1, count // 2)
                else:
                    left -= before - len(self.backlog)
            self.is_full = left > 0
        except ReleaseUndecidedError:
            self._late, late = late, {}
            raise
        finally:
            self._leave(list(late.values()), now_ms)
        if full is not None and self.backlog:
            raise full

    def _full_disk(self) -> OSError | None:
        least = self._options.min_free_bytes
        if not self.backlog or (free := self.disk.free_bytes()) >= least or free >= self._least_free_bytes(self.shard):
            return None
        return OSError(errno.ENOSPC, f"{free} bytes are free, min_free_bytes is {least}")

    def _has_moved_enough(self) -> bool:
        draft, options = self._draft, self._options
        return 2 * len(draft.copies) >= options.max_due_records or (
            bool(draft.copies) and 2 * draft.size_bytes >= options.max_due_bytes
        )

    def _take_in_first(self, count: int, late: dict[int, Body], rolling: int, now_ms: int) -> dict[int, Body]:
        """Take in the first `count` records. late: overdue timers of earlier parts. Return all that did not end."""
        part = self.backlog[:count]
        del part[until_move(part) :]
        spent: Counter[str] = Counter()
        begun: set[str] = set()
        taken = BatchIntake(
            self.store,
            self.flights,
            lambda id_: self._lately.has(id_, now_ms),
            now_ms,
            self._options.rules,
            self._options.max_message_bytes,
            late,
            tells_accepted=is_sent("accepted", self._options.receipts),
            policy=self._options.policy,
            room=self._room(len(late) + rolling),
            room_bytes=self._room_bytes(late),
            max_request_bytes=self._options.max_request_bytes,
            must_wait=lambda target: self._must_wait(target, spent, now_ms),
            is_one_too_many=lambda target: self._is_one_too_many(target, begun),
        ).take_in(part, [frozen.ids for frozen in self._frozen])
        self.store.add(taken.batch, part[-1].offset + 1)
        self._spend(spent, now_ms)
        del self.backlog[: len(part)]
        self.admitted += len(part)
        self._draft.requests += len(part) - len(taken.landed)
        self.flights.land(taken.landed)
        self._draft.forget_moved(taken.landed)
        self.flights.end(taken.ended)
        self._lately.forget(taken.ended_ids)
        self._move(taken, now_ms)
        taken.told = [told for told in taken.told if is_sent(told.kind, self._options.receipts)]
        self._draft.add(taken)
        if self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        return taken.late

    def _move(self, taken: Intake, now_ms: int) -> None:
        """Make copies in flight of moved timers at once, as the next request may name them."""
        for body, due_ms in taken.moved:
            copy, flight = copy_of(self.shard, body._replace(due_ms=due_ms), now_ms)
            self._draft.go_round(copy, flight)
            self.flights.stage(flight)
        self._draft.rolled += taken.moved_in_flight
        self.flights.depart(taken.moved_in_flight)

    def _rolling(self) -> int:
        """Return the number of drafted copies that are not in `flights` yet."""
        return sum((flight.origin, flight.rolls) not in self.flights for flight in self._draft.rolled)

    def _room(self, uncounted: int) -> int | None:
        """Return how many more timers may be pending, None for any. Copies in flight and `uncounted` ones count."""
        if self._options.max_pending is None:
            return None
        return self._options.max_pending - self.store.pending - self.flights.alive_count - uncounted

    def _room_bytes(self, late: dict[int, Body]) -> int | None:
        """Return by how many bytes pending timers may grow, None for any. Counts `late`, but no copies on their way."""
        if self._options.max_pending_bytes is None:
            return None
        return self._options.max_pending_bytes - self.store.queries.pending_bytes - sum(map(frame_size, late.values()))

    def _must_wait(self, target: str, spent: Counter[str], now_ms: int) -> bool:
        """True if an overdue timer may not leave at once. Those that may are counted in `spent`."""
        if self.store.release_queue.must_wait(target):
            return True
        allowed = None if self._limits.is_open else self._limits.at(now_ms).allowance(target)
        if allowed is None:
            return False
        if spent[target] >= allowed:
            return True
        spent[target] += 1
        return False

    def _is_one_too_many(self, target: str, begun: set[str]) -> bool:
        """True if one more target with a rate is too many. begun: such targets that are new in this batch."""
        limits, store = self._limits, self.store
        if not limits.is_limited(target) or target in begun or store.queries.has_target(target):
            return False
        if store.queries.targets + len(begun) >= MOST_LIMITED:
            return True
        begun.add(target)
        return False

    def _spend(self, spent: Counter[str], now_ms: int) -> None:
        """Charge the rates after the batch is stored: if the disk refuses it, it is taken in again."""
        for target, timers in spent.items():
            self._limits.at(now_ms).spend(target, timers)

    def note_read(self, *, nothing_more: bool) -> None:
        """Lift the release barrier if it is reached. nothing_more: no request is left below it."""
        if nothing_more or (self.release_barrier is not None and self.store.next_offset >= self.release_barrier):
            self.release_barrier = None

    def obey(self, pauses: Mapping[str, bool]) -> list[str]:
        """Pause and resume these targets; others stay as they are. Return those beyond `MOST_PAUSED`."""
        paused = self.store.release_queue.paused()
        changed = [target for target, is_paused in pauses.items() if is_paused != (target in paused)]
        resumed = [target for target in changed if target in paused]
        room = max(0, MOST_PAUSED - len(paused) + len(resumed))
        begun = [target for target in changed if target not in paused]
        for target in resumed + begun[:room]:
            self.store.pause(target, is_paused=pauses[target])
        return begun[room:]

    def find_due(self, now_ms: int) -> None:
        """Draft the timers that leave now. If intake is blocked, release does not wait for it: room has to be made."""
        if not self.is_claimed:
            return
        if self.release_barrier is None or (self.backlog and not self.is_full):
            self._release(now_ms)
        if self.store.release_queue.held >= _MOST_HELD:
            self._roll_crowded(now_ms)
        self._note_waits(now_ms)

    def _room_to_leave(self) -> int:
        return self._options.max_due_records - len(self._draft.bodies) - len(self._draft.copies)

    def _release(self, now_ms: int) -> None:
        room = self._room_to_leave()
        if room <= 0:
            return
        room_bytes = max(1, self._options.max_due_bytes - self._draft.size_bytes)
        gate = OPEN if self._limits.is_open else self._limits.at(now_ms)
        waiting = self.store.release_queue.waiting.hashes()
        due = self.store.due(now_ms, room, room_bytes, gate, self._most_wait_ms)
        if due.total:
            self._draft.released += due.released["origin"].tolist() + due.old_released["origin"].tolist()
            for rows in (due.rows, due.released) if waiting else ():
                self._draft.waited.update(rows["origin"][isin(rows["topic_hash"], waiting)].tolist())
            self._leave(self.store.bodies(due.rows) + self.store.bodies(due.released), now_ms)
            self._roll(self.store.bodies(due.old_rows) + self.store.bodies(due.old_released), now_ms)

    def _roll_crowded(self, now_ms: int) -> None:
        """Roll the oldest out-of-order timers, also under full load: intake must reach the end of a pause."""
        room = max(self._room_to_leave(), self._options.max_due_records // _CROWDED_SHARE)
        rows = self.store.release_queue.take_overflow(now_ms, room, self._options.max_due_bytes)
        self._draft.released += rows["origin"].tolist()
        self._roll(self.store.bodies(rows), now_ms)

    def _note_waits(self, now_ms: int) -> None:
        """Have target backlogs journalled if they changed, and again before Kafka forgets the last record."""
        waits = self.store.release_queue.waits
        if not waits and not self._frozen_waits:
            return
        is_old = has_passed(self._journalled_ms, now_ms, self._options.rules.roll_window_ms // 2)
        if self._dirty_since_ms is None and (waits != self._frozen_waits or is_old):
            self._dirty_since_ms = now_ms

    def _leave(self, bodies: list[Body], now_ms: int) -> None:
        """Draft deliveries, or rolls of timers that are not due yet."""
        for body in bodies:
            if body.due_ms <= now_ms:
                self._draft.leave(body)
                if not self._limits.is_open and expired(body, now_ms):  # its target will not get it
                    self._limits.at(now_ms).spend(body.target, -1)
            else:
                self._roll([body], now_ms)

    def _roll(self, bodies: list[Body], now_ms: int) -> None:
        """Draft copies for the timer topic. A due timer whose copy is too large is rejected instead."""
        for body in bodies:
            copy, flight = copy_of(self.shard, body, now_ms)
            if body.due_ms <= now_ms and self._is_too_large(copy):
                self._draft.leave(body)
                self._draft.too_large.add(body.origin)
            else:
                self._draft.go_round(copy, flight)

    def _is_too_large(self, copy: Outgoing) -> bool:
        return size_of(copy.key, copy.value, copy.headers) + BATCH_BYTES > self._options.max_message_bytes

    def _roll_unavailable(self, draft: Draft, now_ms: int, at_ms: int) -> list[CopyInFlight]:
        """Roll the timers of `draft` whose target takes no records, so that this transaction does not wait for it.

        Return the flights of the copies. A timer whose copy would be too large for the timer topic goes to the rejected
        topic. at_ms: when the transaction was frozen, which is later than `now_ms` if the clock was set back.
        """
        breakers = self._breakers
        rows = [
            row
            for row, body in enumerate(draft.bodies if breakers else ())
            if breakers.is_open(body.target, now_ms) and row not in draft.parked and row not in draft.acknowledged
        ]
        copies: dict[int, tuple[Outgoing, CopyInFlight]] = {}
        for row in rows:
            copy, flight = copy_of(self.shard, draft.bodies[row], at_ms)
            if self._is_too_large(copy):
                draft.parked[row] = _TOO_LARGE_TO_WAIT
            else:
                copies[row] = copy, flight
        draft.roll(copies)
        return [flight for _, flight in copies.values()]

    def is_urgent(self, now_ms: int) -> bool:
        """True if something is to be published, or stored requests have waited long enough for their commit.

        Also if the decisions of another turn might not fit into one journal record (`journal_bytes` has room for two).
        """
        is_long = self._draft.decisions() >= self._options.max_poll_records
        return self._draft.has_output() or is_long or self._is_commit_due(now_ms)

    @property
    def is_quiet(self) -> bool:
        """True if nothing is drafted or in flight."""
        return not self._frozen and not self.has_news()

    def has_news(self) -> bool:
        return self._draft.has_output() or self._dirty_since_ms is not None

    def next_look_ms(self, until_ms: int) -> int:
        """Return when something is to be done without a new record, at the latest `until_ms`."""
        looks = [0 if self.is_full else until_ms]
        if self.is_claimed and (self.release_barrier is None or self.backlog):
            visit_ms = self.store.release_queue.next_visit_ms(until_ms)
            release_ms = self.store.release_queue.next_release_ms(self._may_leave_ms, self._most_wait_ms)
            looks += [at_ms for at_ms in (visit_ms, release_ms) if at_ms is not None]
        if self._dirty_since_ms is not None:
            looks.append(self._dirty_since_ms + self._options.commit_interval_ms)
        return min(looks)

    def _may_leave_ms(self, target: str) -> int:
        return self._limits.next_ms(target)

    def freeze(self, now_ms: int, at_ms: int, *, is_all: bool) -> FrozenDraft:
        """Return the draft of a turn at `now_ms`, for a transaction at `at_ms`. Only refusals change it now.

        Unless `is_all`, stored requests without output may be left to a later one (`_may_defer_commit`).
        """
        progress, waits = self._progress(now_ms), self.store.release_queue.waits
        lags = not is_all and self._may_defer_commit(waits, now_ms)
        if lags:
            offset = self._frozen_offset
            progress = progress._replace(next_offset=offset, low_offset=min(offset, progress.low_offset))
        draft, self._draft = self._draft, Draft()
        if lags:
            draft.requests, self._draft.requests = 0, draft.requests
        self._frozen_number += 1
        progress = progress._replace(number=self._frozen_number)
        draft.bodies.sort(key=_BY_DUE_THEN_REQUEST)
        own = self._options.rules.own_topics
        draft.parked = {row: _OURS_SINCE for row, body in enumerate(draft.bodies) if body.target in own}
        draft.parked |= {
            row: _TOO_LARGE_TO_WAIT for row, body in enumerate(draft.bodies) if body.origin in draft.too_large
        }
        draft.park_expired(at_ms)
        self._roll_unavailable(draft, at_ms, at_ms)
        ids = frozenset(body.id for body in draft.bodies if body.id is not None)
        journal = self._journal(draft, progress, waits)
        frozen = FrozenDraft(self.shard, self._options, draft, progress, journal, at_ms, ids)
        self._frozen.append(frozen)
        self._frozen_offset = progress.next_offset
        self._frozen_waits = waits
        self._journalled_ms = now_ms
        self.flights.depart(draft.rolled, now_ms)
        if not lags:
            self._dirty_since_ms = None
            self._is_caught_up = self.release_barrier is None
        return frozen

    def _progress(self, now_ms: int) -> Progress:
        """Return (C, K, L) of the draft.

        If every timer is cancelled or replaced in time, nothing leaves. K then follows the requests, but remains below
        the key of any request that is still to be read, by the brokers' time: a clock that is ahead makes none overdue.
        """
        if self.release_barrier is None:
            self.store.release_queue.advance_settled(min(now_ms, self._newest_ms) - self._still_ms, self._still_ms)
        return self.store.progress()

    def _may_defer_commit(self, waits: tuple[Wait, ...], now_ms: int) -> bool:
        """True if C may stay where it is, so that no journal record is needed: as if those requests came later.

        They are timers that have not left and that no other request has named, and K has not passed their keys.
        """
        if not self._is_caught_up or self._is_commit_due(now_ms) or waits or self._frozen_waits:
            return False
        return self._draft.only_ordered_releases(self._frozen_offset)

    def _is_commit_due(self, now_ms: int) -> bool:
        """True if stored requests have waited long enough for their commit, or the clock was set back."""
        since_ms = self._dirty_since_ms
        return since_ms is not None and has_passed(since_ms, now_ms, self._options.commit_interval_ms)

    def recheck(self, frozen: FrozenDraft, now_ms: int) -> None:
        """Prepare an aborted draft for its retry: reject timers that have expired meanwhile."""
        frozen.at_ms = max(frozen.at_ms, now_ms)
        frozen.draft.park_expired(frozen.at_ms)
        rolled = self._roll_unavailable(frozen.draft, now_ms, frozen.at_ms)
        if rolled:
            self.flights.depart(rolled, now_ms)
            frozen.journal = self._journal_of(frozen)

    def _journal(self, draft: Draft, progress: Progress, waits: tuple[Wait, ...]) -> JournalRecord | None:
        """Return the decisions that (C, K) cannot express; None if there are none and nothing was read."""
        has_exceptions = draft.released or draft.rolled or waits or waits != self._frozen_waits
        if progress.next_offset == self._frozen_offset and not has_exceptions and self.is_claimed:
            return None
        return JournalRecord(
            from_offset=self._frozen_offset,
            next_offset=progress.next_offset,
            rules=self._options.rules,
            refused=tuple(record.offset for record, _ in draft.refused),
            ended=tuple(draft.ended),
            rolled=tuple(draft.rolled),
            landed=tuple(draft.landed),
            dropped=tuple(draft.dropped),
            held=tuple(draft.held),
            released=tuple(draft.released),
            waits=waits,
        )

    def _journal_of(self, frozen: FrozenDraft) -> JournalRecord:
        """Return the journal record of `frozen` with all copies that the transaction now holds."""
        rolled, reached = tuple(frozen.draft.rolled), frozen.progress.next_offset
        if frozen.journal is not None:
            return frozen.journal.model_copy(update={"rolled": rolled})
        return JournalRecord(from_offset=reached, next_offset=reached, rules=self._options.rules, rolled=rolled)

    def start_checkpoint(self, journal_offset: int) -> None:
        self.store.start_checkpoint(journal_offset, self.flights.all(), sorted(self.flights.ended))

    def committed(self, frozen: FrozenDraft) -> None:
        """The transaction of `frozen`, the oldest frozen draft, is committed."""
        oldest = self._frozen.popleft()
        assert frozen is oldest, "out of order"
        parked = frozen.draft.parked
        left = [(body.id, row in parked) for row, body in enumerate(frozen.draft.bodies) if body.id is not None]
        self._lately.forget(id_ for id_, is_parked in left if is_parked)
        self._lately.add((id_ for id_, is_parked in left if not is_parked), frozen.at_ms)
        self.committed_progress = frozen.progress
        self.store.committed(frozen.progress, is_all=self.is_quiet)
