"""Create and open the store of a partition with the engine of its options.

wheel     TimerLog, TimerWheel and body log           timer.wheel
rocksdb   the same timers in a RocksDB database       timer.rocksdb
"""

from collections.abc import Collection

from schemas.journal import Wait
from schemas.progress import Progress
from timer.disk import Disk
from timer.errors import CorruptStoreError, WheelFullError
from timer.format.checkpoint import BODIES, DATABASE, IDS, NAME, UNITS, WHEEL, Checkpoint
from timer.options import StoreOptions
from timer.store import Store
from timer.wheel.store import WheelStore
from timer.wheel.timer_log import delete_other_files


def wipe(disk: Disk) -> None:
    """Remove a store of any engine. The checkpoint goes first and durably, so that a crash in between leaves no store.

    The checkpoint is emptied, not removed: after a loss of power a removed file may be back, and an old checkpoint
    would name the files of a later store.
    """
    disk.start_replace(NAME, b"").wait()
    disk.remove(WHEEL)
    disk.remove_folder(DATABASE)
    for folder in (UNITS, BODIES, IDS):
        delete_other_files(disk, folder, ())


def create_store(disk: Disk, options: StoreOptions, progress: Progress, waits: Collection[Wait] = ()) -> Store:
    """Create an empty store in place of any other. The caller adds the requests from `progress.low_offset` on."""
    wipe(disk)
    store = _engine(options)(disk, options, progress, None, waits)
    if progress.low_offset == progress.next_offset:
        store.skip_checkpoint()  # nothing to keep, perhaps nothing committed yet
    return store


def open_store(
    disk: Disk,
    options: StoreOptions,
    found: Checkpoint,
    progress: Progress,
    held: Collection[int],
    ended: Collection[int],
    waits: Collection[Wait] = (),
) -> Store:
    """Open the store at the checkpoint `found`, as of `progress`, `held` and `ended` (origins) and `waits`.

    The caller adds the requests from `found.progress.next_offset` on. `options` must have the engine and the tick
    of `found`. Raises CorruptStoreError, WheelFullError, and OSError if the disk is full.
    """
    if (found.engine, found.tick_ms) != (options.engine, options.tick_ms):
        built = f"the store was built by {found.engine} with {found.tick_ms}"
        raise ValueError(f"engine {options.engine} with tick_ms {options.tick_ms}, {built}")
    store = _engine(options)(disk, options, progress, found, waits)
    try:
        store.restore(found, held, ended)
    except (CorruptStoreError, WheelFullError, OSError):
        store.close()
        raise
    return store


def _engine(options: StoreOptions) -> type[Store]:
    """Return the class of the engine. RocksDB is loaded only if it is used."""
    if options.engine == "rocksdb":
        from timer.rocksdb.store import RocksStore

        return RocksStore
    return WheelStore
