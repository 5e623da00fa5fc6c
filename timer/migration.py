"""A changed tick on a full store: what lives is written once more, in the chains of the new ticks.

    old units | live ones again, linked by a wheel of the new settings              bodies stay where they are
              ^ low_unit of a new checkpoint, which names the files from here on: the others are left over, and deleted

A crash leaves the old checkpoint, which takes the copies back, or the new one. A changed number of slots needs nothing
of this: a chain is that of a tick, wherever its slot lies.
"""

import numpy as np

from timer.checkpoint import NAME, Checkpoint, runs
from timer.disk import Disk
from timer.entry import MAGIC_DELETE, MAGIC_UNCHAINED, Rows, run_of, visits_ms
from timer.live import EndedUnits, LiveCounts
from timer.log import UnitLog
from timer.options import StoreOptions
from timer.scan import LiveScan, blocks, to_come, waits_of
from timer.wheel import SLOT_SIZE, Wheel


def linked_anew(disk: Disk, log: UnitLog, found: Checkpoint, options: StoreOptions) -> Checkpoint:
    """The checkpoint, durable, of the same store with the ticks of `options`. `log` stands as `found` says.

    Raises CorruptStoreError, WheelFullError, and OSError where there is no room.
    """
    wheel = Wheel(memoryview(bytearray(options.slots * SLOT_SIZE)), tick_ms=options.tick_ms, slots=options.slots)
    ended = EndedUnits(log.per_segment)
    waits = waits_of(found)
    scan = LiveScan(log, found, found.progress.settled, np.array(found.held, np.int64), np.empty(0, np.int64), waits)
    scan.mark(ended, LiveCounts())
    for _ in scan.live(ended):
        pass  # counts them, and finds where those that are held lie
    held = np.array([int(row["unit"][0]) for row in scan.held.values()], np.int64)
    for start, end in blocks(log, found.low_unit):
        units, beside = log.read(start, end), log.beside(start, end)
        run = run_of(units, beside, start)
        in_order = to_come(units, run, found.progress.settled, waits) & ~np.isin(
            run["origin"], np.array(found.held, np.int64)
        )
        is_timer = (units["magic"] & MAGIC_DELETE == 0) & ~ended.among(start, end)
        lives = is_timer & in_order | np.isin(run["unit"], held)
        _append(log, wheel, units[lives], beside[lives])
    moved = found.model_copy(
        update={
            "tick_ms": options.tick_ms,
            "slots": options.slots,
            "units_end": log.end,
            "low_unit": found.units_end,
            "segments": runs([s for s in log.segments() if s >= log.segment(max(0, found.units_end - 1))]),
        }
    )
    disk.start_sync(log.take_dirty()).wait()
    disk.start_replace(NAME, moved.to_bytes()).wait()
    return moved


def _append(log: UnitLog, wheel: Wheel, units: Rows, beside: Rows) -> None:
    """`units` to the end of `log`, each behind the one before it in its tick."""
    chained = units["magic"] & MAGIC_UNCHAINED == 0
    positions = log.positions(np.arange(log.end, log.end + len(units)))
    links = wheel.plan(visits_ms(units)[chained], positions[chained], np.ones(int(chained.sum()), np.bool_))
    units["previous"] = -1
    units["previous"][chained] = links.previous
    log.append(units, beside)
    wheel.link(links)
