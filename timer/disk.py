"""The store's only way to files: a small port, and its implementation on a real disk.

`File` is a byte array that grows; `Disk` is one folder of files. Written bytes survive the death of the process, synced
bytes survive a loss of power. A sync takes tens of ms, so it is started here and polled later:

    syncing = disk.start_sync([log, body])          ...turns go on...          syncing.done() -> True

A simulated Disk (timer.testing.SimDisk) keeps the same promises and breaks everything that is not promised.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from timer.errors import UnreadableError

_CHUNK_BYTES = 1 << 20
_DAMAGE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ESTALE})
"""Errors of a disk, or of a network file system, for bytes that cannot be read."""


class File(Protocol):
    """An open file. Positions and sizes in bytes."""

    def size(self) -> int: ...

    def read(self, at: int, size: int) -> bytes:
        """Return bytes [at, at + size), fewer at the end of the file. Raises UnreadableError."""

    def next_data(self, at: int) -> int:
        """Return the first byte from `at` on that is not in a hole, or the size: holes need not be read."""

    def append(self, data: bytes) -> None:
        """Append all of `data`. Raises OSError (disk full, EIO); then an unknown part of it may be in the file."""

    def overwrite(self, at: int, data: bytes) -> None:
        """Overwrite the bytes at `at` with `data`, which must lie within the file."""

    def rewrite(self) -> None:
        """Write all bytes again: after a failed sync the kernel considers them written, though they are not.

        Raises OSError; then all bytes still have to be rewritten. Raises UnreadableError.
        """

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class MappedFile(Protocol):
    """A file of fixed size as memory: changes to `buffer` reach the disk at any time, in any order.

    Allocate a part before reading or writing it: otherwise a full disk ends the process with SIGBUS.
    """

    @property
    def buffer(self) -> memoryview: ...

    def allocate(self, at: int, size: int) -> None:
        """Allocate the blocks of bytes [at, at + size), whose content stays. Raises OSError if the disk is full."""

    def drop_page_cache(self) -> None:
        """Give touched pages to the kernel's cache, so that they do not count as our memory. Loses nothing."""

    def close(self) -> None: ...


class Syncing(Protocol):
    """A sync or replacement that is running."""

    def done(self) -> bool:
        """True once it is durable. Raises OSError if it failed."""

    def wait(self) -> None:
        """Wait until it is durable. Raises OSError if it failed."""


class Disk(Protocol):
    """One folder. Names are relative, with '/' between; folders are created as needed."""

    def open(self, name: str) -> File:
        """Open for reading and appending; create an empty file if missing."""

    def map(self, name: str, size: int) -> MappedFile:
        """Map a file of `size` bytes; a missing one or one of another size is created with zeros."""

    def read(self, name: str) -> bytes | None:
        """Return the whole of a small file, None if missing."""

    def names(self, folder: str) -> list[str]:
        """Return sorted names (without the folder) of the files in `folder`, none if it is missing."""

    def remove(self, name: str) -> None: ...

    def folder(self, name: str) -> Path:
        """Return the real path of a folder whose files a library keeps, and create it if missing."""

    def remove_folder(self, name: str) -> None: ...

    def free_bytes(self) -> int: ...

    def start_sync(self, files: Sequence[File]) -> Syncing:
        """Start to make durable what `files` hold now."""

    def start_replace(self, name: str, data: bytes) -> Syncing:
        """Start to set the content of `name`: atomically, also at a loss of power, and durable when done."""


