"""The loop: one thread, one turn after the other, numbered as in `Bridge.turn`.

    1 poll      wait for a request, or until the next due time
    2 intake    requests -> timers, late ones, refusals
    3 store     timers to disk                      nothing of 2-4 is seen by anybody before 5
    4 due       timers whose time has come
    5 publish   one transaction: deliveries, rejected, journal, progress of every shard; a second may be under way
    6 advance   what stands in Kafka is settled here; now and then a checkpoint

A crash before the commit of 5: the next life takes the store back to its checkpoint, reads again from C, and nobody saw
anything. A crash behind it: the next life reads (C, K) and the journal, and settles what was delivered.
"""

import errno
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from bridge.config.durations import has_passed
from bridge.config.loop_options import TurnOptions
from bridge.errors import BridgeError, PartitionUnreadableError, TopicGrownError
from bridge.intake.decide import MOST_PAUSED, ReleaseUndecidedError
from bridge.intake.rate_limit import TokenBucket
from bridge.loop.clock_skew import skew_ms
from bridge.loop.control_state import ControlState
from bridge.loop.open_transactions import OpenTransactions
from bridge.observe.log_throttle import LogThrottle
from bridge.observe.metrics import End, Metrics
from bridge.observe.status import Status, undecodable_text
from bridge.ports import Clock, History, Ownership, Preparation, Record, Sink, Source, UndecodableRecord
from bridge.publish.commit_pipeline import CommitPipeline, Part
from bridge.recovery.journal_owner import ours
from bridge.recovery.recover import Recovered, invalidate_store, look, recover, require_rebuildable
from bridge.release.circuit_breaker import CircuitBreakers
from bridge.release.partition import LagSample, OwnedPartition, StallProbe, TooManyHeldError
from schemas.origin import Shard
from timer.errors import CorruptStoreError, WheelFullError
from timer.files.disk import Disk
from timer.index.due_counts import DueRange, joined_hours, joined_ranges

log = logging.getLogger(__name__)

_READING_FIRST_WAIT_MS = 10
_PREPARING_WAIT_MS = 50
_LATEST_CHECKPOINT_MS = 10_000
"""When no pause has come by itself: a few ms of waiting, and a start never reads much more than this."""
_NEXT_TRY_MS = 5000
"""A rebuild may take long, and this thread: most of the time is the other shards'."""
_OPENING_MS = 3000
"""After openings of so long in one turn the other partitions are left to the next turns: timers leave in between."""
_UNREADABLE_MS = 60_000
"""So long what cannot be read is opened again, where a rebuild would lose what Kafka no longer has."""
_SOUND_MS = 15_000
"""A store that stood open for so long had no trouble with its disk."""
_LOOK_AGAIN_MS = 5000
_MOST_ASKED = 5000
"""Offsets that are looked through to see whether there is anything to be read."""
"""A client that fetches has brought something by then; where brokers throttle it, in twice the time, and so on."""
_FREE_ROOM = "free room on the disk of data_dir, or name another directory; nothing is lost, Kafka has it all"
_UNDER_WAY_WAIT_MS = 10
"""Soon enough to notice that a transaction was aborted."""


class _RetryDelay:
    """Not a preparation but a wait for one, some seconds long."""

    refused = None

    def __init__(self, clock: Clock, wait_ms: int = _NEXT_TRY_MS) -> None:
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._wait_ms = wait_ms

    def is_done(self) -> bool:
        return has_passed(self._since_ms, self._clock.now_ms(), self._wait_ms)

    def give_up(self) -> None:
        """Nobody works at it."""


class _Unreadable:
    """Stores that could not be read and must not be made anew for that: since when (epoch ms), and by what."""

    def __init__(self) -> None:
        self._known: dict[Shard, tuple[int, CorruptStoreError]] = {}

    def __contains__(self, shard: Shard) -> bool:
        return shard in self._known

    def note(self, shard: Shard, now_ms: int, wrong: CorruptStoreError) -> None:
        since_ms, _ = self._known.get(shard, (now_ms, wrong))
        self._known[shard] = min(since_ms, now_ms), wrong

    def forget(self, shard: Shard) -> None:
        self._known.pop(shard, None)

    def lasting(self, shard: Shard, now_ms: int) -> CorruptStoreError | None:
        """By what, where it is so for too long."""
        since_ms, wrong = self._known.get(shard, (now_ms, None))
        return wrong if now_ms - since_ms >= _UNREADABLE_MS else None


