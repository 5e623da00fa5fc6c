"""Is every byte of a stopped store what was written? In this order, up to the first fault:

    1 checkpoint    its CRC; it says where the logs ended (all below is checked to these ends)
    2 files         closed ones are full, the last ones reach the ends, a column of ids beside each file of units
    3 body log      frame behind frame, each by its CRC; dead ones too
    4 TimerLog      each unit with its id hash by their check; blank records; delete markers and what they end
    5 both          each unit's frame is the one it speaks of; what lives has one; as many live as the checkpoint says
    6 wheel         timer.wheel_verification

The checkpoint names the files; others are left over (a loss of power brings deleted ones back) and deleted by the next
start, so they are only told about.
What lies behind the ends was written after the checkpoint: the next start takes it back, so it is only told about.
"""

from collections.abc import Callable, Collection
from itertools import pairwise

from timer import resume
from timer.checkpoint import CLOSED, Checkpoint
from timer.checksum import COLUMN
from timer.disk import Disk
from timer.entry import BLANK_SIZE, UNIT_SIZE
from timer.errors import CorruptStoreError
from timer.frame_verification import check_frames
from timer.inspection import read_checkpoint
from timer.log import FrameLog, UnitLog
from timer.names import BODIES, IDS, UNITS, WHEEL
from timer.unit_verification import UnitVerification, per_segment, units_in
from timer.verified import FaultError, Folder, Verified
from timer.wheel_verification import TimeChains


def verify(disk: Disk) -> Verified:
    """Raises NoStoreError where there is nothing to verify, or nothing that this version knows."""
    seen = Verified()
    try:
        told = read_checkpoint(disk)
        seen.closed = _is_closed(disk, told)
        _Verification(disk, told, seen).run()
    except FaultError as found:
        seen.fault = found.fault
    except CorruptStoreError as wrong:
        seen.fault = FaultError(wrong.where, None, "", wrong.what).fault
    return seen


def _is_closed(disk: Disk, told: Checkpoint) -> bool:
    data = disk.read(CLOSED)
    if data and Checkpoint.from_bytes(data) is None:
        raise FaultError(CLOSED, None, "", "no copy of any checkpoint")
    if data != told.to_bytes():
        return False
    if resume.read(disk, told) is None:
        raise FaultError(resume.RESUME, None, "", "its check does not fit, or it is another checkpoint's")
    return True


class _Verification:
    """One store; `told`: what its checkpoint says."""

    def __init__(self, disk: Disk, told: Checkpoint, seen: Verified) -> None:
        self._disk = disk
        self._told = told
        self._seen = seen
        self._units, self._ids, self._bodies = (Folder(disk, folder) for folder in (UNITS, IDS, BODIES))

    def run(self) -> None:
        self._check_unit_files()  # 2
        self._check_body_files()
        self._seen.frames = check_frames(self._bodies, self._told.body_end)  # 3
        told = self._told
        log = UnitLog(self._disk, UNITS, IDS, told.segment_bytes, told.unit_files())
        bodies = FrameLog(self._disk, BODIES, told.segment_bytes, told.bodies)
        try:
            units = UnitVerification(self._units, self._ids, log, bodies, self._told)
            wheel = self._disk.read(WHEEL)
            chains = TimeChains(log, self._told, len(wheel or b""))
            units.check_sums(self._seen)  # 4
            units.check_live(chains, self._seen)  # 5
            chains.compare(wheel, self._seen)  # 6
        finally:
            log.close()
            bodies.close()

    # -- 2 files

    def _check_unit_files(self) -> None:
        for folder in (self._units, self._ids):
            self._keep_named(folder, self._told.unit_files(), lambda base: not units_in(self._told, base))
        for base in self._units.bases:
            self._check_unit_file(base)

    def _keep_named(self, folder: Folder, named: Collection[int], is_behind: Callable[[int], bool]) -> None:
        """Files that the checkpoint names are there; others are left over, and not looked at."""
        for base in named:
            if base not in folder.bases:
                raise FaultError(folder.name(base), None, "", "missing, though the checkpoint names it")
        for base in [base for base in folder.bases if base not in named]:
            if is_behind(base):
                self._behind(folder.name(base), folder.size(base))
            else:
                self._seen.notes.append(f"{folder.name(base)}: left over; the next start deletes it")
            folder.bases.remove(base)

    def _check_unit_file(self, base: int) -> None:
        count = units_in(self._told, base)
        full = count == per_segment(self._told)
        for folder, size in (
            (self._units, count * UNIT_SIZE + full * BLANK_SIZE),
            (self._ids, count * COLUMN.itemsize),
        ):
            found = folder.size(base) if base in folder.bases else 0
            self._seen.files += 1
            if found < size:
                raise FaultError(folder.name(base), found, "", f"ends here, not at {size}")
            if found > size:
                if full:
                    raise FaultError(folder.name(base), size, "", f"{found - size} bytes behind its end")
                self._behind(folder.name(base), found - size)

    def _behind(self, name: str, size: int) -> None:
        """Bytes behind the checkpoint."""
        self._seen.closed = False
        self._seen.notes.append(f"{name}: {size} bytes behind the checkpoint; the next start takes them back")

    def _check_body_files(self) -> None:
        end = self._told.body_end
        self._keep_named(self._bodies, self._told.bodies, lambda base: base >= end)
        for base, behind in pairwise([*self._bodies.bases, end]):
            size = self._bodies.size(base)
            self._seen.files += 1
            if behind == end and base + size > end:
                self._behind(self._bodies.name(base), base + size - end)
            elif base + size > behind:
                raise FaultError(self._bodies.name(base), behind - base, "", f"reaches into the file of {behind}")
            elif base + size < behind and (behind == end or size < self._told.segment_bytes):
                raise FaultError(self._bodies.name(base), size, "", f"ends here, not at {behind - base}")