class RealFile:
    def __init__(self, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self.folder = path.parent
        self._path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def size(self) -> int:
        return self._size

    def read(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, at)
        except OSError as error:  # damage, not a full disk
            raise UnreadableError(str(self._path), f"{size} bytes at {at} cannot be read: {error}") from error

    def next_data(self, at: int) -> int:
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            return self._size if error.errno == errno.ENXIO else at

    def append(self, data: bytes) -> None:
        self._write(self._size, data)

    def overwrite(self, at: int, data: bytes) -> None:
        assert at + len(data) <= self._size, f"{at} + {len(data)} lies beyond {self._size}"
        self._write(at, data)

    def _write(self, at: int, data: bytes | memoryview) -> None:
        while data:
            written = os.pwrite(self._descriptor, data, at)
            at, data = at + written, memoryview(data)[written:]
            self._size = max(self._size, at)

    def rewrite(self) -> None:
        for at in range(0, self._size, _CHUNK_BYTES):
            held = self.read(at, _CHUNK_BYTES)
            if len(held) < min(_CHUNK_BYTES, self._size - at):
                raise UnreadableError(str(self._path), f"it ends at {at + len(held)}, expected {self._size} bytes")
            self.overwrite(at, held)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._size = size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def duplicate(self) -> int:
        """Return another descriptor, for a sync that may outlive this file."""
        return os.dup(self._descriptor)


class RealMapping:
    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with ExitStack() as opened:  # on an error, close it
            opened.callback(os.close, self._descriptor)
            if os.fstat(self._descriptor).st_size != size:
                os.ftruncate(self._descriptor, 0)
                os.ftruncate(self._descriptor, size)
            self._map = mmap.mmap(self._descriptor, size)
            self._map.madvise(mmap.MADV_RANDOM)  # else the first read takes ms: Linux reads MB around it ahead
            opened.pop_all()
        self.buffer = memoryview(self._map)

    def allocate(self, at: int, size: int) -> None:
        os.posix_fallocate(self._descriptor, at, size)

    def drop_page_cache(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close. No view of the buffer may exist."""
        self.buffer.release()
        self._map.close()
        os.close(self._descriptor)


class RealSyncing(NamedTuple):
    future: "Future[None]"

    def done(self) -> bool:
        return self.future.done() and self.future.result() is None

    def wait(self) -> None:
        self.future.result()


class RealDisk:
    """A real folder, created with mode 0700. One thread syncs, in the order of the calls."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._syncer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="timer-sync")

    def open(self, name: str) -> RealFile:
        return RealFile(self._made(name))

    def map(self, name: str, size: int) -> RealMapping:
        return RealMapping(self._made(name), size)

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            if error.errno in _DAMAGE:
                raise UnreadableError(str(path), f"it cannot be read: {error}") from error
            raise

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(child.name for child in path.iterdir() if child.is_file()) if path.is_dir() else []

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def folder(self, name: str) -> Path:
        path = self._root / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def remove_folder(self, name: str) -> None:
        if (self._root / name).is_dir():
            shutil.rmtree(self._root / name)

    def free_bytes(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def start_sync(self, files: Sequence[File]) -> RealSyncing:
        real = [file for file in files if isinstance(file, RealFile)]
        openings = [file.duplicate for file in real]
        openings += [partial(os.open, folder, os.O_RDONLY) for folder in {file.folder for file in real}]
        descriptors: list[int] = []
        with ExitStack() as opened:  # on an error, close those that are open
            for opening in openings:
                descriptors.append(opening())
                opened.callback(os.close, descriptors[-1])
            opened.pop_all()
        return RealSyncing(self._syncer.submit(sync_all, descriptors))

    def start_replace(self, name: str, data: bytes) -> RealSyncing:
        return RealSyncing(self._syncer.submit(_replace, self._made(name), data))

    def close(self) -> None:
        self._syncer.shutdown(wait=True)

    def _made(self, name: str) -> Path:
        path = self._root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path


def sync_all(descriptors: list[int]) -> None:
    try:
        for descriptor in descriptors:
            os.fsync(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    scratch = path.with_name(path.name + ".new")
    with closing(RealFile(scratch)) as file:
        file.truncate(0)
        file.append(data)
        sync_all([file.duplicate()])
    scratch.rename(path)
    sync_all([os.open(path.parent, os.O_RDONLY)])


def _refuse(*_asked: object, **_named: object) -> NoReturn:
    raise PermissionError("the store was opened read-only")


class ReadOnlyFile(RealFile):
    append = overwrite = rewrite = truncate = _refuse


class ReadOnlyDisk(RealDisk):
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> ReadOnlyFile:
        """Open for reading. Raises FileNotFoundError."""
        return ReadOnlyFile(self._root / name, os.O_RDONLY)

    def folder(self, name: str) -> Path:
        """Return the path. Raises FileNotFoundError if there is no such folder."""
        path = self._root / name
        if not path.is_dir():
            raise FileNotFoundError(path)
        return path

    map = remove = remove_folder = start_sync = start_replace = _refuse