class Bridge:
    """All the shards that this instance owns, over its ports. Of one thread, but for `request_stop` and `wake`."""

    def __init__(
        self,
        *,
        clock: Clock,
        source: Source,
        history: History,
        sink: Sink,
        disk_for: Callable[[Shard], Disk],
        options: TurnOptions,
        prepare: Callable[[Shard], Preparation],
        control: ControlState,
        status: Status | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`control`: what operators ask for. `status` is told what becomes of shards, `metrics` what is committed."""
        self._clock = clock
        self._source = source
        self._history = history
        self._metrics = metrics or Metrics()
        self._breakers = CircuitBreakers(options.rules.own_topics)
        self._publisher = CommitPipeline(sink, clock, self._metrics, self._breakers, self._replace)
        self._disk_for = disk_for
        self._options = self._began_with = options
        self._prepare = prepare
        self._control = control
        self._status = status or Status()
        self._shards: dict[Shard, OwnedPartition] = {}
        self._preparing: dict[Shard, Preparation] = {}
        self._claimed: set[Shard] = set()
        """Those assigned to us whose journal is known to be our group's."""
        self._next_owner_read: _RetryDelay | None = None
        self._next_claims: _RetryDelay | None = None
        self._throttles: dict[str, TokenBucket] = {}
        """Of each timer topic with a rate."""
        self._throttled: set[Shard] = set()
        """Those of which intake waits for its rate."""
        self._complaints = LogThrottle(log)
        self._hanging = OpenTransactions()
        self._checkpoints_due_ms: dict[Shard, int] = {}
        self._unreadable = _Unreadable()
        self._undecodable: dict[Shard, int] = {}
        """Shards that are ours whose next record cannot be decoded, and is not skipped: its offset."""
        self._stopping = False
        self._was_opened = False

    @property
    def ready(self) -> bool:
        """Shards were assigned, and all that are ours are recovered."""
        return self._was_opened and not self._preparing and all(owned.is_claimed for owned in self._shards.values())

    @property
    def shards(self) -> Mapping[Shard, OwnedPartition]:
        """Those that are ours and open."""
        return self._shards

    @property
    def pending(self) -> dict[Shard, int]:
        """Live timers of each shard that is ours."""
        return {shard: counts.total() for shard, counts in self.pending_by_topic().items()}

    def pending_by_topic(self) -> dict[Shard, Counter[str]]:
        """Live timers of each shard that is ours, by real topic."""
        return {shard: owned.pending_by_topic() for shard, owned in self._shards.items()}

    def due_ranges(self, is_over: Callable[[], bool] = lambda: False) -> dict[str, DueRange]:
        """For each real topic: how many timers live in the shards that are ours, first and last due time.

        Where it has to search for these and `is_over`, they are told to the hour.
        """
        return joined_ranges(owned.due_ranges(is_over) for owned in self._shards.values())

    def due_hours(self) -> dict[str, Counter[int]]:
        """For each real topic: start of the hour (epoch ms) to the number of timers that are due in it."""
        return joined_hours(owned.due_hours() for owned in self._shards.values())

    def unavailable_targets(self) -> dict[str, int]:
        """Return the target topics that take no records, each with the time (epoch ms) since when."""
        return self._breakers.unavailable(self._clock.now_ms())

    @property
    def options(self) -> TurnOptions:
        """The limits that are in force."""
        return self._options

    def use(self, options: TurnOptions) -> None:
        """Share the limits out again, after a timer topic has got more partitions."""
        self._options = options
        for shard, owned in self._shards.items():
            owned.use(options.of(shard.topic))

    def turn(self) -> None:
        """One turn; waits in step 1 until there is something to do, at most `max_wait_ms`."""
        polled = self._source.poll(self._wait_ms(), self._options.max_poll_records)  # 1
        self._status.belongs(is_member=polled.is_member)
        if polled.ownership:
            self._publisher.finish()
        self._publisher.advance()
        self._change_hands(polled.ownership)
        self._open_prepared()
        self._confirm()
        if self._control.poll():
            self._each(self._obey)
        owners = dict(self._shards)
        fence = self._repeat(polled.fence)
        now_ms = self._clock.now_ms()
        records = {shard: new for shard, new in polled.records.items() if owners.get(shard) is self._shards.get(shard)}
        is_same = {shard for shard in owners if owners[shard] is self._shards.get(shard)}
        self._skip({shard: at for shard, at in polled.undecodable.items() if shard in is_same}, records, now_ms)
        if records:
            self._metrics.read(sum(map(len, records.values())), now_ms)
        fence = self._take_in(records, now_ms, fence)  # 2, 3; what was opened anew meanwhile is read anew
        self._each(lambda owned: owned.find_due(now_ms))  # 4
        is_overdue = is_urgent = False
        for owned in self._shards.values():
            is_overdue |= self._is_overdue(owned, now_ms)
            is_urgent |= owned.is_urgent(now_ms)
        is_all = is_overdue or self._stopping
        if is_all or is_urgent:
            self._publish(fence, now_ms, is_all=is_all)  # 5, 6
        if is_overdue:
            self._publisher.finish()
        self._checkpoint(now_ms)
        if self._breakers or self._status.unavailable_targets:
            self._status.unavailable_targets = self.unavailable_targets()

    @property
    def is_idle(self) -> bool:
        """Nothing is staged or on its way: what was read and what has left stands in Kafka."""
        return self._publisher.is_idle and not any(owned.has_news() for owned in self._shards.values())

    def look_at_retention(self) -> None:
        """Complains where Kafka no longer holds what still lives: from now on it is on this disk alone."""
        known = self._metrics.lost_to_retention
        taken = {shard: known[shard] for shard in self._shards if shard in known}
        for shard, first in self._history.firsts(list(self._shards)).items():
            owned = self._shards[shard]
            low = owned.committed_progress.low_offset
            taken[shard] = max(0, first - low) if owned.store.pending else 0
            if first > low and owned.store.pending:
                log.error(
                    "%s: retention has taken requests that are pending, from offset %d to %d: they are still delivered,"
                    " but a lost disk would lose them; raise retention.ms to 3 roll windows",
                    shard,
                    low,
                    first - 1,
                )
        self._metrics.lost_to_retention = taken

    def look_at_open_transactions(self) -> None:
        """Complains where a sender's transaction has hidden what stands behind it since the last look."""
        now_ms, before = self._clock.now_ms(), self._hanging.now
        ends = self._history.open_ends(list(self._shards)) if self._shards else {}
        silent = self._shards.keys() - ends.keys()
        self._hanging.look(ends, now_ms, silent)
        self._metrics.ends = {shard: told for shard, told in self._metrics.ends.items() if shard in silent} | {
            shard: End(self._lag(self._shards[shard], stable, end), end - stable)
            for shard, (stable, end) in ends.items()
        }
        self._metrics.hanging = self._hanging.now
        for shard, _, since_ms, waiting, _ in self._hanging.now.values():
            self._complaints.say(
                now_ms,
                f"hanging {shard}",
                "%s: a sender's transaction has been open for %d s: the %d offsets behind its first record, requests"
                " and cancels, are not read before it ends; find the sender, or end it by kafka-transactions.sh"
                " find-hanging and abort",
                *(shard, (now_ms - since_ms) // 1000, waiting),
            )
        for shard in before.keys() - self._hanging.now.keys():
            self._complaints.over(f"hanging {shard}")

    def _lag(self, owned: OwnedPartition, stable: int, end: int) -> int:
        """Offsets that are not read; 0 where nothing is among them but markers and what was aborted.

        Nobody ever brings those, so it is asked where it stood still since the last look.
        """
        start, before = owned.store.next_offset, owned.lagged
        if start >= end:
            return 0
        owned.lagged = LagSample(start, end, before.is_empty if (start, end) == before[:2] else None)
        is_little = end - start <= _MOST_ASKED  # as nobody gets anything meanwhile
        is_asked = owned.lagged == before and before.is_empty is None and stable == end and is_little
        if is_asked and owned.shard not in self._undecodable:
            owned.lagged = owned.lagged._replace(is_empty=self._is_empty(owned.shard, start, end))
        return 0 if owned.lagged.is_empty else end - start

    def look_at_clocks(self) -> None:
        """Measures the brokers' clocks against ours, and complains where they stand far apart."""
        written = {shard: times for shard, times in self._metrics.decided_ms.items() if shard in self._shards}
        stamped = self._history.newest_decisions(list(written)) if written else {}
        now_ms = self._clock.now_ms()
        # A transaction that is under way may have written a newer record.
        last_ms = None if self._publisher.is_idle else now_ms
        skews = {shard: told for shard, told in self._metrics.skew_ms.items() if shard in written}
        skews |= {shard: skew_ms(at, written[shard][0], last_ms or written[shard][1]) for shard, at in stamped.items()}
        self._metrics.skew_ms = skews
        most_ms = max(skews.values(), key=abs, default=0)
        if abs(most_ms) <= self._options.max_clock_skew_ms:
            self._complaints.over("skew")
            return
        self._complaints.say(
            now_ms,
            "skew",
            "a broker's clock is %d ms %s of ours: timers leave by ours, delays count from the brokers': keep all of"
            " them in time (NTP)",
            *(abs(most_ms), "ahead" if most_ms > 0 else "behind"),
        )

    def wake(self) -> None:
        """Ends a waiting poll soon; for any thread."""
        self._source.wake()

    def request_stop(self) -> None:
        """Ends a waiting poll and any repeating of a transaction; for a signal handler."""
        self._stopping = True
        self._source.wake()

    def finish(self) -> None:
        """The last turn of a clean end: all that is stored is committed, so that the next start reads little."""
        self.request_stop()
        if not self.is_idle:
            self.turn()

    def stop(self) -> None:
        """The end, between two turns: what is stored is committed already or will be read again.

        Raises what a transaction's fate raises, when all is closed and others may have our shards.
        """
        with ExitStack() as ends:
            ends.callback(self._source.close)
            ends.callback(self._forget_all)
            for shard in reversed([*self._shards, *self._preparing]):
                ends.callback(self._give_up, shard, checkpoint=True)
            self._publisher.finish()

    def _forget_all(self) -> None:
        """Also of what was being opened: status and metrics outlive this life."""
        for shard in self._status.shards():
            self._status.gone(shard)
            self._metrics.gone(shard)

    # -- 1 poll

    def _wait_ms(self) -> int:
        now_ms = self._clock.now_ms()
        shards = self._shards.values()
        is_reading_first = any(owned.release_barrier is not None and not owned.backlog for owned in shards)
        wait_ms = _READING_FIRST_WAIT_MS if is_reading_first else self._options.max_wait_ms
        if self._preparing:
            wait_ms = min(wait_ms, _PREPARING_WAIT_MS)
        until_ms = now_ms + (wait_ms if self._publisher.is_idle else min(wait_ms, _UNDER_WAY_WAIT_MS))
        looks = [owned.next_look_ms(until_ms) for owned in shards]
        looks += [
            self._throttles[owned.shard.topic].next_ms(now_ms, len(owned.backlog))
            for owned in shards
            if owned.shard in self._throttled
        ]
        return max(0, min(looks, default=until_ms) - now_ms)

    def _change_hands(self, ownership: Ownership) -> None:
        if ownership:
            self._metrics.moved(ownership)
        for shard in ownership.lost:
            log.warning("%s: the group has put us out: it may be another's by now", shard)
            self._give_up(shard, checkpoint=False)
        for shard in ownership.revoked:
            log.info("%s: given up", shard)
            self._give_up(shard, checkpoint=True)
        for shard in ownership.assigned:
            self._demand_known(shard)
            self._give_up(shard, checkpoint=False)
            self._note_recovering(shard)
        self._claimed |= self._ours(ownership.assigned)
        if ownership.assigned:
            self._control.catch_up()  # a former owner may know of pauses that we do not
        undecided = self._history.undecided(ownership.assigned) if ownership.assigned else set()
        began_ms = self._clock.now_ms()
        for shard in ownership.assigned:
            if shard in undecided:
                self._metrics.waits_for_former_owner(shard)
                log.info("%s: a former owner's transaction is still open: it is waited for beside the others", shard)
                self._preparing[shard] = self._prepare(shard)
            elif has_passed(began_ms, self._clock.now_ms(), _OPENING_MS):
                self._preparing[shard] = _RetryDelay(self._clock, 0)
            else:
                self._begin(shard)

    def _demand_known(self, shard: Shard) -> None:
        """Raise TopicGrownError for a partition that was added after this life began.

        Its journal partition may be missing, and the producers of this life may not know that partition yet.
        """
        known = self._began_with.of(shard.topic).partitions
        if known is not None and shard.partition >= known:
            raise TopicGrownError(f"{shard}: the topic has grown, it had {known} partitions: starting again with all")

    def _begin(self, shard: Shard) -> None:
        """Opens it, or has it prepared beside the others where that takes long."""
        if not self._control.is_current:
            self._preparing[shard] = _RetryDelay(self._clock)
            return
        options = self._options.of(shard.topic)
        with self._retry_opening_later(shard):
            disk = self._disk_for(shard)
            if (wrong := self._unreadable.lasting(shard, self._clock.now_ms())) is not None:
                invalidate_store(shard, disk, wrong)
                self._unreadable.forget(shard)
            try:
                outlook = look(shard, disk, self._history, options)
                self._metrics.looked(outlook)
                if outlook.work < self._options.prepare_from:
                    self._open(shard, disk, recover(shard, disk, self._history, options, outlook))
                    return
            except PartitionUnreadableError as slow:
                log.warning("%s: %s; a process of its own goes on with it", shard, slow)
            self._preparing[shard] = self._prepare(shard)

    def _open_prepared(self) -> None:
        if self._stopping:  # what is not ready by now would hold up the end
            return
        done = [each for each in self._preparing.items() if each[1].is_done()]
        if done and not self._control.is_current:
            self._control.catch_up()
        began_ms = self._clock.now_ms()
        for shard, preparation in done:
            if has_passed(began_ms, self._clock.now_ms(), _OPENING_MS):
                return
            del self._preparing[shard]
            if shard not in self._claimed:  # a transaction may have hidden the owner
                self._claimed |= self._ours([shard])
            if isinstance(preparation, _RetryDelay) or not self._control.is_current:
                self._begin(shard)
                continue
            with self._retry_opening_later(shard):
                if preparation.refused is not None:
                    raise preparation.refused
                disk = self._disk_for(shard)
                self._open(shard, disk, recover(shard, disk, self._history, self._options.of(shard.topic)))

    @contextmanager
    def _retry_opening_later(self, shard: Shard) -> Iterator[None]:
        """A shard whose disk is full or broken, or which Kafka does not let us read, is opened later; others go on."""
        try:
            yield
        except CorruptStoreError as wrong:
            now_ms = self._clock.now_ms()
            self._unreadable.note(shard, now_ms, wrong)
            told = (
                "%s: its local store cannot be read (%s), so its timers wait: look after the disk of data_dir. It is"
                " opened again every 5 s, and after a minute made anew from Kafka, without what retention has taken"
            )
            self._complaints.say(now_ms, f"disk {shard}", told, shard, wrong)
            self._preparing[shard] = _RetryDelay(self._clock)
        except PartitionUnreadableError as wrong:
            told = "%s: its partition cannot be read (%s), so its timers wait; it is tried again every 5 s"
            self._complaints.say(self._clock.now_ms(), f"unreadable {shard}", told, shard, wrong)
            self._preparing[shard] = _RetryDelay(self._clock)
        except OSError as wrong:
            is_limit = wrong.errno in (errno.EMFILE, errno.ENFILE)
            told = "%s: its local store cannot be made ready (%s), so its timers wait: %s"
            remedy = "let it open more files (ulimit -n, LimitNOFILE)" if is_limit else _FREE_ROOM
            self._complaints.say(self._clock.now_ms(), f"disk {shard}", told, shard, wrong, remedy)
            self._preparing[shard] = _RetryDelay(self._clock)

    def _open(self, shard: Shard, disk: Disk, recovered: Recovered) -> None:
        options = self._options.of(shard.topic)
        try:
            bounds = self._history.bounds(shard)
            owned = OwnedPartition(
                *(shard, disk, recovered, options, self._least_free_bytes),
                is_claimed=shard in self._claimed,
                breakers=self._breakers,
            )
            self._obey(owned)
        except BaseException:
            recovered.store.close()
            raise
        self._shards[shard] = owned
        owned.opened_ms = self._clock.now_ms()
        self._throttled.discard(shard)
        if options.max_requests_per_s is not None:
            self._throttles.setdefault(shard.topic, TokenBucket(options.max_requests_per_s, owned.opened_ms))
        if owned.is_claimed:
            self._start_reading(owned, bounds)
        if shard not in self._unreadable:  # who knows for how long
            self._complaints.over(f"disk {shard}")
        self._complaints.over(f"unreadable {shard}")
        self._status.running(shard)
        self._metrics.recovered(shard)
        self._was_opened = True

    def _ours(self, shards: Sequence[Shard]) -> set[Shard]:
        """Return those whose journal is known to be ours. Raises ForeignJournalError.

        If no broker answers in time none is known, and 5 s pass before the next read: it holds up all shards.
        """
        if not shards or (self._next_owner_read is not None and not self._next_owner_read.is_done()):
            return set()
        self._next_owner_read = None
        try:
            return ours(shards, self._history, lambda topic: self._options.of(topic).journal_topic)
        except PartitionUnreadableError as wrong:
            log.warning("the owner of journals is not known: %s; it is asked again in 5 s", wrong)
            self._next_owner_read = _RetryDelay(self._clock)
            return set()

    def _confirm(self) -> None:
        """Start to read once the claims of journals stand and are the first. Raises ForeignJournalError if not."""
        standing = [shard for shard, owned in self._shards.items() if not owned.is_claimed and owned.is_quiet]
        confirmed = self._ours(standing)
        self._claimed |= confirmed

        def start(owned: OwnedPartition) -> None:
            if owned.shard in confirmed:
                bounds = self._history.bounds(owned.shard)
                owned.is_claimed = True
                self._start_reading(owned, bounds)

        if confirmed:
            self._each(start)
        if len(confirmed) == len(standing):
            self._next_claims = None
        elif self._next_claims is None:
            self._next_claims = _RetryDelay(self._clock)
        elif self._next_claims.is_done():  # retention may have taken a claim before it was read
            self._next_claims = None
            for shard in set(standing) - confirmed:
                self._shards[shard].claim()

    def _start_reading(self, owned: OwnedPartition, bounds: tuple[int, int]) -> None:
        first, owned.release_barrier = bounds
        next_offset = owned.store.next_offset
        if first > next_offset:
            log.error(
                "%s: retention has taken %d offsets that were never read, from %d on: their requests are lost; raise"
                " retention.ms to 3 roll windows",
                owned.shard,
                first - next_offset,
                next_offset,
            )
        owned.starts_at = max(first, next_offset)
        self._source.start(owned.shard, owned.starts_at)

    def _obey(self, owned: OwnedPartition) -> None:
        """What the control topic asks for. The journal tells it from the next transaction on."""
        for target in owned.obey(self._control.pauses(owned.shard.topic)):
            told = "%s: %s is not paused: %d others are in this partition; resume some"
            log.error(told, owned.shard, target, MOST_PAUSED)

    def _note_recovering(self, shard: Shard) -> None:
        self._status.recovering(shard)
        self._metrics.recovering(shard)

    def _give_up(self, shard: Shard, *, checkpoint: bool) -> None:
        self._status.gone(shard)
        self._metrics.gone(shard)
        preparation = self._preparing.pop(shard, None)
        if preparation is not None:
            preparation.give_up()
        owned = self._shards.pop(shard, None)
        self._checkpoints_due_ms.pop(shard, None)
        self._claimed.discard(shard)
        self._unreadable.forget(shard)
        if owned is None:
            return
        try:
            if checkpoint:
                owned.store.finish_checkpoint()  # one that is on its way may know less
                if owned.store.may_checkpoint:
                    self._start_checkpoint(owned)
                    owned.store.finish_checkpoint()
        except (OSError, BridgeError, CorruptStoreError) as wrong:  # what ends us is told by others
            log.warning("%s: no checkpoint at the end (%s); the next start reads more", shard, wrong)
        finally:
            owned.store.close()

    # -- 2 intake, 3 store, 4 due

    def _take_in(self, records: dict[Shard, list[Record]], now_ms: int, fence: object) -> object:
        """Returns the fence to go on with."""
        leaving: list[OwnedPartition] = []

        def take_in(owned: OwnedPartition, new: list[Record]) -> None:
            try:
                self._take_in_one(owned, new, now_ms)
            except ReleaseUndecidedError:
                leaving.append(owned)

        self._each(lambda owned: take_in(owned, records.get(owned.shard, [])))
        if leaving:
            self._publisher.finish()
            fence = self._repeat(fence)
        if leaving and self._publisher.is_idle:
            self._each(lambda owned: self._take_in_one(owned, [], now_ms) if owned in leaving else None)
        return fence

    def _take_in_one(self, owned: OwnedPartition, records: list[Record], now_ms: int) -> None:
        if not owned.is_claimed:
            return
        waited = bool(owned.backlog)
        self._throttled.discard(owned.shard)
        if records:
            records = self._read_missed_records(owned, records[0].offset) or records
        try:
            self._admit(owned, records, now_ms)
        except (OSError, WheelFullError, TooManyHeldError) as full:
            self._source.pause(owned.shard)
            what = "disk" if isinstance(full, OSError) else "wheel" if isinstance(full, WheelFullError) else "held"
            self._status.paused(owned.shard, what, str(full))
            self._metrics.pauses_intake(owned.shard, what)
            self._complaints.say(now_ms, str(owned.shard), "%s: intake pauses: %s", owned.shard, full)
        else:
            if waited:
                self._status.running(owned.shard)
            if owned.is_full:
                self._source.pause(owned.shard)
                return
            if owned.backlog:
                self._wait_for_rate(owned, now_ms)
                return
            if waited:
                self._source.resume(owned.shard)
                self._metrics.goes_on(owned.shard)
                self._complaints.over(str(owned.shard))
            self._check_caught_up(owned, now_ms, was_empty=not records)

    def _least_free_bytes(self, shard: Shard) -> int:
        """Return the free room below which intake of `shard` pauses.

        A timer topic with less than its equal share of the stores' bytes goes on until half of the reserve is left.
        """
        held: Counter[str] = Counter()
        for each, owned in self._shards.items():
            held[each.topic] += owned.store.size_bytes
        least = self._options.min_free_bytes
        return least if held[shard.topic] * len(held) >= held.total() else least // 2

    def _read_missed_records(self, owned: OwnedPartition, first: int) -> list[Record]:
        """What lies before the first record that comes behind a start: mostly nothing, or markers.

        Over an assignment that was just given up, librdkafka 2.16 has once begun one record too late. Returns at most
        one batch, and the source yields what follows it.
        """
        start, owned.starts_at = owned.starts_at, None
        if start is None or start >= first:
            return []
        found = next(self._history.requests(owned.shard, start, first), [])
        if found:
            log.warning("%s: the Kafka client left %d requests out as it began, read anew", owned.shard, len(found))
            owned.starts_at = found[-1].offset + 1
            self._source.rewind(owned.shard, owned.starts_at)
        return found

    def _is_empty(self, shard: Shard, start: int, end: int) -> bool | None:
        """True if only markers and aborted records are in [start, end), None if no answer comes in time."""
        try:
            return not any(self._history.requests(shard, start, end))
        except PartitionUnreadableError:
            return None

    def _skip(self, undecodable: dict[Shard, int], records: dict[Shard, list[Record]], now_ms: int) -> None:
        """Tell of records that cannot be decoded. Append a stand-in to `records` for those that an operator skips."""
        waiting: dict[Shard, int] = {}
        for shard, offset in undecodable.items():
            # A backlog goes first: while there is one, the source is paused.
            if not self._shards[shard].backlog and self._control.is_skipped(shard, offset):
                log.warning("%s: offset %d cannot be decoded, and is skipped", shard, offset)
                records[shard] = [*records.get(shard, []), UndecodableRecord(offset, 0, None, None, ())]
                self._source.rewind(shard, offset + 1)
            else:
                waiting[shard] = offset
        for shard, offset in waiting.items():
            told = undecodable_text(shard, offset)
            self._complaints.say(now_ms, f"undecodable {shard}", "%s", told)
            if not self._shards[shard].backlog:  # which has a reason of its own
                self._status.paused(shard, "undecodable", told)
                self._metrics.pauses_intake(shard, "undecodable")
        for shard in self._undecodable.keys() - waiting.keys():
            self._complaints.over(f"undecodable {shard}")
            if shard in self._shards and not self._shards[shard].backlog:
                self._status.running(shard)
                self._metrics.goes_on(shard)
        self._metrics.undecodable = self._undecodable = waiting

    def _admit(self, owned: OwnedPartition, records: list[Record], now_ms: int) -> None:
        throttle = self._throttles.get(owned.shard.topic)
        if throttle is None:
            owned.take_in(records, now_ms)
            return
        before = owned.admitted
        try:
            owned.take_in(records, now_ms, throttle.allowance(now_ms, len(owned.backlog) + len(records)))
        finally:
            throttle.spend(owned.admitted - before)
            if owned.admitted > before:  # behind the others of its topic, so that they take turns
                self._shards[owned.shard] = self._shards.pop(owned.shard)

    def _wait_for_rate(self, owned: OwnedPartition, now_ms: int) -> None:
        self._throttled.add(owned.shard)
        self._source.pause(owned.shard)
        self._metrics.pauses_intake(owned.shard, "rate")
        topic = owned.shard.topic
        told = "%s: intake keeps to max_requests_per_s, %s; more than that waits"
        self._complaints.say(now_ms, f"throttle {topic}", told, topic, self._throttles[topic].per_s)

    def _check_caught_up(self, owned: OwnedPartition, now_ms: int, *, was_empty: bool) -> None:
        """A shard that was opened just now: is all read that was there then? Markers at the end are never read.

        Where there is more, and the client brings nothing of it, it begins there again (see `_read_missed_records`).
        """
        end = owned.release_barrier
        if end is None:
            return
        if owned.shard in self._undecodable:  # what is there cannot be read, and is not waited for
            owned.note_read(nothing_more=True)
            return
        start, nothing_more = owned.store.next_offset, False
        last = owned.looked
        stands_still = start == last.offset and now_ms >= last.at_ms
        if was_empty and not (stands_still and now_ms - last.at_ms < last.enough_for_ms):
            owned.looked = StallProbe(start, now_ms, 2 * last.enough_for_ms if stands_still else _LOOK_AGAIN_MS)
            is_empty = self._is_empty(owned.shard, start, end)
            nothing_more = is_empty is True
            if stands_still and is_empty is False:
                told = "%s: the Kafka client has brought nothing from offset %d on, though there is more: read anew"
                log.warning(told, owned.shard, start)
                owned.starts_at = max(start, owned.starts_at or 0)  # what is below, retention has taken
                self._source.rewind(owned.shard, owned.starts_at)
        owned.note_read(nothing_more=nothing_more)

    def _each(self, step: Callable[[OwnedPartition], None]) -> None:
        """`step` for each shard; one whose disk turns out damaged is rebuilt from Kafka and goes on next turn."""
        for owned in list(self._shards.values()):
            try:
                step(owned)
            except CorruptStoreError as wrong:
                self._replace(owned, wrong)
            except PartitionUnreadableError as wrong:
                self._close(owned)
                with self._retry_opening_later(owned.shard):
                    raise wrong

    def _close(self, owned: OwnedPartition) -> None:
        """Without a checkpoint, to be opened again."""
        self._publisher.finish()
        self._note_recovering(owned.shard)
        del self._shards[owned.shard]
        owned.store.close()
        self._source.pause(owned.shard)

    def _replace(self, owned: OwnedPartition, wrong: CorruptStoreError) -> None:
        self._close(owned)
        with self._retry_opening_later(owned.shard):
            if has_passed(owned.opened_ms, self._clock.now_ms(), _SOUND_MS):
                self._unreadable.forget(owned.shard)  # what was before is over
            require_rebuildable(owned.shard, self._history, owned.committed_progress.low_offset, wrong)
            invalidate_store(owned.shard, owned.disk, wrong)
            self._begin(owned.shard)

    # -- 5 publish, 6 advance

    def _publish(self, fence: object, now_ms: int, *, is_all: bool) -> None:
        """`is_all`: also of stored requests that could still wait for their commit."""
        self._publisher.make_room()
        fence = self._repeat(fence)
        if self._publisher.must_repeat:
            return
        parts: list[Part] = []

        def freeze(owned: OwnedPartition) -> None:
            if owned.is_urgent(now_ms) or (is_all and owned.has_news()):
                whole = is_all or self._is_checkpoint_due(owned, now_ms)  # for which nothing may be staged
                at_ms = max(now_ms, self._clock.now_ms())  # others may have been waited for, for room or for their fate
                parts.append((owned, owned.freeze(now_ms, at_ms, is_all=whole)))

        self._each(freeze)
        if parts:
            self._publisher.begin(parts, fence)

    def _repeat(self, fence: object) -> object:
        """What was aborted, until it stands: without shards that are no longer ours. Returns the fence to go on with.

        Once the end was asked for, nothing of it stands: the next life reads it again.
        """
        fences = [fence]

        def look() -> object:
            looked = self._source.check()
            self._change_hands(looked.ownership)
            fences.append(looked.fence)
            return looked.fence

        def is_ours(owned: OwnedPartition) -> bool:
            return self._shards.get(owned.shard) is owned

        self._publisher.repeat(look, is_ours, lambda: self._stopping)
        return fences[-1]

    def _is_overdue(self, owned: OwnedPartition, now_ms: int) -> bool:
        """Under a load without a pause something is always staged or on its way: a quiet moment has to be made."""
        late_ms = now_ms - self._checkpoints_due_ms.get(owned.shard, now_ms)
        is_in_time = -self._options.store.checkpoint_interval_ms <= late_ms < _LATEST_CHECKPOINT_MS
        return not is_in_time and not owned.is_quiet

    def _is_checkpoint_due(self, owned: OwnedPartition, now_ms: int) -> bool:
        due_ms = self._checkpoints_due_ms.setdefault(owned.shard, now_ms)
        return not 0 < due_ms - now_ms <= self._options.store.checkpoint_interval_ms

    def _checkpoint(self, now_ms: int) -> None:
        for owned in list(self._shards.values()):
            is_due = self._is_checkpoint_due(owned, now_ms)
            try:
                owned.store.compact_some()
                rests = 0 < owned.checkpoint_rests_until_ms - now_ms <= _UNREADABLE_MS
                if owned.store.continue_checkpoint() and is_due and owned.is_quiet and not rests:
                    self._checkpoints_due_ms[owned.shard] = now_ms + self._options.store.checkpoint_interval_ms
                    if owned.store.may_checkpoint:
                        self._start_checkpoint(owned)
            except (OSError, PartitionUnreadableError) as wrong:
                self._complaints.say(now_ms, f"checkpoint {owned.shard}", "%s: no checkpoint: %s", owned.shard, wrong)
                if isinstance(wrong, PartitionUnreadableError):  # each try holds up all others
                    owned.checkpoint_rests_until_ms = self._clock.now_ms() + _UNREADABLE_MS
                    return  # the others have their turn
            except CorruptStoreError as wrong:
                self._replace(owned, wrong)

    def _start_checkpoint(self, owned: OwnedPartition) -> None:
        """Not where another owner has gone on behind us: what it decided may stand in the journal before its end.

        The order matters: what was decided below the stable end of the journal is in the progress that is read then.
        """
        _, journal_offset = self._history.journal_bounds(owned.shard)
        if self._history.progress(owned.shard) == owned.committed_progress:
            owned.start_checkpoint(journal_offset)
