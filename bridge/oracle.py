"""What must have become of every request, seen from outside: over the committed records of a FakeKafka alone.

Looked at after each commit, in the order of the commits:
1. An output names a request of a shard whose progress stands in the same transaction, and moves C past it or did so.
2. Each request has one outcome: delivered at or after its due time by the publishing instance's clock, unaltered, with
   the four headers of ours; or rejected with a code that fits, its bytes and headers kept. Nothing else is published.
3. C, K and L never go back; L is not above the lowest live request.
4. Of the requests below C, those with key (visit, offset) <= K are settled, the others live. An exception is one that
   was held: K had passed it already when it was read, and by the clock it was not due yet.
5. Within a transaction a shard's deliveries stand in order of (due, offset). With 4, so do those of several.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.fake_kafka import Entry, FakeKafka, FakeTransaction, Partition, State
from bridge.random_requests import DELIVERED, Wish
from schemas.origin import Shard
from schemas.progress import NOTHING_SETTLED, Key, Progress

REJECTED, JOURNAL = "timer.rejected", "timer.journal"
BEGINNING = Progress(0, NOTHING_SETTLED, 0)
_ADDED = ("timer-origin", "timer-deliver-ms", "timer-released-ms", "timer-rolls")
_REASON = ("timer-error", "timer-error-detail", "timer-origin")


class Violation(AssertionError):  # noqa: N818  (a verdict, not an error of the program)
    """An invariant does not hold."""


class Note(NamedTuple):
    """The publishing instance's clock when its transaction began, and the lowest it has read since its last commit."""

    begun_ms: int
    lowest_ms: int


@dataclass(slots=True)
class Asked:
    """A request on the timer topic."""

    wish: Wish
    entry: Entry

    @property
    def due_ms(self) -> int:
        return self.wish.due_ms(self.entry.append_ms)

    @property
    def key(self) -> Key:
        return Key(max(self.due_ms, self.entry.append_ms), self.entry.offset)


@dataclass(slots=True)
class ShardBook:
    """What is known of one shard."""

    progress: Progress = BEGINNING
    open: dict[int, Asked] = field(default_factory=dict)
    """Requests without an outcome, by offset, ascending."""
    held: set[int] = field(default_factory=set)

    def forget_aborted(self) -> None:
        for offset in [o for o, a in self.open.items() if _state(a.entry) is State.ABORTED]:
            del self.open[offset]

    def live(self) -> list[Asked]:
        """Those that are read, and wait."""
        return [asked for offset, asked in self.open.items() if offset < self.progress.next_offset]


def _state(entry: Entry) -> State:
    return entry.transaction.state if entry.transaction else State.COMMITTED


