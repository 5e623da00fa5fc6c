"""The checkpoint: up to where the files of a store are known to be durable, and which committed progress that is.

    8 hex digits (CRC-32 of the rest) | newline | JSON

It is written only when everything in the store is committed in Kafka, so taking a store back to its checkpoint is the
undo of whatever was ahead of the commit.
"""

import zlib
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator

from schemas.headers import MAX_INT64
from schemas.journal import CopyInFlight, Wait
from schemas.progress import Int64, Progress
from timer.format.unit import BLANK_SIZE, UNIT_SIZE

FORMAT = 3
NAME = "checkpoint"
CLOSED = "closed"
"""A copy of the checkpoint, made when a store is closed in the very state that the checkpoint tells, wheel included."""

MOST_SLOTS = 1 << 26
"""2 GiB of a wheel: more are believed only where the wheel itself, or Kafka, tells them too."""
MOST_FILES = 1 << 20
"""Of the TimerLog, 64 TiB of it: more were never there."""


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
    segment_bytes: int = Field(ge=UNIT_SIZE + BLANK_SIZE, le=MAX_INT64)
    tick_ms: int = Field(ge=1, le=MAX_INT64)
    slots: int = Field(ge=1, le=MAX_INT64)
    """Slots at that time; the next opening lays the wheel out by the settings of then."""
    units_end: int = Field(ge=0, le=MAX_INT64)
    body_end: int = Field(ge=0, le=MAX_INT64)
    low_unit: int = Field(ge=0, le=MAX_INT64)
    segments: tuple[tuple[int, int], ...]
    """Files of the TimerLog, first to last of each run. No file but these, and `bodies`, is this store's."""
    bodies: tuple[int, ...]
    """Files of the body log, each by the position of its first byte."""
    pending: int = Field(ge=0, le=MAX_INT64)
    held: tuple[Int64, ...] = ()
    waits: tuple[Wait, ...] = ()
    """Targets whose timers wait, as committed."""
    flights: tuple[CopyInFlight, ...] = ()
    """Copies on their way."""
    ended_flights: tuple[Int64, ...] = ()
    """Origins of those of them whose timer has ended."""
    journal_offset: Int64
    """Where the shard's journal goes on behind this progress."""

    @field_serializer("progress")
    def _without_no_era(self, progress: Progress) -> tuple[object, ...]:
        """As it was before there were eras: one that is written down once is the same for every version."""
        return tuple(progress) if progress.era else tuple(progress[:-1])

    @model_validator(mode="after")
    def _names_files(self) -> "Checkpoint":
        """Its files are in order, within its ends and not beyond number: what is named is opened, one by one."""
        ends = [-1, *(number for run in self.segments for number in run)]
        is_ascending = all(a < b for a, b in zip(ends[::2], ends[1::2], strict=False))
        is_run = all(first <= last for first, last in self.segments)
        bodies = [-1, *self.bodies]
        files = sum(last - first + 1 for first, last in self.segments)
        if not (is_ascending and is_run and files <= MOST_FILES and all(a < b for a, b in pairwise(bodies))):
            raise ValueError("the files that it names are in no order")
        if max(ends[-1] * self.segment_bytes, bodies[-1]) > MAX_INT64:
            raise ValueError("it names files beyond any position")
        return self

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
