"""Read bodies of the body log: whole ones in few reads, or the beginning of one."""

from dataclasses import dataclass

from timer.errors import CorruptStoreError
from timer.files.segment_log import FrameLog
from timer.format.body import PEEK_SIZE, Body, Peek, peek, unpack
from timer.format.unit import Rows

_READ_THROUGH_BYTES = 4096
"""Gaps up to this size are read too, as that is cheaper than another read."""
_MAX_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Each body is compared with its row."""

    _log: FrameLog

    def read(self, rows: Rows) -> list[Body]:
        """Return the bodies of `rows`, in their order. Raises CorruptStoreError."""
        if not len(rows):  # fast path: three of the four kinds of a turn are usually empty
            return []
        positions, sizes = rows["body"].tolist(), rows["body_size"].tolist()
        origins = rows["origin"].tolist()
        bodies: list[Body] = []
        at = 0
        while at < len(positions):
            base = positions[at]
            end, upto = self._span(positions, sizes, at)
            data = self._log.read(base, end - base)
            for i in range(at, upto):
                offset = positions[i] - base
                bodies.append(_unpack(data[offset : offset + sizes[i]], positions[i], origins[i]))
            at = upto
        return bodies

    def read_one(self, position: int, size: int, origin_offset: int) -> Body:
        """Return one body. Raises CorruptStoreError."""
        return _unpack(self._log.read(position, size), position, origin_offset)

    def _span(self, positions: list[int], sizes: list[int], at: int) -> tuple[int, int]:
        """Return the end of one read that serves the bodies from row `at` on, and the first row after it."""
        base = positions[at]
        file_end = self._log.file_end(base)
        end = base + sizes[at]
        upto = at + 1
        while upto < len(positions):
            begin = positions[upto]
            if not end <= begin <= end + _READ_THROUGH_BYTES or begin >= file_end or begin - base > _MAX_READ_BYTES:
                break
            end = begin + sizes[upto]
            upto += 1
        return end, upto

    def peek(self, row: Rows) -> Peek:
        """Return the beginning of the body of `row`, one TIMER_ROW.

        Raises CorruptStoreError if a torn unit points to another timer's body.
        """
        position = int(row["body"][0])
        found = peek(self._log.read_upto(position, PEEK_SIZE), position)
        if (found.size, found.origin_offset) != (row["body_size"][0], row["origin"][0]):
            raise CorruptStoreError(f"body log at {position}", f"not the body of origin {row['origin'][0]}")
        return found


def _unpack(frame: bytes, position: int, origin_offset: int) -> Body:
    body = unpack(frame, position)
    if body.origin_offset != origin_offset:
        raise CorruptStoreError(f"body log at {position}", f"origin {body.origin_offset}, not {origin_offset}")
    return body