class Oracle:
    """See the module. Between the least and the most of `max_delays_ms` a request may be refused as too far.

    `only_outputs`: leaves out 3 and 4, so that what is found was harm done to a reader.
    """

    def __init__(
        self, kafka: FakeKafka, shards: Sequence[Shard], max_delays_ms: Sequence[int], *, only_outputs: bool = False
    ) -> None:
        self._kafka = kafka
        self.only_outputs = only_outputs
        self._books = {shard: ShardBook() for shard in shards}
        self._least_ms, self._most_ms = min(max_delays_ms), max(max_delays_ms)
        self._seen = 0
        self.counts: Counter[str] = Counter()

    def ask(self, shard: Shard, wish: Wish, entry: Entry) -> None:
        """`entry` was appended to the timer topic as `wish` says."""
        ahead_ms = wish.due_ms(entry.append_ms) - entry.append_ms
        if wish.target and ahead_ms > self._least_ms:
            wish.may = frozenset({"too-far"}) | (wish.may if ahead_ms <= self._most_ms else frozenset())
        self._books[shard].open[entry.offset] = Asked(wish, entry)
        self.counts["requests"] += 1

    def observe(self) -> int:
        """Looks at what was committed since. Returns how many transactions that were. Raises Violation."""
        fresh = self._kafka.commits[self._seen :]
        self._seen += len(fresh)
        for transaction in fresh:
            if transaction.offsets:
                self._judge(transaction)
        return len(fresh)

    def pending(self, shard: Shard) -> int:
        """How many requests of `shard` are read and wait, by what was committed."""
        return len(self._books[shard].live())

    def low_offset(self, shard: Shard) -> int:
        """L, as committed."""
        return self._books[shard].progress.low_offset

    def unsettled(self) -> int:
        """Requests that have no outcome yet."""
        for book in self._books.values():
            book.forget_aborted()
        return sum(len(book.open) for book in self._books.values())

    def describe_unsettled(self) -> str:
        return "; ".join(
            f"{shard}/{offset} due {asked.due_ms} appended {asked.entry.append_ms} {asked.wish.headers}"
            for shard, book in self._books.items()
            for offset, asked in list(book.open.items())[:3]
        )

    # -- one commit

    def _judge(self, transaction: FakeTransaction) -> None:
        self.counts["transactions"] += 1
        note = transaction.note
        assert isinstance(note, Note)
        last: dict[Shard, tuple[int, int]] = {}
        reached = {shard: progress for (_, shard), progress in transaction.offsets.items()}
        for log, entry in transaction.records:
            if log.topic == JOURNAL:
                continue
            shard, asked = self._take(entry, reached)
            if log.topic == REJECTED:
                self._check_rejected(asked, entry)
            else:
                self._check_delivered(asked, log, entry, note)
                _check(last.get(shard, (-1, -1)) < (asked.due_ms, asked.entry.offset), "out of order", entry)
                last[shard] = (asked.due_ms, asked.entry.offset)
            self._check_settled(self._books[shard], asked, reached[shard], entry)
        for shard, progress in reached.items():
            self._check_progress(shard, progress, note)

    def _take(self, entry: Entry, reached: dict[Shard, Progress]) -> tuple[Shard, Asked]:
        topic, partition, offset = (dict(entry.headers)["timer-origin"] or b"").decode().split("/")
        shard, number = Shard(topic, int(partition)), int(offset)
        _check(shard in reached and number < reached[shard].next_offset, "published without its progress", entry)
        asked = self._books[shard].open.pop(number, None)
        if asked is None:
            raise Violation(f"published twice, or never asked for: {entry}")
        _check(_state(asked.entry) is State.COMMITTED, "an aborted request was published", entry)
        return shard, asked

    def _check_rejected(self, asked: Asked, entry: Entry) -> None:
        wish = asked.wish
        added = dict(entry.headers[-3:])
        code = (added.get("timer-error") or b"").decode()
        _check(code in wish.may, f"rejected as {code}, expected {sorted(wish.may)}", entry)
        _check(sorted(added) == sorted(_REASON), "not the three headers of a rejection", entry)
        _check([*entry.headers[:-3]] == wish.headers, f"headers altered: {wish.headers}", entry)
        _check((entry.key, entry.value) == (wish.key, wish.value), "bytes altered", entry)
        self.counts["rejected"] += 1

    def _check_delivered(self, asked: Asked, log: Partition, entry: Entry, note: Note) -> None:
        wish, added = asked.wish, dict(entry.headers[-4:])
        _check(DELIVERED in wish.may, f"delivered, expected {sorted(wish.may)}", entry)
        _check(log.topic == wish.target and wish.partition in (-1, log.number), "on another topic or partition", entry)
        _check((entry.key, entry.value) == (wish.delivered_key, wish.value), "bytes altered", entry)
        _check([*entry.headers[:-4]] == wish.foreign, f"foreign headers altered: {wish.foreign}", entry)
        _check(sorted(added) == sorted(_ADDED), "not the four headers of a delivery", entry)
        _check(added["timer-deliver-ms"] == b"%d" % asked.due_ms, f"timer-deliver-ms is not {asked.due_ms}", entry)
        _check(added["timer-rolls"] == b"0", "timer-rolls is not 0", entry)
        _check(
            added["timer-released-ms"] == b"%d" % entry.timestamp_ms, "released at another time than CreateTime", entry
        )
        _check(asked.due_ms <= entry.timestamp_ms <= note.begun_ms, f"early: due {asked.due_ms}, clock {note}", entry)
        self.counts["delivered"] += 1

    def _check_settled(self, book: ShardBook, asked: Asked, reached: Progress, entry: Entry) -> None:
        """A timer that leaves is at or below K. A refused request has no key."""
        held = asked.entry.offset in book.held
        book.held.discard(asked.entry.offset)
        if asked.wish.target and "too-far" not in asked.wish.may and not self.only_outputs:
            _check(held or asked.key <= reached.settled, f"left, but its key is above K: {reached}", entry)

    def _check_progress(self, shard: Shard, progress: Progress, note: Note) -> None:
        book = self._books[shard]
        before = book.progress
        if self.only_outputs:
            book.progress = progress
            return
        went_back = progress[0] < before[0] or progress[1] < before[1] or progress[2] < before[2]
        _check(not went_back, f"{shard} went back", (before, progress))
        _check(progress.low_offset <= progress.next_offset, f"{shard}: L above C", progress)
        book.forget_aborted()
        book.progress = progress
        for asked in book.live():
            _check(asked.entry.offset >= progress.low_offset, f"{shard}: live below L", (asked, progress))
            if asked.key <= progress.settled and asked.entry.offset not in book.held:
                known = asked.entry.offset < before.next_offset
                _check(not known, f"{shard}: K passed a live timer", (asked, progress))
                _check(
                    asked.key.visit_ms > note.lowest_ms, f"{shard}: a late one was not settled", (asked, progress, note)
                )
                book.held.add(asked.entry.offset)
                self.counts["held"] += 1


def _check(holds: bool, what: str, where: object) -> None:  # noqa: FBT001
    if not holds:
        raise Violation(f"{what}: {where}")
