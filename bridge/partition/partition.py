"""One partition that this instance owns, with its open store, between two commits.

    take_in(records) -> draft_due(now) -> freeze() -> transaction -> committed() | closed with the partition

A frozen draft belongs to one transaction, and a partition has at most one. If it is aborted, the draft is repeated,
without timers that have expired or whose target takes nothing (`recheck`). Meanwhile the next draft collects the
decisions on requests; timers leave after the outcome. A request for a timer that is frozen to leave waits for it
(`IntakeStop.TURN_FULL`), as it decides whether the request came before the delivery or too late.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from math import inf
from operator import itemgetter
from typing import NamedTuple

from bridge.partition.copies import copy_of, hours_of, ranges_of
from bridge.partition.decide import Quota, View, decide
from bridge.partition.draft import Draft, FrozenDraft
from bridge.partition.due_timers import DueTimers
from bridge.partition.ids import Intake, RecentlyDelivered
from bridge.partition.limits import MOST_PAUSED, CircuitBreakers
from bridge.partition.options import TurnOptions, has_passed
from bridge.partition.recover import Recovered
from bridge.partition.request import RequestBatch, needing_no_room, requests_of
from bridge.ports import Record
from kafka_timer.origin import TimerPartition
from schemas.journal import JournalRecord, Wait
from schemas.progress import Progress
from timer.errors import CorruptStoreError, WheelFullError
from timer.format.body import Body, frame_size
from timer.index.due_counts import DueRange, joined_hours, joined_ranges

_STILL_MS = 60_000
"""If nothing leaves, K moves in steps of this, and stays this far behind the clocks."""
_BY_DUE_THEN_REQUEST = itemgetter(Body._fields.index("due_ms"), Body._fields.index("origin_offset"))


class IntakeStop(Enum):
    """Why intake stopped before the last record that it was given.

    DISK_FULL, WHEEL_FULL and TOO_MANY_HELD outlast a turn: their values are the reasons in status and metrics.
    """

    DISK_FULL = "disk"
    WHEEL_FULL = "wheel"
    TOO_MANY_HELD = "held"
    TURN_FULL = "transaction"
    """Intake goes on in a later turn: the next transaction has no room for more, or the turn has no time, or a request
    waits for the outcome of the transaction in flight: it names a timer in it, or an origin."""


class IntakeOutcome(NamedTuple):
    """taken: number of records taken in, copies of rolled or moved timers too. detail: of `stop`, for operators."""

    taken: int
    stop: IntakeStop | None = None
    detail: str = ""


class Partition:
    """A partition that is ours, with its store open."""

    def __init__(
        self,
        partition: TimerPartition,
        recovered: Recovered,
        options: TurnOptions,
        breakers: CircuitBreakers,
    ) -> None:
        self.partition = partition
        self.store, self.flights, is_adopted = recovered
        self.committed_progress = self.store.advance_progress()._replace(number=self.store.committed_progress.number)
        self._is_caught_up = False
        """True if the requests that were there at the opening are committed."""
        self._draft = Draft()
        self._frozen: FrozenDraft | None = None
        self._frozen_number = self.committed_progress.number
        self._frozen_offset = self.committed_progress.next_offset
        """The draft begins at this offset."""
        # An adopted progress is committed at once: the operator gives the word for one start.
        self._dirty_since_ms: int | None = 0 if is_adopted else None
        self._must_claim = False
        self._recently = RecentlyDelivered()
        self.use(options, breakers)
        self.backlog: list[Record] = []
        """Polled, but not taken in, because of a rate or a full disk, wheel or transaction."""
        self._newest_ms = 0
        """Timestamp of the newest request, by the brokers' clocks."""
        self._waits_for_commit = False
        """True if the backlog waits for the next transaction, or for the outcome of the one in flight."""
        self._requests = 0
        """Requests that were taken in and are in no frozen draft, without copies."""
        self._overdue: dict[int, Body] = {}
        """Timers that were overdue at intake. They leave with the next draft; until then requests may end them."""
        self._still_ms = min(_STILL_MS, options.rules.roll_window_ms // 8)
        self._frozen_waits = self.store.release_queue.waits
        self.frozen_ms = 0
        """Time of the turn of the last transaction."""

    def use(self, options: TurnOptions, breakers: CircuitBreakers) -> None:
        """Apply the limits of `options`: if the timer topic has more partitions, each has a smaller share."""
        self.options = options
        self._due = DueTimers(self.partition, self.store, options, breakers)
        queries, queue = self.store.queries, self.store.release_queue
        self._view = View(queries, queue, self.flights, self._recently, self._due.limits, options)

    def claim(self) -> None:
        """Claim the journal: the next transaction is due at once, and has a journal record that decides nothing."""
        self._dirty_since_ms = 0
        self._must_claim = True

    def pending_by_topic(self) -> Counter[str]:
        """Return the number of pending timers of each target topic, with copies in flight."""
        counts = Counter(self.store.queries.pending_by_topic())
        counts.update(flight.target for flight in self.flights.alive())
        return counts

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, for each target topic, the number of pending timers (with copies in flight), first and last due time.

        If `is_over()` ends the search, and for last times without `needs_last`, they are rounded to the hour.
        """
        return joined_ranges(
            (self.store.queries.due_ranges(is_over, needs_last=needs_last), ranges_of(self.flights.alive()))
        )

    def due_hours(self) -> dict[str, Counter[int]]:
        """Return, for each target topic, the start of each hour (epoch ms) and the number of timers due in it."""
        return joined_hours((self.store.queries.due_hours(), hours_of(self.flights.alive())))

    def leaving(self) -> list[Body]:
        """Return the timers that are drafted or frozen to leave."""
        frozen = [] if self._frozen is None else self._frozen.draft.bodies
        return [*frozen, *self._draft.bodies, *self._overdue.values()]

    # -- requests

    @property
    def is_blocked(self) -> bool:
        """True if polled records wait for something else than the next transaction."""
        return bool(self.backlog) and not self._waits_for_commit

    def wait_for_commit(self, records: list[Record]) -> None:
        """Keep `records` for later: nothing is taken in until the transaction in flight has ended."""
        self._add_to_backlog(records)
        self._waits_for_commit = True

    def _add_to_backlog(self, records: list[Record]) -> None:
        self.backlog += records
        if records:
            self._newest_ms = max(self._newest_ms, records[-1].timestamp_ms)

    def take_in(
        self,
        records: list[Record],
        now_ms: int,
        most: int | None = None,
        *,
        no_room: str = "",
        is_over: Callable[[], bool] = lambda: False,
    ) -> IntakeOutcome:
        """Take in `records` after the backlog, at most `most` records in all (None: any number).

        no_room: why the disk has no room for bodies; empty if it has. Requests that store no body (cancels) are then
        still taken, in order, up to the first request that stores one.
        is_over: True when the partition has had its time in this turn. A few requests are taken in all the same.
        """
        self._add_to_backlog(records)
        before = len(self.backlog)
        left = before if most is None else min(most, before)
        if no_room:
            left = needing_no_room(self.backlog[:left], self.options.rules)
        try:
            stop, detail = self._take_in_backlog(left, now_ms, is_over)
        except OSError as error:
            stop, detail = IntakeStop.DISK_FULL, str(error)
        self._waits_for_commit = stop is IntakeStop.TURN_FULL
        if no_room and self.backlog and stop in (None, IntakeStop.TURN_FULL):
            stop, detail = IntakeStop.DISK_FULL, no_room
        taken = before - len(self.backlog)
        if taken and self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        return IntakeOutcome(taken, stop, detail)

    def _take_in_backlog(self, left: int, now_ms: int, is_over: Callable[[], bool]) -> tuple[IntakeStop | None, str]:
        """Take in the first `left` records of the backlog, part by part. Return why not all, with a text.

        A part ends with a move, or when the wheel is full: a batch that spans more than a lap is taken in by parts.
        """
        if self.backlog and (too_many := self._due.too_many_held):
            return IntakeStop.TOO_MANY_HELD, too_many
        rolling, size = self._rolling(), left
        while left:
            requests = requests_of(self.backlog[: min(size, left)], self.options.rules, is_over)
            if stop := self._why_stop(requests):
                return stop, ""
            try:
                left -= self._take_in_part(requests, rolling, now_ms, is_over)
            except WheelFullError as full:
                if size == 1:
                    return IntakeStop.WHEEL_FULL, str(full)
                size //= 2
            if left and is_over():
                return IntakeStop.TURN_FULL, ""
        return None, ""

    def _why_stop(self, requests: RequestBatch) -> IntakeStop | None:
        """Return why these requests, the next of the backlog, are not taken in now."""
        if self._has_moved_enough():
            return IntakeStop.TURN_FULL
        if self._frozen is None:
            return None
        names_leaving = requests.origin is not None or not self._frozen.ids.isdisjoint(requests.ids)
        return IntakeStop.TURN_FULL if names_leaving or self._is_draft_full() else None

    def _has_moved_enough(self) -> bool:
        """True if moves fill half of the next transaction; the rest is for due timers."""
        copies = len(self._draft.copies)
        is_large = 2 * self._draft.size_bytes >= self.options.max_due_bytes
        return 2 * copies >= self.options.max_due_records or (copies > 0 and is_large)

    def _is_draft_full(self) -> bool:
        """True if the draft, which waits for the outcome of the transaction in flight, fills the next one."""
        draft, overdue = self._draft, self._overdue.values()
        count = draft.decisions.count() + len(overdue)
        size_bytes = draft.size_bytes + sum(map(frame_size, overdue))
        return count >= self.options.max_poll_records or size_bytes >= self.options.max_due_bytes

    def _rolling(self) -> int:
        """Return the number of drafted copies that are not in `flights` yet."""
        return sum((flight.origin_offset, flight.rolls) not in self.flights for flight in self._draft.decisions.rolled)

    def _take_in_part(self, requests: RequestBatch, rolling: int, now_ms: int, is_over: Callable[[], bool]) -> int:
        """Take in the first records of the backlog; return how many.

        Raises OSError and WheelFullError before anything has changed.
        """
        taken = decide(self._view, requests, now_ms, self._quota(rolling), self._overdue, is_over)
        last, _ = requests.asked[taken.count - 1]
        self.store.add(taken.batch, last.offset + 1)
        del self.backlog[: taken.count]
        self._requests += taken.count - len(taken.decisions.landed)
        self._apply(taken, now_ms)
        return taken.count

    def _quota(self, rolling: int) -> Quota:
        """Return what may still be pending. Overdue timers count; copies in flight count as timers, not as bytes."""
        options, store = self.options, self.store
        timers = size_bytes = inf
        if options.max_pending is not None:
            uncounted = self.flights.alive_count + len(self._overdue) + rolling
            timers = options.max_pending - store.pending - uncounted
        if options.max_pending_bytes is not None:
            uncounted = sum(map(frame_size, self._overdue.values()))
            size_bytes = options.max_pending_bytes - store.queries.pending_bytes - uncounted
        return Quota(timers, size_bytes)

    def _apply(self, taken: Intake, now_ms: int) -> None:
        """Apply the decisions on a batch that is stored: the next request may name what they have changed."""
        draft, decisions = self._draft, taken.decisions
        for target, timers in taken.leaving.items():
            self._due.limits.spend(target, timers, now_ms)
        self._overdue = taken.overdue
        self._recently.forget(taken.ended_ids)
        self.flights.land(decisions.landed)
        self.flights.end(decisions.ended)
        for body, due_ms in taken.moved.values():
            copy = copy_of(self.partition, body, now_ms, moved_ms=due_ms)
            draft.add_copy(copy)
            self.flights.stage(copy.flight)
        self.flights.depart(decisions.rolled)
        draft.add_decisions(decisions, self.options.receipts)

    # -- timers that leave

    def obey(self, pauses: Mapping[str, bool]) -> list[str]:
        """Pause and resume these targets; others stay as they are. Return those beyond `MOST_PAUSED`."""
        paused = self.store.release_queue.paused()
        changed = [target for target, is_paused in pauses.items() if is_paused != (target in paused)]
        resumed = [target for target in changed if target in paused]
        room = max(0, MOST_PAUSED - len(paused) + len(resumed))
        begun = [target for target in changed if target not in paused]
        for target in resumed + begun[:room]:
            self.store.release_queue.pause(target, is_paused=pauses[target])
        return begun[room:]

    def draft_due(self, now_ms: int, most: int, *, may_release: bool) -> bool:
        """Draft the timers that leave now, at most `most`. True if there may be more. Call `freeze` in the same turn.

        may_release: False if stored timers wait for requests that are not read.
        """
        overdue, self._overdue = self._overdue, {}
        self._due.leave(self._draft, list(overdue.values()), now_ms)
        is_full = may_release and self._due.release(self._draft, now_ms, most)
        if self._due.too_many_held:
            self._due.roll_held(self._draft, now_ms)
        self._note_waits(now_ms)
        return is_full

    def _note_waits(self, now_ms: int) -> None:
        """Let the journal name target backlogs if they changed, and again before Kafka forgets the last record."""
        waits = self.store.release_queue.waits
        if not waits and not self._frozen_waits:
            return
        is_old = has_passed(self.frozen_ms, now_ms, self.options.rules.roll_window_ms // 2)
        if self._dirty_since_ms is None and (waits != self._frozen_waits or is_old):
            self._dirty_since_ms = now_ms

    @property
    def is_frozen(self) -> bool:
        """True if a transaction is in flight, or has to be repeated."""
        return self._frozen is not None

    def is_urgent(self, now_ms: int) -> bool:
        """True if something is to be published, or stored requests have waited long enough for their commit.

        Also if the decisions of another turn might not fit into one journal record (`journal_bytes` has room for two).
        """
        is_long = self._draft.decisions.count_of_requests() >= self.options.max_poll_records
        return self._draft.has_output() or is_long or self._is_commit_due(now_ms)

    @property
    def is_quiet(self) -> bool:
        """True if nothing is drafted or in a transaction in flight."""
        return self._frozen is None and not self.has_news()

    @property
    def is_resting(self) -> bool:
        """True if nothing happens before a record comes or a timer falls due, besides maintenance of the store."""
        return self.is_quiet and not (
            self.backlog or self._overdue or self._frozen_waits or self.store.release_queue.waits
        )

    def has_news(self) -> bool:
        return self._draft.has_output() or self._dirty_since_ms is not None

    def next_look_ms(self, now_ms: int, until_ms: int, *, may_release: bool) -> int:
        """Return when something is to be done without a new record, at the latest `until_ms`."""
        looks = [0 if self._waits_for_commit or self._overdue else until_ms]
        if may_release:
            looks.append(self._due.next_ms(now_ms, until_ms))
        if self._dirty_since_ms is not None:
            looks.append(self._dirty_since_ms + self.options.commit_interval_ms)
        return min(looks) if self._frozen is None else max(now_ms + 1, min(looks))

    def freeze(self, now_ms: int, at_ms: int, *, is_all: bool, is_caught_up: bool) -> FrozenDraft:
        """Return the draft of a turn at `now_ms`, for a transaction at `at_ms`. Only refusals and `recheck` change it.

        Unless `is_all`, stored requests without output may be left to a later one (`_may_defer_commit`).
        is_caught_up: True if the requests that were there at the opening are read.
        """
        progress, waits = self._progress(now_ms, is_caught_up=is_caught_up), self.store.release_queue.waits
        lags = not is_all and self._may_defer_commit(waits, now_ms)
        if lags:
            offset = self._frozen_offset
            progress = progress._replace(next_offset=offset, low_offset=min(offset, progress.low_offset))
        draft, self._draft = self._draft, Draft()
        self._frozen_number += 1
        progress = progress._replace(number=self._frozen_number)
        draft.bodies.sort(key=_BY_DUE_THEN_REQUEST)
        draft.park(self.options.rules.own_topics, at_ms)
        self._due.roll_unavailable(draft, at_ms, at_ms)
        ids = frozenset(body.id for body in draft.bodies if body.id is not None)
        journal = self._journal(draft, progress, waits)
        requests = 0 if lags else self._requests
        frozen = FrozenDraft(self.partition, self.options, draft, progress, journal, at_ms, ids, requests)
        assert self._frozen is None, "two transactions at once"
        self._frozen = frozen
        self._frozen_offset = progress.next_offset
        self._frozen_waits = waits
        self.frozen_ms = now_ms
        self._must_claim = False
        self.flights.depart(draft.decisions.rolled, now_ms)
        self._requests -= requests
        if not lags:
            self._dirty_since_ms = None
            self._is_caught_up = is_caught_up
        return frozen

    def _progress(self, now_ms: int, *, is_caught_up: bool) -> Progress:
        """Return (C, K, L) of the draft.

        If every timer is cancelled or replaced in time, nothing leaves. K then follows the requests, but remains below
        the key of any request that is still to be read, by the brokers' time: a clock that is ahead makes none overdue.
        """
        if is_caught_up:
            self.store.release_queue.advance_settled(min(now_ms, self._newest_ms) - self._still_ms, self._still_ms)
        return self.store.advance_progress()

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
        return since_ms is not None and has_passed(since_ms, now_ms, self.options.commit_interval_ms)

    def recheck(self, frozen: FrozenDraft, now_ms: int) -> None:
        """Prepare an aborted draft for its retry: reject timers that have expired meanwhile."""
        frozen.retry(now_ms)
        rolled = self._due.roll_unavailable(frozen.draft, now_ms, frozen.at_ms)
        if rolled:
            self.flights.depart(rolled)  # due, so they need no roll cooldown
            frozen.journal_copies()

    def _journal(self, draft: Draft, progress: Progress, waits: tuple[Wait, ...]) -> JournalRecord | None:
        """Return the decisions that (C, K) cannot express; None if there are none and nothing was read."""
        has_exceptions = draft.decisions.released or draft.decisions.rolled or waits or waits != self._frozen_waits
        if progress.next_offset == self._frozen_offset and not has_exceptions and not self._must_claim:
            return None
        return JournalRecord(
            from_offset=self._frozen_offset,
            next_offset=progress.next_offset,
            rules=self.options.rules,
            **draft.decisions.journal_fields(),
            waits=waits,
        )

    def start_checkpoint(self, journal_offset: int) -> None:
        self.store.start_checkpoint(journal_offset, self.flights.all(), sorted(self.flights.ended))

    def committed(self, frozen: FrozenDraft) -> None:
        """Note that the transaction of `frozen` is committed."""
        assert frozen is self._frozen, "another transaction"
        self._frozen = None
        parked = frozen.draft.parked
        if frozen.ids:
            left = [(body.id, body.origin_offset in parked) for body in frozen.draft.bodies if body.id is not None]
            self._recently.forget(id_ for id_, is_parked in left if is_parked)
            self._recently.add((id_ for id_, is_parked in left if not is_parked), frozen.at_ms)
        self.committed_progress = frozen.progress
        self.store.committed(frozen.progress, is_all=self.is_quiet)


class Damaged(NamedTuple):
    """A partition whose local store is damaged: the loop rebuilds it."""

    partition: Partition
    error: CorruptStoreError
