"""Find and open the stores of a stopped bridge, read only.

    folder: a data directory (timer-data), a timer topic's folder in it, or the folder of one partition

Folders of workers in a data directory are read too (bridge.workers). Readers hold a shared lock on the directory, so no
bridge starts meanwhile. A running bridge holds the exclusive lock: then its stores are read only with `force`.
"""

import fcntl
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from bridge import extras
from bridge.config.data_directory import LOCK, OF_WORKER
from bridge.errors import BridgeError, SettingsError
from kafka_timer.origin import TimerPartition
from schemas.progress import Age, age_of
from timer.disk import ReadOnlyDisk
from timer.errors import CorruptStoreError
from timer.format.checkpoint import BODIES, DATABASE, NAME, UNITS, WHEEL, Checkpoint
from timer.stopped_store import EmptyStoreError, NoStoreError, StoppedStore

_OF_A_STORE = (NAME, WHEEL, UNITS, BODIES)


@contextmanager
def locked_stores(
    folder: Path, *, force: bool = False, remedy: str = "stop it first"
) -> Iterator[list[tuple[TimerPartition, Path]]]:
    """Yield the stores at or below `folder`; no bridge can start on them meanwhile. Raises SettingsError, BridgeError.

    remedy: what the error says to do if a bridge is running on them.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a directory: give the bridge's --data-dir, or a folder in it")
    parents = folder.resolve(), *folder.resolve().parents[:2]
    lock = next((parent / LOCK for parent in parents if (parent / LOCK).is_file()), None)
    locks = [*([] if lock is None else [lock]), *folder.glob(f"{OF_WORKER}*/{LOCK}")]
    with ExitStack() as ends:
        for each in locks:
            try:
                file = ends.enter_context(each.open("rb"))
            except OSError as error:
                raise BridgeError(f"{each}: {error.strerror}: run as the user that the bridge runs as") from error
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as held:
                if not force:
                    raise SettingsError(f"a bridge is running on {each.parent}: {remedy}") from held
                text = f"note: a bridge is running on {each.parent}: what it writes meanwhile may look like a fault"
                typer.echo(text, err=True)
        yield _stores(folder)


def _stores(folder: Path) -> list[tuple[TimerPartition, Path]]:
    for places in ([folder], folder.glob("*"), [*folder.glob("*/*"), *folder.glob(f"{OF_WORKER}*/*/*")]):
        found = [(path.resolve(), path) for path in places if any((path / name).exists() for name in _OF_A_STORE)]
        if strange := next((full for full, _ in found if not full.name.isdigit()), None):
            raise SettingsError(f"{strange} is not the folder of a partition: its name is not a number")
        if found:
            return sorted((TimerPartition(full.parent.name, int(full.name)), path) for full, path in found)
    raise SettingsError(f"no store in {folder}: give the bridge's --data-dir, or a folder in it")


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn the store's errors into BridgeErrors that name the folder and the remedy."""
    try:
        yield
    except EmptyStoreError:
        raise
    except NoStoreError as none:
        raise SettingsError(f"{path}: {none}") from none
    except CorruptStoreError as error:
        raise BridgeError(
            f"{path} is damaged: {error}. `timer-bridge verify` says more; a start of the bridge rebuilds it from Kafka"
        ) from error
    except ModuleNotFoundError:
        extras.require("rocksdb", f"{path}: engine rocksdb")
        raise
    except PermissionError as error:
        raise BridgeError(f"{error.filename}: {error.strerror}: run as the user that the bridge runs as") from error


def _age(path: Path) -> Age:
    """Return the age of a store; the lowest one if it has no checkpoint that can be read."""
    file = path / NAME
    checkpoint = Checkpoint.from_bytes(file.read_bytes()) if file.exists() else None
    return () if checkpoint is None else age_of(checkpoint.progress)


def for_each_store(
    stores: Iterable[tuple[TimerPartition, Path]], look: Callable[[TimerPartition, StoppedStore], object]
) -> list[TimerPartition]:
    """Call `look` for each store that is not empty. Return those that cannot be read: they have no checkpoint yet.

    If several workers have a store of a partition, which has moved, the newest is read. A store that was not closed
    cleanly gets a note on stderr, because what came after its checkpoint is not read.
    """
    unfinished, found = [], defaultdict[TimerPartition, list[Path]](list)
    for partition, path in stores:
        found[partition].append(path)
    for partition, paths in found.items():
        path = paths[0] if len(paths) == 1 else max(paths, key=_age)
        try:
            with store_errors(path), StoppedStore(ReadOnlyDisk(path)) as store:
                if not store.closed:
                    typer.echo(f"note: {partition} was not closed cleanly: as of its last checkpoint", err=True)
                look(partition, store)
        except EmptyStoreError:
            if (path / DATABASE).is_dir() or any(file.stat().st_size > 0 for file in (path / UNITS).glob("*")):
                unfinished.append(partition)
    return unfinished
