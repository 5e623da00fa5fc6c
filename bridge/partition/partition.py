"""One partition that this instance owns, with its open store, between two commits.

    take_in(records) -> draft_due(now) -> freeze() -> transaction -> committed() | closed with the partition

A frozen draft belongs to one transaction, and a partition has at most one. If it is aborted, the draft is repeated,
without timers that have expired or whose target takes nothing (`recheck`). Meanwhile the next draft collects the
decisions on requests; timers leave after the outcome. A request for a timer that is frozen to leave waits for it
(`IntakeStop.TURN_FULL`), as it decides whether the request came before the delivery or too late.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from operator import itemgetter

from bridge.partition.copies import copy_of, hours_of, ranges_of
from bridge.partition.decide import BatchIntake, View
from bridge.partition.draft import Draft, FrozenDraft
from bridge.partition.journal import NewDecisions
from bridge.partition.limits import MOST_PAUSED, CircuitBreakers, TargetRateLimits
from bridge.partition.names import RecentlyDelivered
from bridge.partition.options import TurnOptions, has_passed
from bridge.partition.recover import Recovered
from bridge.partition.request import needing_no_room
from bridge.ports import Record
from kafka_timer.origin import TimerPartition
from schemas.journal import JournalRecord, Wait
from schemas.progress import Progress
from timer.errors import WheelFullError
from timer.format.body import Body, frame_size
from timer.format.unit import isin
from timer.index.due_counts import DueRange, joined_hours, joined_ranges
from timer.schedule.release_policy import most_wait_ms

_LARGEST_PART = 1 << 20
"""Requests that are decided together if they fit the wheel: more than a backlog has."""
_STILL_MS = 60_000
"""If nothing leaves, K moves in steps of this, and stays this far behind the clocks."""
_MOST_HELD = 100_000
"""Out-of-order timers of one partition: K had passed their key before they were read. Beyond this they are rolled."""
_CROWDED_SHARE = 4
_BY_DUE_THEN_REQUEST = itemgetter(Body._fields.index("due_ms"), Body._fields.index("origin_offset"))


class IntakeStop(Enum):
    """Why intake stopped before the last record. The values are the reasons in status and metrics.

    TURN_FULL: it goes on in a later turn. The next transaction has no room for more, or the turn has no time, or a
    request waits for the outcome of the transaction in flight: it names a timer in it, or an origin.
    """

    DISK_FULL = "disk"
    WHEEL_FULL = "wheel"
    TOO_MANY_HELD = "held"
    TURN_FULL = "transaction"


IntakeOutcome = tuple[int, IntakeStop | None, str]
"""Number of records taken in, copies of rolled or moved timers too; why not all, and a text for operators."""


class Partition:
    """A partition that is ours, with its store open."""

    def __init__(
        self,
        partition: TimerPartition,
        recovered: Recovered,
        options: TurnOptions,
        breakers: CircuitBreakers,
        now_ms: int,
    ) -> None:
        self.partition = partition
        self.store, self.flights, is_adopted = recovered
        self.committed_progress = self.store.advance_progress()._replace(number=self.store.committed_progress.number)
        self._is_caught_up = False
        """True if the requests that were there at the opening are committed."""
        self._draft = Draft(partition, options, TargetRateLimits(options.targets))
        self._frozen: FrozenDraft | None = None
        self._dirty_since_ms: int | None = 0 if is_adopted else None  # at once: the operator's word is for one start
        self._must_claim = False
        self._recently = RecentlyDelivered()
        self.use(options, breakers, now_ms)
        self.backlog: list[Record] = []
        """Polled, but not taken in, because of a rate or a full disk, wheel or transaction."""
        self._newest_ms = 0
        """Timestamp of the newest request, by the brokers' clocks."""
        self._part_size = _LARGEST_PART
        self._waits_for_commit = False
        """True if the backlog waits for the next transaction, or for the outcome of the one in flight."""
        self._requests = 0
        """Requests that were taken in and are in no frozen draft, without copies."""
        self._overdue: dict[int, Body] = {}
        """Timers that were overdue at intake. They leave with the next draft; until then requests may end them."""
        self._frozen_waits = self.store.release_queue.waits
        self.frozen_ms = 0
        """Time of the turn of the last transaction."""

    def use(self, options: TurnOptions, breakers: CircuitBreakers, now_ms: int) -> None:
        """Apply the limits of `options`: if the timer topic has more partitions, each has a smaller share."""
        self.options, limits = options, TargetRateLimits(options.targets, breakers, now_ms)
        self._draft = replace(self._draft, options=options, limits=limits)
        self._view = View(self.store.queries, self.store.release_queue, self.flights, self._recently, limits, options)

    def claim(self) -> None:
        """Claim the journal: the next transaction is due at once, and has a journal record that decides nothing."""
        self._dirty_since_ms = 0
        self._must_claim = True

    def due_ranges(
        self, is_over: Callable[[], bool] = lambda: False, *, needs_last: bool = True
    ) -> dict[str, DueRange]:
        """Return, for each target topic, the number of pending timers (with copies in flight), first and last due time.

        If `is_over()` ends the search, and for last times without `needs_last`, they are rounded to the hour.
        """
        stored = self.store.queries.due_ranges(is_over, needs_last=needs_last)
        return joined_ranges((stored, ranges_of(self.flights.alive())))

    def due_hours(self) -> dict[str, Counter[int]]:
        """Return, for each target topic, the start of each hour (epoch ms) and the number of timers due in it."""
        return joined_hours((self.store.queries.dues.hours(), hours_of(self.flights.alive())))

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
        self, records: list[Record], now_ms: int, most: int | None, *, no_room: str, is_over: Callable[[float], bool]
    ) -> IntakeOutcome:
        """Take in `records` after the backlog, at most `most` records in all (None: any number).

        no_room: why the disk has no room for bodies; empty if it has. Requests that store no body (cancels) are then
        still taken, in order, up to the first request that stores one.
        is_over: True when the partition has had a part (0 to 1) of its time in this turn. A few requests are taken in
        all the same.
        """
        self._add_to_backlog(records)
        before = len(self.backlog)
        left = before if most is None else min(most, before)
        if no_room:
            left = needing_no_room(self.backlog[:left], self.options.rules)
        stop, detail = self._take_in_backlog(left, now_ms, is_over)
        self._waits_for_commit = stop is IntakeStop.TURN_FULL
        if no_room and self.backlog and stop in (None, IntakeStop.TURN_FULL):
            stop, detail = IntakeStop.DISK_FULL, no_room
        taken = before - len(self.backlog)
        if taken and self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        return taken, stop, detail

    def _take_in_backlog(
        self, left: int, now_ms: int, is_over: Callable[[float], bool]
    ) -> tuple[IntakeStop | None, str]:
        """Take in the first `left` records of the backlog, part by part. Return why not all, with a text.

        A part ends with a move, or when the wheel is full: a batch that spans more than a lap is taken in by parts. The
        next ones are smaller, as a part that does not fit is decided in vain, and grow again.
        """
        if self.backlog and (too_many := self._too_many_held):
            return IntakeStop.TOO_MANY_HELD, too_many
        while left:
            if self._has_moved_enough() or (self._frozen is not None and self._is_draft_full()):
                return IntakeStop.TURN_FULL, ""
            try:
                taken = BatchIntake(
                    self._view, self.backlog[: min(self._part_size, left)], now_ms, self._overdue, is_over
                )
                if (flown := self._frozen) and taken.may_name(flown.ids, flown.draft.decisions.rolled):
                    return IntakeStop.TURN_FULL, ""
                self._take_in_part(taken, now_ms)
                left -= taken.count
                self._part_size = min(2 * self._part_size, _LARGEST_PART)
            except WheelFullError as full:
                if (size := min(self._part_size, left)) == 1:
                    return IntakeStop.WHEEL_FULL, str(full)
                self._part_size = size // 2
            except OSError as error:
                return IntakeStop.DISK_FULL, str(error)
            if left and is_over(1):
                return IntakeStop.TURN_FULL, ""
        return None, ""

    def _has_moved_enough(self) -> bool:
        """True if moves fill half of the next transaction; the rest is for due timers."""
        copies = len(self._draft.copies)
        is_large = 2 * self._draft.size_bytes >= self.options.max_due_bytes
        return 2 * copies >= self.options.max_due_records or (copies > 0 and is_large)

    def _is_draft_full(self) -> bool:
        """True if the draft, which waits for the outcome of the transaction in flight, fills the next one."""
        draft, overdue = self._draft, self._overdue.values()
        is_long = draft.decisions.count() + len(overdue) >= self.options.max_poll_records
        return is_long or draft.size_bytes + sum(map(frame_size, overdue)) >= self.options.max_due_bytes

    def _take_in_part(self, taken: BatchIntake, now_ms: int) -> None:
        """Take in the first records of the backlog. An error is raised before anything has changed.

        The decisions are applied at once, as the next request may name what they have changed.
        """
        taken.decide()
        self.store.add(taken.batch, self.backlog[taken.count - 1].offset + 1)
        del self.backlog[: taken.count]
        draft, decisions = self._draft, taken.decisions
        self._requests += taken.count - len(decisions.landed)
        for target, timers in taken.leaving.items():
            draft.limits.spend(target, timers, now_ms)
        self._overdue = taken.overdue
        self._recently.forget(taken.ended_ids)
        self.flights.land(decisions.landed)
        self.flights.end(decisions.ended)
        for body, due_ms in taken.moved.values():
            copy = copy_of(self.partition, body, now_ms, moved_ms=due_ms)
            draft.add_copy(copy)
            self.flights.stage(copy.flight)
        self.flights.depart(decisions.rolled)
        draft.add_decisions(decisions)

    def end_lost_copies(self) -> list[int]:
        """End the timers whose copies were not read, though all records from before the opening are. Return origins."""
        decisions = self._draft.decisions
        room = max(0, self.options.max_poll_records - decisions.count_of_requests()) // 2  # two entries each
        landed = [(flight.origin_offset, flight.rolls) for flight in self.flights.unread()[:room]]
        lost = [origin_offset for origin_offset, _ in landed]
        if lost:
            self.flights.land(landed)
            decisions.add(NewDecisions(ended=lost, landed=landed))
            self._dirty_since_ms = 0
        return lost

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
        self._draft.leave(overdue.values(), now_ms)
        is_full = may_release and self._release(now_ms, most)
        if self._too_many_held:
            self._roll_held(now_ms)
        self._note_waits(now_ms)
        return is_full

    @property
    def _too_many_held(self) -> str:
        """The reason why intake waits until out-of-order timers have left or are rolled; empty if there is none."""
        is_full = len(self.store.release_queue.out_of_order) >= _MOST_HELD
        return f"{_MOST_HELD} timers are held: it goes on when some have left or are rolled" if is_full else ""

    def _release(self, now_ms: int, most: int) -> bool:
        """Draft the timers that leave now, at most `most`, as far as one transaction has room. True if it was full."""
        draft, queue, bodies = self._draft, self.store.release_queue, self.store.queries.bodies
        room = min(most, draft.room)
        if room <= 0:
            return True
        room_bytes = max(1, self.options.max_due_bytes - draft.size_bytes)
        gate = None if draft.limits.is_open else draft.limits
        waiting = list(queue.blocked)
        due = queue.take_due(now_ms, room, room_bytes, gate, most_wait_ms(self.options.rules.roll_window_ms))
        if due.total:
            draft.decisions.released.extend(due.released["origin"].tolist() + due.old_released["origin"].tolist())
            for rows in (due.rows, due.released) if waiting else ():
                draft.waited_origins.update(rows["origin"][isin(rows["topic_hash"], waiting)].tolist())
            draft.leave(bodies(due.rows) + bodies(due.released), now_ms)
            draft.roll(bodies(due.old_rows) + bodies(due.old_released), now_ms)
        return due.total >= room

    def _roll_held(self, now_ms: int) -> None:
        """Roll the oldest out-of-order timers, also under full load: intake must reach the end of a pause."""
        draft, store = self._draft, self.store
        room = max(draft.room, self.options.max_due_records // _CROWDED_SHARE)
        rows = store.release_queue.take_overflow(now_ms, room, self.options.max_due_bytes)
        draft.decisions.released.extend(rows["origin"].tolist())
        draft.roll(store.queries.bodies(rows), now_ms)

    def _note_waits(self, now_ms: int) -> None:
        """Let the journal name target backlogs if they changed, and again before Kafka forgets the last record."""
        waits = self.store.release_queue.waits
        if self._dirty_since_ms is None and (waits or self._frozen_waits):
            is_old = has_passed(self.frozen_ms, now_ms, self.options.rules.roll_window_ms // 2)
            self._dirty_since_ms = now_ms if is_old or waits != self._frozen_waits else None

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
        is_waiting = self.backlog or self._overdue or self._frozen_waits or self.store.release_queue.waits
        return self.is_quiet and not is_waiting

    def has_news(self) -> bool:
        return self._draft.has_output() or self._dirty_since_ms is not None

    def next_look_ms(self, now_ms: int, until_ms: int, *, may_release: bool) -> int:
        """Return when something is to be done without a new record, at the latest `until_ms`."""
        looks = [0 if self._waits_for_commit or self._overdue else until_ms]
        if may_release:
            queue, limits = self.store.release_queue, self._draft.limits
            wait_ms = most_wait_ms(self.options.rules.roll_window_ms)
            release_ms = queue.next_release_ms(lambda target: limits.next_ms(target, now_ms), wait_ms)
            looks += [at_ms for at_ms in (queue.next_visit_ms(until_ms), release_ms) if at_ms is not None]
        if self._dirty_since_ms is not None:
            looks.append(self._dirty_since_ms + self.options.commit_interval_ms)
        return min(looks) if self._frozen is None else max(now_ms + 1, min(looks))

    def freeze(self, now_ms: int, at_ms: int, *, is_all: bool, is_caught_up: bool) -> FrozenDraft:
        """Return the draft of a turn at `now_ms`, for a transaction at `at_ms`. Only refusals and `recheck` change it.

        Unless `is_all`, stored requests without output may be left to a later one (`_may_defer_commit`).
        is_caught_up: True if the requests that were there at the opening are read.
        """
        assert self._frozen is None, "two transactions at once"
        progress, waits = self._progress(now_ms, is_caught_up=is_caught_up), self.store.release_queue.waits
        lags = not is_all and self._may_defer_commit(waits, now_ms)
        if lags:
            offset = self.committed_progress.next_offset
            progress = progress._replace(next_offset=offset, low_offset=min(offset, progress.low_offset))
        draft, self._draft = self._draft, Draft(self.partition, self.options, self._draft.limits)
        draft.bodies.sort(key=_BY_DUE_THEN_REQUEST)
        draft.park(at_ms)
        draft.roll_unavailable(at_ms, at_ms)
        ids = frozenset(body.id for body in draft.bodies if body.id is not None)
        journal = self._journal(draft, progress, waits)
        self._frozen = FrozenDraft(draft, progress, journal, at_ms, ids, 0 if lags else self._requests)
        self._frozen.make_records()
        self._frozen_waits, self.frozen_ms, self._must_claim = waits, now_ms, False
        self.flights.publish(draft.decisions.rolled)
        if not lags:
            self._requests, self._dirty_since_ms, self._is_caught_up = 0, None, is_caught_up
        return self._frozen

    def _progress(self, now_ms: int, *, is_caught_up: bool) -> Progress:
        """Return (C, K, L) of the draft, with its number.

        If every timer is cancelled or replaced in time, nothing leaves. K then follows the requests, but remains below
        the key of any request that is still to be read, by the brokers' time: a clock that is ahead makes none overdue.
        """
        still_ms = min(_STILL_MS, self.options.rules.roll_window_ms // 8)
        if is_caught_up:
            self.store.release_queue.advance_settled(min(now_ms, self._newest_ms) - still_ms, still_ms)
        return self.store.advance_progress()._replace(number=self.committed_progress.number + 1)

    def _may_defer_commit(self, waits: tuple[Wait, ...], now_ms: int) -> bool:
        """True if C may stay where it is, so that no journal record is needed: as if those requests came later.

        They are timers that have not left and that no other request has named, and K has not passed their keys.
        """
        if not self._is_caught_up or self._is_commit_due(now_ms) or waits or self._frozen_waits:
            return False
        return self._draft.only_ordered_releases(self.committed_progress.next_offset)

    def _is_commit_due(self, now_ms: int) -> bool:
        """True if stored requests have waited long enough for their commit, or the clock was set back."""
        since_ms = self._dirty_since_ms
        return since_ms is not None and has_passed(since_ms, now_ms, self.options.commit_interval_ms)

    def recheck(self, frozen: FrozenDraft, now_ms: int) -> None:
        """Prepare an aborted draft for its retry: reject timers that have expired meanwhile."""
        self.flights.depart(frozen.retry(now_ms))

    def _journal(self, draft: Draft, progress: Progress, waits: tuple[Wait, ...]) -> JournalRecord | None:
        """Return the decisions that (C, K) cannot express; None if there are none and nothing was read."""
        has_exceptions = draft.decisions or waits or waits != self._frozen_waits
        from_offset = self.committed_progress.next_offset
        if progress.next_offset == from_offset and not has_exceptions and not self._must_claim:
            return None
        return JournalRecord(
            from_offset=from_offset,
            next_offset=progress.next_offset,
            rules=self.options.rules,
            **draft.decisions.journal_fields(),
            waits=waits,
        )

    def start_checkpoint(self, journal_offset: int) -> None:
        self.store.start_checkpoint(journal_offset, self.flights.all(), sorted(self.flights.ended))

    def committed(self, frozen: FrozenDraft) -> None:
        assert frozen is self._frozen, "another transaction"
        self._frozen = None
        parked = frozen.draft.parked
        if frozen.ids:
            left = [(body.id, body.origin_offset in parked) for body in frozen.draft.bodies if body.id is not None]
            self._recently.forget(id_ for id_, is_parked in left if is_parked)
            self._recently.add((id_ for id_, is_parked in left if not is_parked), frozen.at_ms)
        self.committed_progress = frozen.progress
        self.store.committed(frozen.progress, is_all=self.is_quiet)
