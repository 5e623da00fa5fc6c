"""The checkpoint: up to where the files of a store are known to be durable, and which committed progress that is.

    8 hex digits (CRC-32 of the rest) | newline | JSON

It is written only when everything in the store is committed in Kafka, so taking a store back to its checkpoint is the
undo of whatever was ahead of the commit.
"""

import zlib
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.journal import Flight, Wait
from schemas.progress import Progress

FORMAT = 3
NAME = "checkpoint"
CLOSED = "closed"
"""A copy of the checkpoint, made when a store is closed in the very state that the checkpoint tells, wheel included."""


def runs(segments: list[int]) -> tuple[tuple[int, int], ...]:
    """`segments`, ascending, as the first and the last of each run without a gap."""
    gaps = [at for at in range(1, len(segments)) if segments[at] != segments[at - 1] + 1]
    bounds = [0, *gaps, len(segments)]
    return tuple((segments[a], segments[b - 1]) for a, b in pairwise(bounds) if a < b)


class Checkpoint(BaseModel):
    """Positions are ends (the next to be written). `held` are the origins that wait with a key <= K."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    progress: Progress
    segment_bytes: int
    tick_ms: int
    slots: int
    """Layout of the wheel at that time; the next opening lays it out by the settings of then."""
    units_end: int
    body_end: int
    low_unit: int
    segments: tuple[tuple[int, int], ...]
    """Files of the TimerLog, first to last of each run. No file but these, and `bodies`, is this store's."""
    bodies: tuple[int, ...]
    """Files of the body log, each by the position of its first byte."""
    pending: int
    held: tuple[int, ...] = ()
    waits: tuple[Wait, ...] = ()
    """Targets whose timers wait, as committed."""
    flights: tuple[Flight, ...] = ()
    """Copies on their way."""
    ended_flights: tuple[int, ...] = ()
    """Origins of those of them whose timer has ended."""
    journal_offset: int
    """Where the shard's journal goes on behind this progress."""

    def unit_files(self) -> list[int]:
        """Files of the TimerLog by the position of their first byte, ascending."""
        return [segment * self.segment_bytes for first, last in self.segments for segment in range(first, last + 1)]

    def to_bytes(self) -> bytes:
        text = self.model_dump_json().encode()
        return b"%08x\n%s" % (zlib.crc32(text), text)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint | None":
        """None where the bytes are torn, changed, or of a format this version does not know."""
        text = sound_text(data)
        if text is None:
            return None
        try:
            found = cls.model_validate_json(text)
        except ValidationError:
            return None
        return found if found.format == FORMAT else None


def sound_text(data: bytes) -> bytes | None:
    """The JSON behind the checksum, whatever its format; None where the two do not fit."""
    checksum, _, text = data.partition(b"\n")
    return text if checksum == b"%08x" % zlib.crc32(text) else None
