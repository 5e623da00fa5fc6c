"""What must have become of every request, seen from outside: over the committed records of a FakeKafka alone.

Looked at after each commit, in the order of the commits. What a commit reads (the requests and copies between the old C
and its own) is taken in first, by the settings of the instance that publishes; then its records must be just these:
1. An output names a request of a partition whose progress stands in the same transaction, and moves C past it or did.
2. Each refused request lies on the rejected topic, once, in the transaction that reads it, with its one code, its bytes
   and headers kept. Refused is also what the policy of its timer topic denies, and what is beyond its quota. A record
   that cannot be decoded lies there without bytes and headers.
3. Each other schedule is a timer until its one end: delivered at or after its due time by the publishing instance's
   clock, unaltered, with the four headers of ours; or parked with a code that fits; or ended by a later request with
   its id, and then never seen again. What is read in a commit ends what would have left in it. From its expiry on it
   is parked as `expired`, and never delivered.
   A recurring timer goes on: the transaction that takes out an occurrence holds the copy for the next one, with the
   next number and a time of its rule: the next, or the first after the publisher's clock, as it asks. It is over only
   by its rule or a later request. An occurrence that is to be skipped is not delivered: its number comes later.
4. Before it is due it may travel: a copy at the end of its own partition, bytes, foreign headers and due time as they
   were, `timer-rolls` one higher, one on its way at most. Read again it stands anew, in its old origin's name. Whatever
   else says that it is a copy is refused as `not-ours`; one with the very bytes of an awaited copy stands in for it.
5. Receipts are those that the settings ask for, each once, and say what was so.
6. C, K and L never go back; L is the lowest own offset of a live timer, C where none is.
7. Of the timers below C, those with key (visit, origin) <= K have left, the others live. An exception is one that was
   held: K had passed it already when it was read, and by the clock it was not to be looked at yet. Of a target that
   waits, the timers whose keys lie in one of its stretches live, the others have left, whatever K says. A target begins
   to wait only if it is limited, paused or takes no records, and ends when none of its timers is due and it is not
   paused. A timer is rolled if it waits for most of a window, or if its transaction failed for its target.
8. Within a transaction a partition's deliveries stand in order of (due, origin). With 7, so do those of several.
9. Behind an opening nothing leaves before the requests that were there then are read, but for what is late, and where
   intake cannot go on.
10. No target gets more than its rate, and what may leave leaves on time (bridge.tests.simulation.timeliness). Beside
   strangers, timers to other targets leave within a bound of their due time, and most of them at once (true time).
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from bridge.partition.options import TurnOptions
from bridge.testing.fake_kafka import Entry, FakeKafka, FakeTransaction, Partition, State
from bridge.tests.simulation.request_generator import (
    CANCEL,
    DELIVERED,
    EXPIRED,
    MORE_TIMERS,
    MOVE,
    ORDERS,
    PAUSED,
    REPLACE,
    RESUMED,
    SMALL,
    TIMERS,
    Header,
    Series,
    Wish,
)
from bridge.tests.simulation.timeliness import LATEST_MS, InstancePace, Left, Opening, Timeliness
from kafka_timer.control import Paused
from kafka_timer.headers import PAUSED_MS
from kafka_timer.origin import TimerPartition
from schemas.journal import END, JournalRecord, Wait
from schemas.progress import NOTHING_SETTLED, Key, Progress

REJECTED, JOURNAL, RECEIPTS = "timer.rejected", "timer.journal", "timer.receipts"
JOURNALS = {TIMERS: JOURNAL, MORE_TIMERS: "timer.more.journal"}
"""Of each timer topic."""
BEGINNING = Progress(0, NOTHING_SETTLED, 0)
_ADDED = ("timer-origin", "timer-deliver-ms", "timer-released-ms", "timer-rolls")
_REASON = ("timer-error", "timer-error-detail", "timer-origin")
_COPY_EXTRA_BYTES = 512
_IDLE_COMMITS = 8
"""Transactions of one partition while K is behind the waiting target: each may hold a single timer."""


class Violation(AssertionError):  # noqa: N818  (a verdict, not an error of the program)
    """An invariant does not hold."""


class Note(NamedTuple):
    """The publishing instance as its transaction began. Its clock, since nothing was staged or on its way:"""

    highest_ms: int
    lowest_ms: int
    options: TurnOptions
    opened: Mapping[TimerPartition, int]
    """Up to which offset requests could be read when it opened the partition."""
    paused: frozenset[TimerPartition]
    """Those of which intake cannot go on."""
    control: int
    """How far it has read the control topic."""
    turn_ms: int
    """Its clock at the begin of the turn."""
    pace: InstancePace


@dataclass(slots=True)
class Unread:
    """A record on the timer topic that no commit has moved past. Without a wish it says that it is a copy."""

    entry: Entry
    wish: Wish | None


@dataclass(slots=True)
class TrackedTimer:
    """A schedule that was taken and has not ended. `entry`: the request itself, or the copy that landed last.

    If it is paused, `due_ms` is PAUSED_MS more, so that nothing can deliver it.
    """

    wish: Wish
    due_ms: int
    entry: Entry
    key: Key
    read_ms: int
    """When the transaction that read `entry` began (true time)."""
    rolls: int = 0
    is_fresh: bool = True
    """Its record was read by the commit that is judged."""
    is_held: bool = False
    may_rest: bool = False
    """Its copy was read, and by the bridge's clock it would roll again soon."""
    is_flying: bool = False
    """Rolled, and the copy was not read yet."""
    was_leaving: bool = False
    """Rolled instead of delivered, and the copy was not read yet: the quota did not count it for a moment."""
    must_go_round: bool = False
    """It was moved: its next copy is to be published by the commit that is judged."""
    moved_ms: set[int] = field(default_factory=set)
    """One of these is what that copy says; where it is not the last one, it is moved on its way."""
    copy_due_ms: int = 0
    """What its last copy says."""
    number: int = 1
    """Of the occurrence, if it recurs; 0: the first one is still to be found."""
    scheduled_ms: int = 0
    """Its time by the rule, if it recurs."""

    def own_due_ms(self) -> int:
        """Return when it is due if it is not paused."""
        series, asked_ms = self.wish.series, self.entry.append_ms
        if series is None or self.number or self.must_go_round:  # one that is moved has the time of its move
            return self.due_ms % PAUSED_MS
        first_ms = series.after(asked_ms, asked_ms)
        return self.due_ms % PAUSED_MS if first_ms is None else first_ms

    def next_ms(self, clock_ms: int) -> int | None:
        """Return when the next occurrence is due if this one is taken out at that time by the clock; None: never."""
        series, passed_ms = self.wish.series, max(self.scheduled_ms, self.due_ms)
        assert series is not None
        return series.after(self.scheduled_ms, passed_ms if series.missed == "all" else max(passed_ms, clock_ms))

    def may_be_over(self, clock_ms: int) -> bool:
        """True if this occurrence may be the last one, taken out by that time of the clock."""
        return self.wish.series is None or self.number == self.wish.series.most or self.next_ms(clock_ms) is None

    def successor_ms(self) -> int | None:
        """Return when the occurrence after this one is due, whatever the clock says, if this one may be skipped."""
        series, passed_ms = self.wish.series, max(self.scheduled_ms, self.due_ms)
        is_skippable = series is not None and series.missed == "none" and self.number > 0
        return series.after(self.scheduled_ms, passed_ms) if series is not None and is_skippable else None


