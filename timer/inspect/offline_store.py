"""Looking into the store of a stopped bridge, as of its checkpoint. Never writes, never makes or cuts a file.

    checkpoint -> where the logs ended, K, what was held       read_checkpoint
    TimerLog   -> live units: key > K, waiting or held; not ended       StoppedStore.live, in the order of the log
    body log   -> the bodies of those                          StoppedStore.bodies

What was written behind the checkpoint is not shown: the next start takes it back, or reads it again from Kafka.
The wheel is not asked: the log tells the same.
"""

import json
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import numpy as np

from timer.errors import CorruptStoreError
from timer.files.disk import Disk
from timer.files.segment_log import FrameLog, UnitLog
from timer.format.body import Body, unpack
from timer.format.checkpoint import CLOSED, FORMAT, NAME, Checkpoint, sound_text
from timer.format.file_names import BODIES, IDS, UNITS
from timer.format.unit import RUN, Rows
from timer.index.due_counts import DueCounts
from timer.index.id_index import hash_of
from timer.index.segment_liveness import EndedUnits, LiveCounts
from timer.maintenance.startup_scan import LiveScan, waits_of
from timer.schedule.due_queue import in_order


class NoStoreError(Exception):
    """There is nothing to look into; the message says why, and what to do."""


class EmptyStoreError(NoStoreError):
    """A store in which nothing was kept yet. That is no trouble."""


class LogFile(NamedTuple):
    name: str
    size: int


class StoredTimer(NamedTuple):
    """A live timer: its row of the TimerLog, and its body."""

    visit_ms: int
    body: Body
    size: int
    """Bytes of its frame."""


def read_checkpoint(disk: Disk) -> Checkpoint:
    """Raises NoStoreError where there is none or one of another format, CorruptStoreError where it is damaged."""
    data = disk.read(NAME)
    if data is None:
        raise NoStoreError(
            "no checkpoint, so this is no store: give a data directory or the folder of one partition in it. If only"
            " the checkpoint is lost, a start of the bridge rebuilds the store from Kafka"
        )
    if not data:
        raise EmptyStoreError("no checkpoint was written yet: the next start of the bridge reads all of it from Kafka")
    found = Checkpoint.from_bytes(data)
    if found is not None:
        return found
    format_ = _format_of(data)
    if format_ is None:
        raise CorruptStoreError(NAME, "the checksum does not fit the text")
    if format_ == FORMAT:
        raise CorruptStoreError(NAME, "its checksum fits, but it says what no checkpoint can say")
    raise NoStoreError(
        f"the checkpoint is of format {format_}, this version knows {FORMAT}: use the timer-bridge that wrote it. A"
        f" start of this one rebuilds the store from Kafka"
    )


def _format_of(data: bytes) -> int | None:
    """The format that a sound checkpoint names, None where it is not sound."""
    text = sound_text(data)
    if text is None:
        return None
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    format_ = told.get("format") if isinstance(told, dict) else None
    return format_ if isinstance(format_, int) else None


class StoppedStore:
    """See the module. Raises NoStoreError, and CorruptStoreError where what it meets cannot be right."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.checkpoint = read_checkpoint(disk)
        told = self.checkpoint
        self.units = UnitLog(disk, UNITS, IDS, told.segment_bytes, told.unit_files())
        self.frames = FrameLog(disk, BODIES, told.segment_bytes, told.bodies)
        self.units.end = told.units_end

    def __enter__(self) -> "StoppedStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.units.close()
        self.frames.close()

    @property
    def closed(self) -> bool:
        """Whether the store was closed in the state that the checkpoint tells."""
        return self._disk.read(CLOSED) == self.checkpoint.to_bytes()

    def files(self) -> list[LogFile]:
        """The logs' files, as they are now."""
        found = []
        for folder in (UNITS, IDS, BODIES):
            for name in self._disk.names(folder):
                file = self._disk.open(f"{folder}/{name}")
                found.append(LogFile(f"{folder}/{name}", file.size()))
                file.close()
        return found

    def live(self) -> Iterator[Rows]:
        """Live timers as RUN, block by block in the order of the log; behind them those that are held."""
        told = self.checkpoint
        held = np.array(told.held, np.int64)
        scan = LiveScan(self.units, told, told.progress.settled, held, np.empty(0, np.int64), waits_of(told))
        ended = EndedUnits(self.units.per_segment)
        scan.mark(ended, LiveCounts())
        yield from scan.live(ended)
        yield from scan.held.values()

    def bodies(self, rows: Rows) -> list[Body]:
        """The bodies of `rows`, in their order."""
        places = zip(rows["body"].tolist(), rows["body_size"].tolist(), rows["origin"].tolist(), strict=True)
        return [self._body(position, size, origin) for position, size, origin in places]

    def _body(self, position: int, size: int, origin: int) -> Body:
        body = unpack(self.frames.read(position, size), position)
        if body.origin != origin:
            raise CorruptStoreError(f"{BODIES} at {position}", f"origin {body.origin}, not {origin}")
        return body

    def timers(self, rows: Rows) -> list[StoredTimer]:
        """`rows` with their bodies."""
        visits, sizes = rows["visit_ms"].tolist(), rows["body_size"].tolist()
        return [StoredTimer(*each) for each in zip(visits, self.bodies(rows), sizes, strict=True)]

    def soonest(self, limit: int) -> list[StoredTimer]:
        """The first `limit` live timers in the order of release. Memory for so many, however many live."""
        kept = np.empty(0, RUN)
        for rows in self.live():
            kept = in_order(np.concatenate([kept, rows]))[:limit]
        return self.timers(kept)

    def with_id(self, id_: bytes) -> list[StoredTimer]:
        """Those that live under `id_`: one, or none."""
        hash_ = hash_of(id_)
        found = [timer for rows in self.live() for timer in self.timers(rows[rows["id_hash"] == hash_])]
        return [timer for timer in found if timer.body.id == id_]

    def dues(self) -> DueCounts:
        """Live timers by real topic and due time."""
        counts = DueCounts(lambda row: self.bodies(row)[0].target)
        for rows in self.live():
            counts.add(rows)
        return counts

    def ticks(self, limit: int) -> list[tuple[int, int]]:
        """The first `limit` ticks in which timers are looked at: start in epoch ms, and how many."""
        counts: dict[int, int] = {}
        tick_ms = self.checkpoint.tick_ms
        for rows in self.live():
            starts, numbers = np.unique(rows["visit_ms"] // tick_ms * tick_ms, return_counts=True)
            for start_ms, number in zip(starts.tolist(), numbers.tolist(), strict=True):
                counts[start_ms] = counts.get(start_ms, 0) + number
        return sorted(counts.items())[:limit]
