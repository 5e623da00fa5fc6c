"""The checkpoint: up to where the files of a store are durable, and the committed progress of that state.

    8 hex digits (CRC-32 of the rest) | newline | JSON

Written only when everything in the store is committed in Kafka, so that a return to the checkpoint undoes all changes
that were never committed.
"""

import zlib
from itertools import pairwise
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kafka_timer.headers import MAX_INT64
from schemas.journal import CopyInFlight, Wait
from schemas.progress import Int64, Progress
from timer.format.unit import BLANK_SIZE, UNIT_SIZE
from timer.options import Engine

FORMAT = 4
NAME = "checkpoint"
UNITS, IDS, BODIES, WHEEL = "timer", "ids", "body", "wheel"
DATABASE = "rocksdb"
CLOSED = "closed"
"""A copy of the checkpoint, written when a store is closed in exactly that state, wheel included."""

MOST_SLOTS = 1 << 26
"""2 GiB of a wheel. A larger number is used only if the wheel file or Kafka confirms it."""
MOST_FILES = 1 << 20
"""Files of the TimerLog, 64 TiB."""


def runs(segments: list[int]) -> tuple[tuple[int, int], ...]:
    """Return (first, last) of each run without a gap in `segments`, which are ascending."""
    gaps = [at for at in range(1, len(segments)) if segments[at] != segments[at - 1] + 1]
    bounds = [0, *gaps, len(segments)]
    return tuple((segments[a], segments[b - 1]) for a, b in pairwise(bounds) if a < b)


class Checkpoint(BaseModel):
    """Positions are ends (the next to be written). held: the pending out-of-order origins."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    progress: Progress
    segment_bytes: int = Field(ge=UNIT_SIZE + BLANK_SIZE, le=MAX_INT64)
    tick_ms: int = Field(ge=1, le=MAX_INT64)
    slots: int = Field(ge=1, le=MAX_INT64)
    """Slots at that time; the next opening uses its own settings."""
    units_end: int = Field(ge=0, le=MAX_INT64)
    body_end: int = Field(ge=0, le=MAX_INT64)
    low_unit: int = Field(ge=0, le=MAX_INT64)
    segments: tuple[tuple[int, int], ...]
    """Files of the TimerLog, (first, last) of each run. Only these and `bodies` belong to the store."""
    bodies: tuple[int, ...]
    """Files of the body log, by the position of their first byte."""
    pending: int = Field(ge=0, le=MAX_INT64)
    held: tuple[Int64, ...] = ()
    waits: tuple[Wait, ...] = ()
    """Target backlogs, as committed."""
    flights: tuple[CopyInFlight, ...] = ()
    """Copies in flight."""
    ended_flights: tuple[Int64, ...] = ()
    """Origins of copies in flight whose timers have ended."""
    journal_offset: Int64
    """Next offset of the journal partition after this progress."""
    database: int | None = Field(None, ge=0, le=MAX_INT64)
    """Number of the database's folder (timer.rocksdb). None: the engine is the wheel, whose bytes stay as they were."""

    @property
    def engine(self) -> Engine:
        return "wheel" if self.database is None else "rocksdb"

    @pydantic.model_serializer(mode="wrap")
    def _without_absent(self, serialize: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an absent database and progress generation, so that all versions write the same bytes."""
        fields: dict[str, Any] = serialize(self)
        if self.database is None:
            del fields["database"]
        if not self.progress.era:
            fields["progress"] = fields["progress"][:-1]
        return fields

    @pydantic.model_validator(mode="after")
    def _names_files(self) -> "Checkpoint":
        """Check that the files are ascending, within the ends and of a possible number."""
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
        """Return first positions of the files of the TimerLog, ascending."""
        return [segment * self.segment_bytes for first, last in self.segments for segment in range(first, last + 1)]

    def to_bytes(self) -> bytes:
        text = self.model_dump_json().encode()
        return b"%08x\n%s" % (zlib.crc32(text), text)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint | None":
        """Parse `data`. None if the bytes are torn, changed or of an unknown format."""
        text = sound_text(data)
        if text is None:
            return None
        try:
            found = cls.model_validate_json(text)
        except ValidationError:
            return None
        return found if found.format == FORMAT else None


def sound_text(data: bytes) -> bytes | None:
    """Return the JSON after the checksum, whatever its format; None if the checksum does not match."""
    checksum, _, text = data.partition(b"\n")
    return text if checksum == b"%08x" % zlib.crc32(text) else None