Output: TypeAlias = tuple[Partition, Entry, int]
"""What was published, and the offset of the request that it is of."""


class Said(NamedTuple):
    """What a receipt says. Of the kinds for nothing pending, always `not-found`."""

    kind: str
    request: int
    origin: int | None
    id: bytes | None
    code: str | None = None


@dataclass(slots=True)
class PartitionBook:
    """What is known of one partition."""

    progress: Progress = BEGINNING
    unread: dict[int, Unread] = field(default_factory=dict)
    timers: dict[int, TrackedTimer] = field(default_factory=dict)
    """By origin, on their way too."""
    flights: dict[tuple[int, int], Entry] = field(default_factory=dict)
    """(origin, rolls) -> the copy that was published and is not read yet; its timer may have ended."""
    ids: dict[bytes, int] = field(default_factory=dict)
    """What is pending under an id: its origin."""
    left_ids: set[bytes] = field(default_factory=set)
    """Those whose last timer was delivered."""

    waits: dict[str, Wait] = field(default_factory=dict)
    """Targets that wait, as the journal says: K tells nothing about their timers."""
    may_be_old: set[str] = field(default_factory=set)
    """Targets whose timers may have waited until the commit that is judged."""
    idle_waits: Counter[str] = field(default_factory=Counter)
    """In how many commits, one after the other, a target has waited for nothing."""
    control: deque[int] = field(default_factory=lambda: deque([0], maxlen=4))
    """How far the owner had read the control topic as its last transactions began: one may have been sealed before."""

    def forget_aborted(self) -> None:
        for offset in [o for o, unread in self.unread.items() if _state(unread.entry) is State.ABORTED]:
            del self.unread[offset]

    @property
    def paused(self) -> set[str]:
        """Targets that are paused, as the journal says."""
        return {wait.target for wait in self.waits.values() if wait.is_paused}

    def has_left(self, timer: TrackedTimer, settled: Key) -> bool:
        """True if a timer with this key and target has left, unless it is held."""
        wait = self.waits.get(timer.wish.target)
        if wait is None:
            return timer.key <= settled
        return not any(after < timer.key <= until for after, until in wait.stretches)

    def named_by(self, wish: Wish) -> int | None:
        """Return the origin of the timer that a request names by id or origin; None if none lives."""
        if wish.of is None:
            return self.ids.get(wish.id or b"")
        return wish.of if wish.of in self.timers else None

    def live(self) -> list[TrackedTimer]:
        """Those that wait at an offset."""
        return [timer for timer in self.timers.values() if not timer.is_flying]

    def remove(self, origin: int) -> TrackedTimer:
        timer = self.timers.pop(origin)
        if timer.wish.id is not None:
            del self.ids[timer.wish.id]
        return timer


@dataclass(slots=True)
class Commit:
    """One partition of a transaction, and what must be said of it beyond the timers that leave."""

    partition: TimerPartition
    book: PartitionBook
    progress: Progress
    """The new one."""
    note: Note
    rejected: Mapping[int, str]
    """Code of each request that it refuses or parks, by offset."""
    refused: dict[int, tuple[str, Entry]] = field(default_factory=dict)
    receipts: Counter[Said] = field(default_factory=Counter)
    ended_ids: set[bytes] = field(default_factory=set)
    owed: dict[int, TrackedTimer] = field(default_factory=dict)
    """Recurring timers of which an occurrence left: a copy for the next one is to be there."""
    ghosts: dict[int, TrackedTimer] = field(default_factory=dict)
    """Timers that were moved, and ended by a later request: of these a copy may have been made."""
    accepted_ms: dict[int, int] = field(default_factory=dict)
    moved_ms: dict[int, int] = field(default_factory=dict)
    """Due times that receipts tell, by the request."""
    dues_ms: dict[int, int] = field(default_factory=dict)
    """Of the timers of which receipts may speak, by origin."""


def _state(entry: Entry) -> State:
    return entry.transaction.state if entry.transaction else State.COMMITTED


