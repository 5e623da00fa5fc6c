"""Deliberate mistakes, to show that the simulation finds them. Each is put into the real code and taken out again.

    with applied("K left out"): run_seed(17)          python -m bridge.simulation 0 1000 "K left out"

`MUTATIONS` tells each in a sentence. The first five are those that a bridge like this one is most easily built with.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from bridge import recovery
from bridge.fake_kafka import FakeGroup, FakeKafka
from bridge.shard import OwnedShard
from schemas.headers import MAX_INT64
from schemas.journal import Decisions, JournalRecord
from schemas.progress import NOTHING_SETTLED, Key, Progress
from timer.batch import Batch
from timer.checkpoint import Checkpoint
from timer.record import Body
from timer.scan import LiveScan
from timer.store import Due, Store

Patches = ExitStack
_take_in, _committed, _due = OwnedShard.take_in, OwnedShard.committed, Store.due


def _replace(patches: Patches, owner: Any, name: str, new: Any) -> None:
    patches.enter_context(mock.patch.object(owner, name, new))


def offset_before_store(patches: Patches) -> None:
    """Requests are stored only once the transaction that moves C past them stands: L forgets them."""
    waiting: dict[OwnedShard, list[Batch]] = {}
    add = Store.add

    def take_in(self: OwnedShard, records: list[Any], now_ms: int) -> None:
        def add_later(store: Store, batch: Batch, next_offset: int) -> None:
            waiting.setdefault(self, []).append(batch)
            add(store, Batch(), next_offset)

        with mock.patch.object(Store, "add", add_later):
            _take_in(self, records, now_ms)

    def committed(self: OwnedShard, progress: Progress, now_ms: int) -> None:
        _committed(self, progress, now_ms)
        for batch in waiting.pop(self, []):
            add(self.store, batch, self.store.next_offset)

    _replace(patches, OwnedShard, "take_in", take_in)
    _replace(patches, OwnedShard, "committed", committed)


def k_left_out(patches: Patches) -> None:
    """A start knows C and L, but not up to which key everything has left."""
    read = Progress.committed.__func__  # type: ignore[attr-defined]

    def committed(cls: type[Progress], next_offset: int, metadata: str | None) -> Progress:
        found: Progress = read(cls, next_offset, metadata)
        return found._replace(settled=NOTHING_SETTLED)

    _replace(patches, Progress, "committed", classmethod(committed))


def cut_inside_equal_times(patches: Patches) -> None:
    """K is a time alone: a burst that is cut inside one ms counts as gone as a whole."""

    def due(self: Store, now_ms: int, limit: int, limit_bytes: int) -> Due:
        found = _due(self, now_ms, limit, limit_bytes)
        if len(found.rows):
            self._settled = Key(self._settled.visit_ms, MAX_INT64)
        return found

    _replace(patches, Store, "due", due)


def late_not_settled(patches: Patches) -> None:
    """A request behind K leaves one transaction later than the one that moves C past it."""
    waiting: dict[OwnedShard, list[Body]] = {}

    def take_in(self: OwnedShard, records: list[Any], now_ms: int) -> None:
        before = len(self._staged.bodies)
        try:
            _take_in(self, records, now_ms)
        finally:
            waiting.setdefault(self, []).extend(self._staged.bodies[before:])
            del self._staged.bodies[before:]

    def committed(self: OwnedShard, progress: Progress, now_ms: int) -> None:
        _committed(self, progress, now_ms)
        self._staged.bodies += waiting.pop(self, [])

    _replace(patches, OwnedShard, "take_in", take_in)
    _replace(patches, OwnedShard, "committed", committed)


def ahead_not_taken_back(patches: Patches) -> None:
    """A store keeps what it held beyond its checkpoint; then the same requests are read again."""

    def take_back(self: Store, found: Checkpoint) -> None:
        self._low_unit = found.low_unit

    _replace(patches, Store, "_take_back", take_back)
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


def no_skew_margin(patches: Patches) -> None:
    """The journal is read from the time of L's record by that broker's clock alone."""
    since_ms = recovery._Recovery._since_ms  # noqa: SLF001

    def later(self: Any) -> int | None:
        found = since_ms(self)
        return None if found is None else found + self._options.clock_skew_margin_ms

    _replace(patches, recovery._Recovery, "_since_ms", later)  # noqa: SLF001


def unstable_progress(patches: Patches) -> None:
    """Progress is read while a transaction may still change it."""
    _replace(patches, FakeKafka, "wait_stable", lambda *_: None)


MUTATIONS: dict[str, Callable[[Patches], None]] = {
    "offset before store": offset_before_store,
    "K left out": k_left_out,
    "cut inside equal times": cut_inside_equal_times,
    "late not settled": late_not_settled,
    "ahead not taken back": ahead_not_taken_back,
    "refused not journalled": _without("refused"),
    "held not journalled": _without("held"),
    "released not journalled": _without("released"),
    "rules of now for old requests": _returning(Decisions, "rules_at", None),
    "no skew margin": no_skew_margin,
    "unstable progress": unstable_progress,
    "stale fence accepted": _returning(FakeGroup, "accepts", True),
}


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The bridge with the mistake `name` in it."""
    with ExitStack() as patches:
        MUTATIONS[name](patches)
        yield
