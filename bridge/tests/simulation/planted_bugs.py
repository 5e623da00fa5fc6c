"""Deliberate mistakes, to show that the simulation finds them. Each is put into the real code and taken out again.

    with applied("K left out"): run_seed(17)          python -m bridge.tests.simulation 0 1000 "K left out"

`MUTATIONS` tells each in a sentence. The first five are those that a bridge like this one is most easily built with.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from bridge.errors import OutcomeUnknownError
from bridge.loop.assigned_partition import AssignedPartition, Phase
from bridge.loop.commit_pipeline import CommitPipeline
from bridge.partition import copies as flights
from bridge.partition import draft
from bridge.partition import recover as recovery_plan
from bridge.partition.copies import CopiesInFlight, RolledCopy
from bridge.partition.decide import BatchIntake
from bridge.partition.draft import Draft, FrozenDraft
from bridge.partition.journal import JournalReader
from bridge.partition.limits import CircuitBreakers, TargetRateLimits, TokenBucket
from bridge.partition.options import TurnOptions
from bridge.partition.partition import IntakeOutcome, Partition
from bridge.ports import Aborted, Committed, Record, Transaction
from bridge.testing import FakeHistory, FakePublishing, FakeSink, fake_instance
from bridge.testing.fake_kafka import FakeGroup, FakeKafka
from kafka_timer.headers import MAX_INT64, PAUSED_MS, Claim
from kafka_timer.origin import TimerPartition
from schemas import recurrence
from schemas.journal import END, CopyInFlight, Decisions, JournalRecord
from schemas.progress import NOTHING_SETTLED, Key, Progress
from schemas.recurrence import Occurrence
from timer.format.batch import Batch
from timer.format.body import Body
from timer.format.checkpoint import NAME, Checkpoint
from timer.index import id_index as origin_index
from timer.index.id_index import OriginIndex
from timer.options import Engine
from timer.rocksdb import store as rocks_store
from timer.rocksdb.store import RocksTimers
from timer.schedule.blocked_targets import BlockedTarget, BlockedTargets
from timer.schedule.release_queue import Due, ReleaseQueue
from timer.store import Store
from timer.testing import SimDisk
from timer.wheel.pending_units import LiveScan
from timer.wheel.store import WheelStore

Patches = ExitStack
_take_in, _freeze, _committed = Partition.take_in, Partition.freeze, Partition.committed
_begin, _end = FakeSink.submit, FakeSink.end


def _replace(patches: Patches, owner: Any, name: str, new: Any) -> None:
    patches.enter_context(mock.patch.object(owner, name, new))


MUTATIONS: dict[str, Callable[[Patches], None]] = {}
Wrong = Callable[..., Any]


def _planted(mutation: str, owner: Any, name: str) -> Callable[[Wrong], Wrong]:
    """Make a function the mistaken form of `owner.name`. Its first argument is the right form."""
    right = getattr(owner, name)

    def plant(wrong: Wrong) -> Wrong:
        MUTATIONS[mutation] = lambda patches: _replace(
            patches, owner, name, lambda *given, **named: wrong(right, *given, **named)
        )
        return wrong

    return plant


@_planted("a standby claims what it has not read", fake_instance, "refresh_standby")
def _(
    refresh_standby: Wrong, partition: TimerPartition, disk: SimDisk, history: FakeHistory, options: TurnOptions
) -> None:
    """Its checkpoint names the progress at the end of the refresh, not at its begin."""
    refresh_standby(partition, disk, history, options)
    found, newest = recovery_plan.read_checkpoint(disk), history.progress(partition)
    if found is not None and newest is not None:
        disk.start_replace(NAME, found.model_copy(update={"progress": newest}).to_bytes()).wait()


def offset_before_store(patches: Patches) -> None:
    """Requests are stored only once the transaction that moves C past them stands: L forgets them."""
    waiting: dict[Partition, list[Batch]] = {}
    add = Store.add

    def take_in(self: Partition, *given: Any, **named: Any) -> IntakeOutcome:
        def add_later(store: Store, batch: Batch, next_offset: int) -> None:
            waiting.setdefault(self, []).append(batch)
            add(store, Batch(), next_offset)

        with mock.patch.object(Store, "add", add_later):
            return _take_in(self, *given, **named)

    def committed(self: Partition, frozen: FrozenDraft) -> None:
        _committed(self, frozen)
        for batch in waiting.pop(self, []):
            add(self.store, batch, self.store.next_offset)

    _replace(patches, Partition, "take_in", take_in)
    _replace(patches, Partition, "committed", committed)


def k_left_out(patches: Patches) -> None:
    """A start knows C and L, but not up to which key everything has left."""
    read = Progress.committed.__func__  # type: ignore[attr-defined]

    def committed(cls: type[Progress], next_offset: int, metadata: str | None) -> Progress:
        found: Progress = read(cls, next_offset, metadata)
        return found._replace(settled=NOTHING_SETTLED)

    _replace(patches, Progress, "committed", classmethod(committed))


@_planted("cut inside equal times", ReleaseQueue, "take_due")
def _(take_due: Wrong, queue: ReleaseQueue, *given: Any) -> Due:
    """K is a time alone: a burst that is cut inside one ms counts as gone as a whole."""
    found: Due = take_due(queue, *given)
    if len(found.rows):
        queue.settled = Key(queue.settled.visit_ms, MAX_INT64)
    return found


def late_not_settled(patches: Patches) -> None:
    """A request behind K leaves one transaction later than the one that moves C past it."""
    waiting: dict[Partition, dict[int, Body]] = {}

    def take_in(self: Partition, *given: Any, **named: Any) -> IntakeOutcome:
        try:
            return _take_in(self, *given, **named)
        finally:
            waiting.setdefault(self, {}).update(self._overdue)
            self._overdue = {}

    def committed(self: Partition, frozen: FrozenDraft) -> None:
        _committed(self, frozen)
        self._overdue |= waiting.pop(self, {})

    _replace(patches, Partition, "take_in", take_in)
    _replace(patches, Partition, "committed", committed)


def ahead_not_taken_back(patches: Patches) -> None:
    """A store keeps what it held beyond its checkpoint; then the same requests are read again."""

    def take_back(self: WheelStore, found: Checkpoint) -> Checkpoint:
        self._timers.low_unit = found.low_unit
        return found

    _replace(patches, WheelStore, "_truncate_to_checkpoint", take_back)
    _replace(patches, LiveScan, "_check_count", lambda _: None)


def _without(kind: str) -> Callable[[Patches], None]:
    """One kind of decision is left out of the journal."""

    def apply(patches: Patches) -> None:
        written = JournalRecord.to_bytes
        blank: dict[str, tuple[int, ...]] = {kind: ()}
        _replace(patches, JournalRecord, "to_bytes", lambda self: written(self.model_copy(update=blank)))

    return apply


def _returning(owner: Any, name: str, answer: object) -> Callable[[Patches], None]:
    """A question has always the same answer."""

    def apply(patches: Patches) -> None:
        _replace(patches, owner, name, lambda *_: answer)

    return apply


def _with(owner: Any, name: str, wrong: Callable[[Any], object]) -> Callable[[Patches], None]:
    """Return a planted bug: `wrong` turns the right function into the mistaken one."""
    return lambda patches: _replace(patches, owner, name, wrong(getattr(owner, name)))


def _write_journal(sink: FakeSink, journal: dict[TimerPartition, bytes]) -> None:
    for timer_partition, value in journal.items():
        sink.kafka.produce(sink.journal_of(timer_partition), value, partition=timer_partition.partition)


def journal_before(patches: Patches) -> None:
    """The journal is written by itself, before the transaction: what is aborted then was decided all the same."""

    def apart(self: FakeSink, transaction: Transaction) -> FakePublishing:
        _write_journal(self, transaction.journal)
        return _begin(self, replace(transaction, journal={}))

    _replace(patches, FakeSink, "submit", apart)


def journal_behind(patches: Patches) -> None:
    """The journal is written by itself, behind the transaction: a crash in between loses what was decided."""

    def submit(self: FakeSink, transaction: Transaction) -> FakePublishing:
        begun = _begin(self, replace(transaction, journal={}))
        begun.transaction = transaction
        return begun

    def end(self: FakeSink, under_way: FakePublishing) -> Committed | Aborted:
        fate = _end(self, under_way)
        self.fuse.step("sink.journal")
        if isinstance(fate, Committed):
            _write_journal(self, under_way.transaction.journal)
        return fate

    _replace(patches, FakeSink, "submit", submit)
    _replace(patches, FakeSink, "end", end)


def unordered_commits(patches: Patches) -> None:
    """A partition does not wait for its transaction: a crash in between skips what that one held."""

    def submit(self: FakeSink, transaction: Transaction) -> FakePublishing:
        earlier, self._in_flight = self._in_flight, []
        begun = _begin(self, transaction)
        self._in_flight[:0] = earlier
        return begun

    def freeze(self: Partition, *given: Any, **named: Any) -> FrozenDraft:
        self._frozen = None
        return _freeze(self, *given, **named)

    def committed(self: Partition, frozen: FrozenDraft) -> None:
        self._frozen = frozen
        _committed(self, frozen)

    _replace(patches, FakeSink, "submit", submit)
    _replace(patches, Partition, "freeze", freeze)
    _replace(patches, Partition, "committed", committed)
    _replace(patches, Partition, "is_frozen", False)


@_planted("unknown outcome taken for an abort", FakePublishing, "wait")
def _(_: Wrong, publishing: FakePublishing) -> Committed | Aborted:
    """A transaction whose commit got no answer is published again, though it may stand."""
    fate = publishing.finish()
    publishing.is_reported = True
    return Aborted({}) if isinstance(fate, OutcomeUnknownError) else fate


def below_l_kept(patches: Patches) -> None:
    """A store is caught up from its checkpoint, however old, though retention may have taken what lies between.

    Nor is it noticed that the journal does not go on where it leaves off, which would do too.
    """

    def usable(found: Checkpoint, progress: Progress, _journal_first: int) -> bool:
        known = found.progress
        return known.next_offset <= progress.next_offset and known.settled <= progress.settled

    _replace(patches, recovery_plan, "_usable", usable)
    _replace(patches, JournalReader, "_covers", lambda *_: True)


@_planted("digest not compared", CopiesInFlight, "claimed")
def _(_: Wrong, copies: CopiesInFlight, __: Record, claim: Claim) -> CopyInFlight | None:
    """Whatever says that it is an awaited copy is taken for it."""
    number = claim.origin.rpartition(b"/")[2]
    return copies._flights.get(int(number)) if number.isdigit() else None


def markers_not_read(patches: Patches) -> None:
    """A start takes what ended for alive, where the journal of that time is not read any more."""
    _replace(patches, LiveScan, "mark", lambda *_: None)
    _replace(patches, LiveScan, "_check_count", lambda _: None)


@_planted("nothing read first", AssignedPartition, "draft_due")
def _(draft_due: Wrong, partition: AssignedPartition, now_ms: int, most: int) -> bool:
    """Behind an opening what is due leaves at once: a cancel that was there before it loses."""
    if partition.phase is Phase.CATCHING_UP:
        partition.phase = Phase.OPEN
    return bool(draft_due(partition, now_ms, most))


@_planted("no skew margin", JournalReader, "_since_ms")
def _(since_ms: Wrong, reader: Any) -> int | None:
    """The journal is read from the time of L's record by that broker's clock alone."""
    found = since_ms(reader)
    return None if found is None else found + reader._options.clock_skew_margin_ms


@_planted("copies judged again", BatchIntake, "_receive_copy")
def _(receive: Wrong, intake: BatchIntake, record: Record, claim: Claim) -> None:
    """A copy that lands is asked for its target once more, by the policy of now."""
    refusal = intake.options.policy.refusal(claim.schedule.target)
    if refusal and intake.flights.claimed(record, claim):
        intake._refuse(record, refusal)
    else:
        receive(intake, record, claim)


def unstable_progress(patches: Patches) -> None:
    """Progress is read while a transaction may still change it."""
    _replace(patches, FakeKafka, "is_stable", lambda *_: True)
    _replace(patches, FakeHistory, "must_wait", lambda *_: False)


def units_kept(patches: Patches) -> None:
    """A start takes for alive, by its key, what was moved since the checkpoint."""
    patches.enter_context(mock.patch.object(Decisions, "gone", property(lambda _: set(), lambda *_: None), create=True))


@_planted("rules of now for old requests", JournalReader, "_records")
def _(read: Wrong, reader: Any, *span: Any) -> Iterator[JournalRecord]:
    """A start reads old requests by the settings that it has now."""
    return (record.model_copy(update={"rules": reader._options.rules}) for record in read(reader, *span))


@_planted("pause forgotten by a start", BlockedTargets, "__init__")
def _(made: Wrong, blocked: BlockedTargets, waits: Any) -> None:
    """A start knows what waits, but not that it is paused."""
    made(blocked, [wait._replace(is_paused=False) for wait in waits])


def _block_nothing(_: ReleaseQueue, target: str, after: Key) -> BlockedTarget:
    return BlockedTarget(target, is_paused=False, stretches=[(after, END)])


@_planted("one target that fails holds all", CircuitBreakers, "allowance")
def _(_: Wrong, breakers: CircuitBreakers, __: str, now_ms: int) -> int | None:
    """If one target takes no records, the timers of all targets wait."""
    return 0 if breakers.unavailable(now_ms) else None


@_planted("a target that fails is tried at once", CircuitBreakers, "trip")
def _(_: Wrong, __: CircuitBreakers, *_targets: Any, **_known: Any) -> list[str]:
    """No breaker is opened, so each transaction fails for the target that takes no records."""
    return []


def copies_missing_by_origin(patches: Patches) -> None:
    """The index by origin knows no copies of rolled timers."""
    patches.enter_context(mock.patch.object(origin_index, "BLOCK_UNITS", 1))
    _replace(patches, OriginIndex, "_add_copies", lambda *_: None)


def _c_left_behind(without: Callable[[Draft], Draft]) -> Callable[[Patches], None]:
    """Requests are left to a later commit although this one carries what became of them."""
    only_ordered_releases = Draft.only_ordered_releases

    def is_alone(self: Draft, below: int) -> bool:
        return only_ordered_releases(without(self), below)

    return lambda patches: _replace(patches, Draft, "only_ordered_releases", is_alone)


def next_occurrence_later(patches: Patches) -> None:
    """The copy for the next occurrence is written by the transaction after the one that delivers this one."""
    waiting: dict[TargetRateLimits, list[RolledCopy]] = {}
    release, deliver = Partition._release, Draft._deliver

    def deliver_alone(self: Draft, body: Body, now_ms: int) -> bool:
        apart = Draft(self.partition, self.options, self.limits)
        is_delivered = deliver(apart, body, now_ms)
        self.bodies += apart.bodies
        self.parked |= apart.parked
        waiting.setdefault(self.limits, []).extend(apart.copies)
        return is_delivered

    def release_with(self: Partition, now_ms: int, most: int) -> bool:
        for copy in waiting.pop(self._draft.limits, []):
            self._draft.add_copy(copy)
        return release(self, now_ms, most)

    _replace(patches, Draft, "_deliver", deliver_alone)
    _replace(patches, Partition, "_release", release_with)


@_planted("next occurrence lost by a retry", Partition, "recheck")
def _(recheck: Wrong, partition: Partition, frozen: FrozenDraft, now_ms: int) -> None:
    """A transaction that is published again has the deliveries alone."""
    recheck(partition, frozen, now_ms)
    origins = {body.origin_offset for body in frozen.draft.bodies}
    frozen.draft.copies = [copy for copy in frozen.draft.copies if copy.flight.origin_offset not in origins]
    frozen.make_records()


@_planted("next occurrence without its id", Draft, "_deliver")
def _(deliver: Wrong, draft: Draft, *given: Any) -> bool:
    """A cancel that is read before the copy for the next occurrence does not find it."""
    before = len(draft.decisions.rolled)
    is_delivered: bool = deliver(draft, *given)
    rolled = draft.decisions.rolled
    rolled[before:] = [flight._replace(id_hash="") for flight in rolled[before:]]
    return is_delivered


@_planted("copies of this and of the next occurrence", Draft, "replace_by_copies")
def _(replace_by_copies: Wrong, draft: Draft, copies: Any) -> None:
    """If a target takes nothing, the copy of this occurrence is sent, and that for the next one too."""
    before = draft.copies, draft.decisions.rolled
    draft.copies, draft.decisions.rolled = [], []
    replace_by_copies(draft, copies)
    draft.copies, draft.decisions.rolled = before[0] + draft.copies, before[1] + draft.decisions.rolled


def _following(wrong: Callable[[Occurrence, int, Any], Any]) -> Callable[[Patches], None]:
    """Return a planted bug: `wrong` gets an occurrence, the time and the right function, and decides instead."""
    return _with(Occurrence, "follow", lambda follow: lambda self, now_ms: wrong(self, now_ms, follow))


def _numbered(occurrence: Occurrence, now_ms: int, follow: Any) -> Any:
    is_delivered, following = follow(occurrence, now_ms)
    return is_delivered, following and following._replace(number=max(1, occurrence.number))


def _with_policy(missed: str, other: str) -> Callable[[Patches], None]:
    """Occurrences that ask for one policy get another one."""

    def decide(occurrence: Occurrence, now_ms: int, follow: Any) -> Any:
        rule = occurrence.rule
        if rule.missed == missed:
            occurrence = occurrence._replace(rule=rule._replace(missed=other))
        return follow(occurrence, now_ms)

    return _following(decide)


ROCKSDB = "rocksdb: "
"""Begin of the planted bugs that are searched with the engine `rocksdb` alone."""


@_planted(f"{ROCKSDB}ended ones are in the checkpoint", RocksTimers, "flush")
def _(flush: Wrong, timers: RocksTimers) -> None:
    """A checkpoint of the engine RocksDB still holds the timers that have left or ended."""
    timers._removed_rows = []
    flush(timers)


MUTATIONS |= {
    # An opening removes all timers up to K, also those whose target makes them wait.
    f"{ROCKSDB}backlogs are lost at an opening": _with(
        rocks_store, "pending_by_key", lambda right: lambda rows, settled, _: right(rows, settled, {})
    ),
    "offset before store": offset_before_store,
    "K left out": k_left_out,
    "late not settled": late_not_settled,
    "ahead not taken back": ahead_not_taken_back,
    "below L kept": below_l_kept,
    "C left behind what leaves": _c_left_behind(lambda draft: replace(draft, bodies=[])),
    "C left behind what has ended": _c_left_behind(
        lambda draft: replace(draft, decisions=replace(draft.decisions, ended=[]))
    ),
    "journal before the transaction": journal_before,
    "journal behind the transaction": journal_behind,
    "ended not journalled": _without("ended"),
    "rolled not journalled": _without("rolled"),
    "landed not journalled": _without("landed"),
    "dropped not journalled": _without("dropped"),
    "refused not journalled": _without("refused"),
    "held not journalled": _without("held"),
    "released not journalled": _without("released"),
    "waits not journalled": _without("waits"),
    # The copy of a timer that is moved says the time that it had.
    "moved one keeps its old time": _with(
        BatchIntake, "roll", lambda roll: lambda self, body, _: roll(self, body, body.due_ms)
    ),
    "units of moved ones kept": units_kept,
    # The copy of a timer that is paused says the time at which it was due.
    "a paused timer is delivered at its time": _with(
        BatchIntake, "roll", lambda roll: lambda self, body, due_ms: roll(self, body, due_ms % PAUSED_MS)
    ),
    # A timer that is resumed is due at once.
    "a resume forgets the due time": _with(
        BatchIntake, "due_ms", lambda due_ms: lambda self, name: min(PAUSED_MS, due_ms(self, name))
    ),
    # A timer that its target may not have now is left behind K, as if it had left.
    "passed over while it waits": _with(ReleaseQueue, "_block", lambda _: _block_nothing),
    "a wait that never ends": _returning(ReleaseQueue, "_unblock", False),
    # A timer that leaves takes half a token from the bucket of its target.
    "twice the rate": _with(TokenBucket, "spend", lambda spend: lambda self, tokens: spend(self, tokens / 2)),
    # A poll without news waits as long as it may, also if a timer is due earlier.
    "sleeps past the due time": _with(Partition, "next_look_ms", lambda _: lambda *times, **_: times[-1]),
    "id missing in flights": _returning(flights, "id_hash", ""),
    "origin missing in flights": _returning(CopiesInFlight, "with_origin", []),
    "copies missing by origin": copies_missing_by_origin,
    "checkpoints not used": _returning(recovery_plan, "_usable", False),
    "markers not read at a start": markers_not_read,
    "unstable progress": unstable_progress,
    # A timer does not count as pending while its copy is on its way.
    "quota without copies": _with(CopiesInFlight, "alive_count", lambda _: 0),
    # An aborted transaction is published again under a fresh generation, also for partitions that are another's by now.
    "lost shards repeated": _with(
        CommitPipeline,
        "retry",
        lambda retry: lambda self, _: retry(self, [part[0] for parts, _ in self._waiting for part in parts]),
    ),
    # A record that is published again says the time of the first try.
    "repeated with the old release time": _with(
        Partition, "recheck", lambda recheck: lambda self, frozen, _: recheck(self, frozen, frozen.at_ms)
    ),
    # Whether a timer has expired is asked by its due time, not by the time when it leaves.
    "expired one delivered": _with(draft, "expired", lambda expired: lambda body, _now_ms: expired(body, body.due_ms)),
    "next occurrence in a later transaction": next_occurrence_later,
    "number not raised": _following(_numbered),
    "one more than the count": _following(
        lambda each, now_ms, follow: follow(each._replace(rule=each.rule._replace(most=each.rule.most + 1)), now_ms)
    ),
    "missed ones delivered though none is wanted": _with_policy("none", "one"),
    "all missed ones delivered though one is wanted": _with_policy("one", "all"),
    "missed ones left out though all are wanted": _with_policy("all", "one"),
    # The next occurrence is counted from the time at which this one left, and not from its own.
    "interval counted from the release": _with(
        recurrence, "time_after", lambda after: lambda rule, _, after_ms: after(rule, after_ms, after_ms)
    ),
    # The next occurrence is counted from the time to which this one was moved.
    "a move shifts what comes after it": _following(
        lambda each, now_ms, follow: follow(each._replace(scheduled_ms=each.due_ms), now_ms)
    ),
    "request by cron delivered at once": _following(
        lambda each, now_ms, follow: follow(each._replace(number=max(1, each.number)), now_ms)
    ),
    "unordered commits": unordered_commits,
    "stale fence accepted": _returning(FakeGroup, "accepts", True),
}


def engines_for(name: str) -> tuple[Engine, ...]:
    """Return the engines with which the mistake `name` is searched; empty for those that each seed draws."""
    return ("rocksdb",) if name.startswith(ROCKSDB) else ()


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The bridge with the mistake `name` in it."""
    with ExitStack() as patches:
        MUTATIONS[name](patches)
        yield