def visit_ms(due_ms: int, timestamp_ms: int, window_ms: int) -> int:
    """When a timer is looked at next (design: RIP-43's rule with a third of a window)."""
    beyond_ms = due_ms - timestamp_ms - window_ms
    if beyond_ms <= 0:
        return max(due_ms, timestamp_ms)
    return timestamp_ms + (window_ms // 2 if beyond_ms * 3 < window_ms else window_ms)


class Oracle:
    """See the module. `only_outputs`: leaves out 6, 7 and 9, so that what is found was harm done to a reader."""

    def __init__(self, kafka: FakeKafka, partitions: Sequence[TimerPartition], *, only_outputs: bool = False) -> None:
        self._kafka = kafka
        self.only_outputs = only_outputs
        self._books = {partition: PartitionBook() for partition in partitions}
        self._seen = 0
        self._begun_ms = 0
        """When the transaction that is judged began (true time)."""
        self.failed_targets: set[str] = {SMALL}
        """Those that took no records for a while, or refused some: due timers may be rolled instead of delivered."""
        self._timeliness = Timeliness()
        self._told_ms: dict[tuple[str, str], int] = {}
        """When operators last said something of a target (true time), by timer topic and target."""
        self._control: defaultdict[Paused, list[tuple[int, bool]]] = defaultdict(list)
        """What operators asked for, with its offset."""
        self.counts: Counter[str] = Counter()

    def control(self, key: Paused, entry: Entry, *, on: bool) -> None:
        """`entry` was appended to the control topic."""
        self._control[key].append((entry.offset, on))
        self._told_ms[key] = self._kafka.timeline.now_ms

    def ask(self, partition: TimerPartition, wish: Wish, entry: Entry) -> None:
        """`entry` was appended to the timer topic as `wish` says."""
        self._books[partition].unread[entry.offset] = Unread(entry, wish)
        self.counts["requests"] += 1

    def forged(self, partition: TimerPartition, entry: Entry) -> None:
        """`entry` was appended by somebody else than a bridge and says that it is a copy."""
        self._books[partition].unread[entry.offset] = Unread(entry, None)
        self.counts["forged"] += 1

    def undecodable(self, partition: TimerPartition, entry: Entry) -> None:
        """`entry` was appended, and no client can decode it: it is refused without its contents when it is skipped."""
        self._books[partition].unread[entry.offset] = Unread(replace(entry, key=None, value=None, headers=()), None)
        self.counts["undecodable"] += 1

    def observe(self) -> int:
        """Looks at what was committed since. Returns how many transactions that were. Raises Violation."""
        if self._seen == len(self._kafka.commits):
            return 0
        fresh = self._kafka.commits[self._seen :]
        self._seen += len(fresh)
        for transaction in fresh:
            if transaction.offsets:
                self._judge(transaction)
        return len(fresh)

    def check_innocents(self, due_ms: Mapping[str, int], most_ms: int) -> None:
        """Demand that these origins left at most `most_ms` + LATEST_MS late, and half of them within LATEST_MS."""
        late_ms = sorted(
            record.transaction.begun_ms - due_ms[origin]
            for log in self._kafka.topics[ORDERS].partitions
            for record in log.committed(log.first, log.end)
            if record.transaction and (origin := (dict(record.headers).get("timer-origin") or b"").decode()) in due_ms
        )
        _check(len(late_ms) == len(due_ms), "timers beside strangers are lost", (len(late_ms), len(due_ms)))
        median_ms = late_ms[len(late_ms) // 2]
        _check(median_ms <= LATEST_MS, "strangers delay most timers of others", (median_ms, late_ms))
        _check(late_ms[-1] <= most_ms + LATEST_MS, "strangers delay a timer of others for long", late_ms)
        self.counts["beside strangers"] += len(late_ms)

    @property
    def commits(self) -> int:
        """So many were looked at."""
        return self._seen

    def pending(self, partition: TimerPartition) -> Counter[str]:
        """Timers of `partition` by real topic, by what was committed."""
        return Counter(timer.wish.target for timer in self._books[partition].timers.values())

    def due_ranges(self, partitions: Iterable[TimerPartition]) -> dict[str, tuple[int, int, int]]:
        """For each real topic: how many timers of `partitions` live, first and last due time; by what was committed."""
        dues: dict[str, list[int]] = {}
        for partition in partitions:
            for timer in self._books[partition].timers.values():
                dues.setdefault(timer.wish.target, []).append(timer.due_ms)
        return {target: (len(own), min(own), max(own)) for target, own in dues.items()}

    def paused(self) -> list[tuple[TimerPartition, str]]:
        """Targets that are paused, as committed."""
        return [(partition, target) for partition, book in self._books.items() for target in sorted(book.paused)]

    def paused_origins(self, partition: TimerPartition) -> list[int]:
        """Return the origins of the timers that are paused, as committed."""
        timers = self._books[partition].timers
        return sorted(origin for origin, timer in timers.items() if timer.due_ms >= PAUSED_MS)

    def live_ids(self, partition: TimerPartition) -> list[bytes]:
        """Ids under which a timer lives, as committed."""
        return sorted(self._books[partition].ids)

    def live_origins(self, partition: TimerPartition) -> list[int]:
        """Return the origins of the timers that live, as committed."""
        return sorted(self._books[partition].timers)

    def progress(self, partition: TimerPartition) -> Progress:
        """C, K and L, as committed."""
        return self._books[partition].progress

    def forget_deleted(self, partition: TimerPartition, alive: Container[int], kept: int) -> None:
        """Forget the timers whose requests retention has taken, unless their origins are in `alive`.

        kept: the store knew all requests below this offset.
        """
        book, first = self._books[partition], self._kafka.partition(partition).first
        lost = [timer.key.origin_offset for timer in book.live() if timer.entry.offset < first]
        lost = [origin for origin in lost if origin not in alive]
        for origin in lost:
            timer = book.remove(origin)
            _check(timer.entry.offset >= kept, f"{partition}: lost, though its store held it", (timer, kept))
        self.counts["lost to retention"] += len(lost)

    def unsettled(self) -> int:
        """Records that are not read yet, and timers."""
        for book in self._books.values():
            book.forget_aborted()
        return sum(len(book.unread) + len(book.timers) for book in self._books.values())

    def describe_unsettled(self) -> str:
        return "; ".join(
            f"{partition}/{offset} {what}"
            for partition, book in self._books.items()
            for offset, what in [*list(book.unread.items())[:3], *list(book.timers.items())[:3]]
        )

    # -- one commit

    def _judge(self, transaction: FakeTransaction) -> None:
        self.counts["transactions"] += 1
        note = transaction.note
        assert isinstance(note, Note)
        reached = {partition: progress for (_, partition), progress in transaction.offsets.items()}
        outputs: dict[TimerPartition, list[Output]] = {partition: [] for partition in reached}
        journals = {(log.topic, log.number): entry for log, entry in transaction.records}
        for log, entry in transaction.records:
            if log.topic not in JOURNALS.values():
                partition, origin = _about(log, entry)
                known = partition in reached and origin < reached[partition].next_offset
                _check(known, "published without its progress", entry)
                outputs[partition].append((log, entry, origin))
        for partition, progress in reached.items():
            own = note._replace(options=note.options.of(partition.topic))
            journal = journals.get((JOURNALS[partition.topic], partition.partition))
            self._begun_ms = transaction.begun_ms
            rejected = {at: _code(entry) for log, entry, at in outputs[partition] if log.topic == REJECTED}
            commit = Commit(partition, self._books[partition], progress, own, rejected)
            self._judge_partition(commit, outputs[partition], journal)

    def _judge_partition(self, commit: Commit, outputs: list[Output], journal: Entry | None) -> None:
        partition, book, note = commit.partition, commit.book, commit.note
        for known in book.timers.values():
            known.is_fresh = False
        stays_paused = self._read_waits(commit, journal)
        self._read(commit)
        left: list[Left] = []
        last = (-1, -1)
        told: list[Entry] = []
        for log, entry, origin in outputs:
            if log.topic == RECEIPTS:
                told.append(entry)
                continue
            if log.topic == REJECTED and origin in commit.refused:
                self._check_refused(*commit.refused.pop(origin), entry)
                continue
            if log.topic == partition.topic and origin in commit.owed:
                self._check_next(commit, commit.owed.pop(origin), log, entry)
                continue
            timer = self._timer_of(commit, origin, entry, is_copy=log.topic == partition.topic)
            if not timer.must_go_round:
                self._check_may_leave(commit, timer, entry)
                is_delivered = log.topic not in (partition.topic, REJECTED)
                self._note_left(partition, timer, left, is_delivered=is_delivered)
            if log.topic == partition.topic:
                self._check_copy(commit, timer, log, entry)
                continue
            _check(not timer.must_go_round, "left at the time of before it was moved", entry)
            waits = timer.wish.target in stays_paused
            is_old = _is_old(commit, timer, entry)
            _check(not waits or is_old, "left, though its target is paused", entry)
            self._leave(commit, origin)
            if log.topic == REJECTED:
                self._check_parked(commit, timer, entry, is_old=is_old)
            else:
                self._check_delivered(commit, timer, log, entry)
                _check(last < (timer.due_ms, origin), "out of order", entry)
                last = (timer.due_ms, origin)
        self._check_complete(commit)
        receipts = Counter(self._said(commit, entry) for entry in told)
        wanted = _wanted(commit.receipts, note.options.receipts)
        _check(receipts == wanted, f"{partition}: receipts missing, too much", (wanted - receipts, receipts - wanted))
        book.left_ids -= commit.ended_ids | {s.id for s in commit.receipts if s.id and s.kind == "rejected"}
        book.left_ids |= {said.id for said in commit.receipts if said.id and said.kind == DELIVERED}
        self.counts["receipts"] += receipts.total()
        self._check_progress(commit)
        others = {each.target for each in left} - self.failed_targets - book.paused
        limits = {target: _limit(target, note) for target in others}
        lot = 1 if note.options.max_due_bytes == 1 else note.options.max_due_records
        wrong = self._timeliness.judge(partition, left, limits, note.pace, self._begun_ms, lot)
        _check(not wrong or self.only_outputs, f"{partition}: {wrong}", note.pace)

    def _check_complete(self, commit: Commit) -> None:
        """All that had to be published is: copies and rejected records."""
        unending = [timer for timer in commit.owed.values() if not timer.may_be_over(commit.note.highest_ms)]
        _check(not unending, f"{commit.partition}: its next occurrence was not made", unending)
        stays = [timer for timer in commit.book.timers.values() if timer.must_go_round]
        _check(not stays, f"{commit.partition}: moved, but no copy of it was made", stays)
        refused = commit.refused
        _check(not refused, f"{commit.partition}: not refused in the transaction that reads them", refused)

    def _note_left(
        self, partition: TimerPartition, timer: TrackedTimer, left: list[Left], *, is_delivered: bool
    ) -> None:
        target = timer.wish.target
        read_ms = self._begun_ms if timer.is_fresh or timer.may_rest else timer.read_ms
        read_ms = max(read_ms, self._told_ms.get((partition.topic, target), 0))
        left.append(Left(target, timer.key.visit_ms, read_ms, is_delivered))

    def _timer_of(self, commit: Commit, origin: int, entry: Entry, *, is_copy: bool) -> TrackedTimer:
        timer = commit.book.timers.get(origin)
        if is_copy and (timer is None or timer.is_flying):
            timer = commit.ghosts.pop(origin, None)
        if timer is None or timer.is_flying:
            raise Violation(f"published twice, ended before, or never asked for: {entry}")
        return timer

    # -- what it reads

    def _read(self, commit: Commit) -> None:
        book = commit.book
        book.forget_aborted()
        for offset in sorted(offset for offset in book.unread if offset < commit.progress.next_offset):
            unread = book.unread.pop(offset)
            entry, wish = unread.entry, unread.wish
            is_open = _state(entry) is not State.COMMITTED
            _check(not is_open, f"{commit.partition}: C moved past an open transaction", unread)
            if entry.is_undecodable:
                self._refuse(commit, entry, "undecodable")
            elif wish is None:
                self._land(commit, entry)
            elif wish.action in (MOVE, PAUSED, RESUMED):
                self._take_move(commit, wish, entry)
            elif not wish.target and wish.action != CANCEL:
                (code,) = wish.may
                self._refuse(commit, entry, code)
            else:
                self._take(commit, wish, entry)

    def _refuse(self, commit: Commit, entry: Entry, code: str) -> None:
        commit.refused[entry.offset] = (code, entry)
        commit.receipts[Said("rejected", entry.offset, entry.offset, None, code)] += 1

    def _take(self, commit: Commit, wish: Wish, entry: Entry) -> None:
        book, note, offset, rules = commit.book, commit.note, entry.offset, commit.note.options.rules
        due_ms = wish.due_ms(entry.append_ms, rules.levels_ms)
        if wish.action != CANCEL:
            code = _refusal(wish, due_ms, entry, note.options, book, commit.rejected.get(offset))
            if code:
                self._refuse(commit, entry, code)
                return
        origin = book.named_by(wish)
        if origin is not None:
            self._end(commit, origin, wish, offset)
        elif wish.action in (CANCEL, REPLACE):
            commit.receipts[Said("not-found", offset, None, wish.id)] += 1
        if wish.action != CANCEL:
            timer = TrackedTimer(wish, due_ms, entry, _key(due_ms, entry, offset, note), self._begun_ms)
            timer.scheduled_ms = due_ms
            if wish.series is not None:
                timer.number = 0 if wish.series.is_cron and wish.series.starts_itself else 1
            book.timers[offset] = timer
            if _is_limited(wish.target, note):
                book.may_be_old.add(wish.target)
            commit.receipts[Said("accepted", offset, offset, wish.id)] += 1
            commit.accepted_ms[offset] = timer.own_due_ms()
            if wish.id is not None:
                book.ids[wish.id] = offset

    def _end(self, commit: Commit, origin: int, wish: Wish, offset: int) -> None:
        ended = commit.book.remove(origin)
        if ended.must_go_round:
            commit.ghosts[origin] = ended
        if ended.wish.id is not None and (wish.of is None or not (ended.is_flying or ended.must_go_round)):
            commit.ended_ids.add(ended.wish.id)
        kind = "cancelled" if wish.action == CANCEL else "replaced"
        commit.receipts[Said(kind, offset, origin, wish.id)] += 1
        commit.dues_ms[origin] = ended.own_due_ms()
        self.counts[kind] += 1
        self.counts["ended while paused"] += ended.due_ms >= PAUSED_MS
        self.counts["ended in flight"] += ended.is_flying
        self.counts["ended by origin"] += wish.of is not None

    def _take_move(self, commit: Commit, wish: Wish, entry: Entry) -> None:
        options = commit.note.options
        due_ms = wish.due_ms(entry.append_ms, options.rules.levels_ms)
        origin = commit.book.named_by(wish)
        timer = None if origin is None else commit.book.timers[origin]
        is_on_its_way = timer is not None and (timer.is_flying or timer.must_go_round)
        is_move, is_same = wish.action == MOVE, False
        if not is_move and timer is not None:
            due_ms = timer.own_due_ms() + PAUSED_MS * (wish.action == PAUSED)
            is_same = (due_ms >= PAUSED_MS) == (timer.due_ms >= PAUSED_MS)
        if is_move and due_ms - entry.append_ms > options.rules.max_delay_ms:
            self._refuse(commit, entry, "too-far")
        elif timer is None or origin is None:
            commit.receipts[Said("not-found", entry.offset, None, wish.id)] += 1
        elif (
            not (is_on_its_way or is_same or timer.rolls)
            and _size(timer.wish) + _COPY_EXTRA_BYTES > options.max_message_bytes
        ):
            self._refuse(commit, entry, "too-large")
        else:
            if not is_same:
                timer.due_ms = due_ms
            if not (is_same or timer.is_flying):
                timer.must_go_round = True
                timer.moved_ms.add(due_ms)
            kind = "moved" if is_move else wish.action
            commit.receipts[Said(kind, entry.offset, origin, wish.id)] += 1
            commit.moved_ms[entry.offset] = due_ms % PAUSED_MS
            self.counts[kind if is_move else f"timers {kind}"] += not is_same
            self.counts["moved by origin"] += wish.of is not None
            self.counts["moved in flight"] += is_on_its_way

    def _read_waits(self, commit: Commit, journal: Entry | None) -> set[str]:
        """Note the targets that wait from now on. Return those that were paused, and are, with no word in between."""
        partition, book, note = commit.partition, commit.book, commit.note
        before, paused, since = book.waits, book.paused, book.control[0]
        book.control.append(note.control)
        waits = () if journal is None else JournalRecord.from_bytes(journal.value or b"").waits
        book.waits = {wait.target: wait for wait in waits}
        known = {key.target: told for key, told in self._control.items() if key.timer_topic == partition.topic}
        asked = {target: {on for at, on in told if since <= at < note.control} for target, told in known.items()}
        for target in paused ^ book.paused:
            is_asked = (target in book.paused) in asked.get(target, ())
            _check(is_asked or self.only_outputs, f"{partition}: paused or resumed, and nobody asked for it", target)
        self.counts["paused"] += len(book.paused - paused)
        may_wait = self.failed_targets | _limited_targets(book, note)
        briefly_paused = {target for target, told in asked.items() if True in told}  # perhaps resumed before its commit
        book.may_be_old = may_wait | before.keys() | book.waits.keys() | briefly_paused
        for target in book.waits.keys() - before.keys():
            is_asked = any(at < note.control for at, on in known.get(target, ()) if on)
            may_begin = is_asked or target in self.failed_targets or _is_limited(target, note)
            _check(may_begin or self.only_outputs, f"{partition}: a target waits without a reason", target)
            self.counts["waits begun"] += 1
        self.counts["waits ended"] += len(before.keys() - book.waits.keys())
        return {target for target in paused & book.paused if not asked.get(target)}

    def _land(self, commit: Commit, entry: Entry) -> None:
        book, note = commit.book, commit.note
        place = next((place for place, copy in book.flights.items() if _same(copy, entry)), None)
        # A copy that is made instead of a delivery is awaited from then on: a forged one may have been judged before.
        is_of_failed = entry.transaction is None and _target(entry) in self.failed_targets
        if place is None or (is_of_failed and entry.offset in commit.rejected):
            self.counts["genuine refused"] += entry.transaction is not None
            self._refuse(commit, entry, "not-ours")
            return
        self.counts["forged taken"] += entry.transaction is None
        del book.flights[place]
        origin, rolls = place
        timer = book.timers.get(origin)
        if timer is None:
            self.counts["dropped"] += 1
            return
        timer.entry, timer.rolls, timer.key = entry, rolls, _key(timer.due_ms, entry, origin, note)
        timer.is_fresh, timer.is_held, timer.is_flying, timer.read_ms = True, False, False, self._begun_ms
        timer.was_leaving = False
        timer.may_rest = _may_rest(timer, note)
        if timer.due_ms != timer.copy_due_ms:
            timer.moved_ms, timer.must_go_round = {timer.due_ms}, True
        self.counts["may rest"] += timer.may_rest

    # -- what it publishes

    def _leave(self, commit: Commit, origin: int) -> None:
        timer = commit.book.remove(origin)
        commit.dues_ms[origin] = timer.due_ms
        if timer.wish.series is not None:
            commit.owed[origin] = timer

    def _check_may_leave(self, commit: Commit, timer: TrackedTimer, entry: Entry) -> None:
        """A timer that leaves is at or below K, or was held; and all that had to be read first is read."""
        if self.only_outputs:
            return
        book, reached, note = commit.book, commit.progress, commit.note
        is_its_turn = timer.is_held or timer.may_rest or book.has_left(timer, reached.settled)
        _check(is_its_turn, "left, but its key is above K, or in a stretch that waits", (reached, book.waits, entry))
        is_late = timer.is_fresh and timer.key <= book.progress.settled
        if not is_late and commit.partition not in note.paused:
            skipped = [offset for offset in book.unread if offset < note.opened[commit.partition]]
            _check(not skipped, "left before others were read that were there when it opened", (skipped, entry))

    def _check_refused(self, code: str, request: Entry, entry: Entry) -> None:
        self._check_rejected(request, entry, {code})
        self.counts["refused"] += 1

    def _check_parked(self, commit: Commit, timer: TrackedTimer, entry: Entry, *, is_old: bool) -> None:
        is_over = timer.wish.expire_ms is not None and entry.timestamp_ms >= timer.wish.expire_ms
        codes = {EXPIRED} if is_over else timer.wish.may - {DELIVERED}
        if (is_old or timer.wish.target in self.failed_targets) and not is_over:
            codes |= {"too-large"}
        if timer.wish.series is None:
            code = self._check_rejected(timer.entry, entry, codes)
        else:
            successor_ms, highest_ms = timer.successor_ms(), commit.note.highest_ms
            if successor_ms is not None and successor_ms <= highest_ms and timer.next_ms(highest_ms) is None:
                codes = codes | {"missed"}
            headers = timer.wish.occurrence_headers(timer.due_ms, timer.number)
            code = self._check_rejected(replace(timer.entry, headers=headers), entry, codes)
        self.counts["expired"] += is_over
        origin = timer.key.origin_offset
        commit.receipts[Said("rejected", origin, origin, timer.wish.id, code)] += 1
        self.counts["parked"] += 1
        if code == "missed":
            del commit.owed[origin]
            self.counts["missed to the end"] += 1

    def _check_rejected(self, request: Entry, entry: Entry, codes: set[str] | frozenset[str]) -> str:
        """With the headers of its last copy, where it has travelled."""
        added, code = dict(entry.headers[-3:]), _code(entry)
        _check(code in codes, "rejected with another code", (code, codes, entry))
        _check(sorted(added) == sorted(_REASON), "not the three headers of a rejection", entry)
        _check([*entry.headers[:-3]] == [*request.headers], "headers altered", (request.headers, entry))
        _check((entry.key, entry.value) == (request.key, request.value), "bytes altered", entry)
        return code

    def _check_delivered(self, commit: Commit, timer: TrackedTimer, log: Partition, entry: Entry) -> None:
        wish, note, added = timer.wish, commit.note, _check_as_wished(timer.wish, log, entry)
        _check(added["timer-deliver-ms"] == b"%d" % timer.due_ms, "another timer-deliver-ms", (timer.due_ms, entry))
        _check(added["timer-rolls"] == b"%d" % timer.rolls, "another timer-rolls", (timer.rolls, entry))
        _check(timer.due_ms <= entry.timestamp_ms <= note.highest_ms, "early", (timer.due_ms, note, entry))
        is_old = entry.transaction is not None and entry.timestamp_ms < note.turn_ms
        _check(not is_old, "released at a time before its turn", (note, entry))
        if wish.series is not None:
            _check(added["timer-occurrence"] == b"%d" % timer.number, "another timer-occurrence", (timer, entry))
            successor_ms = timer.successor_ms()
            is_missed = successor_ms is not None and successor_ms <= note.lowest_ms
            _check(not is_missed, "delivered, though it was to be skipped", (timer, note.lowest_ms, entry))
            self.counts["occurrences"] += 1
            self.counts["later occurrences"] += timer.number > 1
        commit.receipts[Said(DELIVERED, timer.key.origin_offset, timer.key.origin_offset, wish.id)] += 1
        self.counts["delivered"] += 1
        self.counts["delivered after rolls"] += timer.rolls > 0

    def _check_copy(self, commit: Commit, timer: TrackedTimer, log: Partition, entry: Entry) -> None:
        wish, note, origin, rolls = timer.wish, commit.note, timer.key.origin_offset, timer.rolls + 1
        _check(log.number == commit.partition.partition, "a copy on another partition", entry)
        _check((entry.key, entry.value) == (wish.key, wish.value), "bytes altered", entry)
        says = dict(entry.headers).get("timer-deliver-ms")
        follows_rule = wish.series is not None and self._follow_rule(timer, wish.series, says, note)
        due_ms = next((ms for ms in timer.moved_ms if says == b"%d" % ms), timer.due_ms)
        headers = wish.copy_headers(due_ms, f"{commit.partition}/{origin}", rolls, timer.number, timer.scheduled_ms)
        _check([*entry.headers] == headers, "not the headers of a copy", (headers, entry))
        at_ms = entry.timestamp_ms
        is_time = timer.key.visit_ms <= at_ms < timer.due_ms or _is_old(commit, timer, entry)
        timer.was_leaving = timer.wish.target in self.failed_targets and timer.due_ms <= at_ms
        is_time |= timer.must_go_round or timer.was_leaving or follows_rule
        # K had passed it when it was read, and then the clock was set back.
        is_time |= timer.is_fresh and timer.key <= commit.progress.settled and at_ms < timer.due_ms
        _check(is_time, "rolled at another time than its visit", (timer.key.visit_ms, entry))
        self.counts["rolled as too old"] += at_ms >= timer.due_ms and not timer.must_go_round
        timer.copy_due_ms, timer.moved_ms, timer.must_go_round = due_ms, set(), False
        _check(at_ms <= note.highest_ms, "rolled early", (note, entry))
        timer.is_flying = True
        commit.book.flights[origin, rolls] = entry
        commit.book.unread[entry.offset] = Unread(entry, None)
        self.counts["rolled"] += 1

    def _follow_rule(self, timer: TrackedTimer, series: Series, says: bytes | None, note: Note) -> bool:
        """Return True if a copy of a recurring timer has its first occurrence, or a later time of a skipped one.

        One that is moved has the time of that. Of a first one, only the time by the rule is noted then.
        """
        if not timer.number:
            asked_ms = timer.entry.append_ms
            first_ms = series.after(asked_ms, asked_ms)
            _check(first_ms is not None, "its rule has no time", timer)
            timer.number, timer.scheduled_ms = 1, first_ms or -1
            if timer.must_go_round:
                return False
            _check(timer.key.visit_ms <= note.highest_ms, "looked at too early", (timer, note))
            timer.due_ms = timer.scheduled_ms
            return True
        successor_ms = timer.successor_ms()
        if timer.must_go_round or says == b"%d" % timer.due_ms or successor_ms is None:
            return False
        _check(successor_ms <= note.highest_ms, "skipped, though it was to be delivered", (timer, note))
        self.counts["skipped"] += 1
        timer.due_ms = timer.scheduled_ms = _next_time(timer, says, note)
        return True

    def _check_next(self, commit: Commit, timer: TrackedTimer, log: Partition, entry: Entry) -> None:
        """A copy for the next occurrence, with the delivery or the rejection of this one."""
        wish, book, origin, rolls = timer.wish, commit.book, timer.key.origin_offset, timer.rolls + 1
        assert wish.series is not None
        _check(log.number == commit.partition.partition, "a copy on another partition", entry)
        _check((entry.key, entry.value) == (wish.key, wish.value), "bytes altered", entry)
        _check(timer.number < wish.series.most, "beyond the count of its rule", (timer, entry))
        due_ms = _next_time(timer, dict(entry.headers).get("timer-deliver-ms"), commit.note)
        headers = wish.copy_headers(due_ms, f"{commit.partition}/{origin}", rolls, timer.number + 1, due_ms)
        _check([*entry.headers] == headers, "not the headers of the next occurrence", (headers, entry))
        timer.number += 1
        timer.due_ms = timer.scheduled_ms = timer.copy_due_ms = due_ms
        timer.is_flying, timer.was_leaving, timer.moved_ms = True, False, set()
        book.timers[origin] = timer
        if wish.id is not None:
            book.ids[wish.id] = origin
        book.flights[origin, rolls] = entry
        book.unread[entry.offset] = Unread(entry, None)
        self.counts["next occurrences"] += 1

    def _said(self, commit: Commit, entry: Entry) -> Said:
        """What a receipt says, where it is not wrong in itself."""
        told = _read_receipt(entry.value or b"{}")
        request, about = _offset(told["request"]), told.get("origin")
        origin = None if about is None else _offset(about)
        name = told.get("id")
        id_ = None if name is None else entry.key
        _check(name == (None if id_ is None else id_.decode(errors="backslashreplace")), "not under its id", entry)
        _check(id_ is not None or entry.key == (about and about.encode()), "not under its origin", entry)
        _check(told["at_ms"] == entry.timestamp_ms and not entry.headers, "a receipt of another time", entry)
        is_move = told["kind"] in ("moved", PAUSED, RESUMED)
        by_request = commit.moved_ms if is_move else {"accepted": commit.accepted_ms}.get(told["kind"])
        if by_request is not None:
            _check(told["due_ms"] == by_request.get(request), "another due", entry)
        elif "due_ms" in told:
            _check(told["due_ms"] == commit.dues_ms.get(request if origin is None else origin), "another due", entry)
        kind = told["kind"]
        if kind == "too-late":
            _check(id_ in commit.book.left_ids, "told too late, but nothing has left under that id", entry)
            self.counts["too late"] += 1
            kind = "not-found"
        return Said(kind, request, origin, id_, told.get("code"))

    # -- where it stands

    def _check_progress(self, commit: Commit) -> None:
        partition, book, progress, note = commit.partition, commit.book, commit.progress, commit.note
        before = book.progress
        book.progress = progress
        if self.only_outputs:
            return
        went_back = progress[0] < before[0] or progress[1] < before[1] or progress[2] < before[2]
        _check(not went_back, f"{partition} went back", (before, progress))
        low = min((timer.entry.offset for timer in book.live()), default=progress.next_offset)
        _check(progress.low_offset == low, f"{partition}: L is not {low}", progress)
        for timer in book.live():
            if book.has_left(timer, progress.settled) and not timer.is_held:
                _check(timer.is_fresh or timer.may_rest, f"{partition}: K passed a live timer", (timer, progress))
                is_held = timer.may_rest or timer.key.visit_ms > note.lowest_ms
                is_held |= timer.wish.target in book.may_be_old
                _check(is_held, f"{partition}: a late one was not settled", (timer, progress, note.lowest_ms))
                timer.is_held = True
                self.counts["held"] += 1
        self._check_waits_end(commit)

    def _check_waits_end(self, commit: Commit) -> None:
        """Demand that a target goes on in the order of all once none of its timers waits and it is not paused.

        A turn finds that out before the next transaction, unless it still reads what was there when it opened.
        """
        book, note = commit.book, commit.note
        if not book.waits:
            return
        settled = book.progress.settled
        now_ms = max(note.highest_ms, settled.visit_ms)
        due = {timer.wish.target for timer in book.live() if timer.is_held or timer.key.visit_ms <= now_ms}
        others = min((t.key for t in book.live() if not (t.is_held or t.wish.target in book.waits)), default=END)
        next_key = min(others, Key(note.lowest_ms, -1))  # K cannot go further
        is_reading = any(offset < note.pace.openings.get(commit.partition, Opening()).end for offset in book.unread)
        idle = {
            wait.target
            for wait in book.waits.values()
            if not (wait.is_paused or wait.target in due or is_reading)
            if len(wait.stretches) == 1 and wait.stretches[0][0] <= max(settled, next_key)
        }
        book.idle_waits = Counter({target: book.idle_waits[target] + 1 for target in idle})
        stuck = [target for target, commits in book.idle_waits.items() if commits > _IDLE_COMMITS]
        _check(not stuck, f"{commit.partition}: its timers still wait, though none is due", (stuck, book.waits))


def _about(log: Partition, entry: Entry) -> tuple[TimerPartition, int]:
    """The request that an output is of."""
    if log.topic == RECEIPTS:
        name = str(_read_receipt(entry.value or b"{}")["request"])
    else:
        name = (dict(entry.headers)["timer-origin"] or b"").decode()
    topic, partition, offset = name.split("/")
    return TimerPartition(topic, int(partition)), int(offset)


@lru_cache(maxsize=256)
def _read_receipt(value: bytes) -> dict[str, Any]:
    """Each is looked at twice."""
    read: dict[str, Any] = json.loads(value)
    return read


def _offset(name: str) -> int:
    return int(name.rpartition("/")[2])


def _key(due_ms: int, entry: Entry, origin: int, note: Note) -> Key:
    return Key(visit_ms(due_ms, entry.append_ms, note.options.rules.roll_window_ms), origin)


def _limit(target: str, note: Note) -> float | None:
    return next((each for pattern, each in note.options.targets.items() if fnmatchcase(target, pattern)), None)


def _is_limited(target: str, note: Note) -> bool:
    return _limit(target, note) is not None


def _limited_targets(book: PartitionBook, note: Note) -> set[str]:
    if not note.options.targets:
        return set()
    return {target for target in {timer.wish.target for timer in book.timers.values()} if _is_limited(target, note)}


def _is_old(commit: Commit, timer: TrackedTimer, entry: Entry) -> bool:
    """Whether it has waited for its target for most of a window."""
    old_ms = timer.key.visit_ms + commit.note.options.rules.roll_window_ms * 3 // 4
    return timer.wish.target in commit.book.may_be_old and entry.timestamp_ms >= old_ms


def _may_rest(timer: TrackedTimer, note: Note) -> bool:
    rest_ms = note.options.rules.roll_window_ms // 8
    return timer.key.visit_ms < min(note.highest_ms + rest_ms, timer.due_ms) and timer.due_ms > note.lowest_ms


def _target(entry: Entry) -> str:
    return (dict(entry.headers).get("timer-topic") or b"").decode()


def _code(rejected: Entry) -> str:
    return (dict(rejected.headers[-3:]).get("timer-error") or b"").decode()


def _same(copy: Entry, entry: Entry) -> bool:
    return (copy.key, copy.value, [*copy.headers]) == (entry.key, entry.value, [*entry.headers])


def _refusal(
    wish: Wish, due_ms: int, entry: Entry, options: TurnOptions, book: PartitionBook, rejected: str | None
) -> str:
    """Return why a well-formed schedule is refused, empty if it is accepted.

    The quota does not count a timer that is leaving. If its target takes nothing, it is rolled and counts again; a
    request that was judged in between may be refused or not, so `rejected` decides: the code on its rejected record.
    """
    if wish.expire_ms is not None and wish.expire_ms <= due_ms:
        return "bad-header"
    if due_ms - entry.append_ms > options.rules.max_delay_ms:
        return "too-far"
    if _is_denied(wish.target, options):
        return "denied-target"
    series = wish.series
    if series is not None:
        first_ms = series.after(due_ms, due_ms) if series.is_cron and series.starts_itself else due_ms
        if first_ms is None or first_ms > series.until_ms:
            return "no-occurrence"
    is_rolled = due_ms - entry.append_ms > options.rules.roll_window_ms or series is not None
    if is_rolled and _size(wish) + _COPY_EXTRA_BYTES > options.max_message_bytes:
        return "too-large"
    most, pending = options.max_pending, len(book.timers)
    if most is None or wish.id in book.ids or pending < most:
        return ""
    may_be_accepted = pending - sum(timer.was_leaving for timer in book.timers.values()) < most
    return "" if may_be_accepted and rejected != "quota-exceeded" else "quota-exceeded"


def _next_time(timer: TrackedTimer, says: bytes | None, note: Note) -> int:
    """Return the time of the next occurrence that a copy says, if one of the publisher's clock times allows it."""
    series = timer.wish.series
    assert series is not None
    first_ms, last_ms = timer.next_ms(note.lowest_ms), timer.next_ms(note.highest_ms)
    due_ms = int(says or b"-1")
    is_time = series.after(timer.scheduled_ms, due_ms - 1) == due_ms
    _check(
        first_ms is not None and is_time and first_ms <= due_ms and (last_ms is None or due_ms <= last_ms),
        "the next occurrence is at another time than its rule says",
        (timer, due_ms, first_ms, last_ms),
    )
    return due_ms


def _is_denied(target: str, options: TurnOptions) -> bool:
    return _is_any(target, options.policy.deny) or not _is_any(target, options.policy.allow)


def _is_any(target: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(target, pattern) for pattern in patterns)


def _size(wish: Wish) -> int:
    headers: list[Header] = wish.headers
    payload = len(wish.key or b"") + len(wish.value or b"")
    return payload + sum(len(name) + len(value or b"") + 8 for name, value in headers)


def _wanted(receipts: Counter[Said], mode: str) -> Counter[Said]:
    if mode == "all":
        return receipts
    routine = ("accepted", DELIVERED)
    return Counter({said: n for said, n in receipts.items() if mode == "outcomes" and said.kind not in routine})


def _check_as_wished(wish: Wish, log: Partition, entry: Entry) -> dict[str, bytes | None]:
    """A delivery holds what was asked for. Returns the headers of ours."""
    names = _ADDED if wish.series is None else (*_ADDED, "timer-occurrence")
    added = dict(entry.headers[-len(names) :])
    _check(DELIVERED in wish.may, "delivered, where something else was expected", (wish.may, entry))
    is_over = wish.expire_ms is not None and entry.timestamp_ms >= wish.expire_ms
    _check(not is_over, "delivered, but it has expired", (wish.expire_ms, entry))
    _check(log.topic == wish.target and wish.partition in (-1, log.number), "on another topic or partition", entry)
    _check((entry.key, entry.value) == (wish.delivered_key, wish.value), "bytes altered", entry)
    _check([*entry.headers[: -len(names)]] == wish.foreign, "foreign headers altered", (wish.foreign, entry))
    _check(sorted(added) == sorted(names), "not the headers of a delivery", entry)
    _check(added["timer-released-ms"] == b"%d" % entry.timestamp_ms, "released at another time than CreateTime", entry)
    return added


def _check(holds: bool, what: str, where: object) -> None:  # noqa: FBT001
    """`where` is told only when it does not hold: telling takes longer than checking."""
    if not holds:
        raise Violation(f"{what}: {where}")
