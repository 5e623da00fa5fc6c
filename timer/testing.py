"""A disk in memory that fails like real ones: it keeps what timer.disk promises, and breaks the rest.

    bytes of a file    now   what the running system sees (the page cache)
                       kept  what is on the platter; a sync copies now -> kept, the kernel any sector at any time;
                             after a failed sync the kernel considers bytes written until they are written again

    kill()         the process dies      now stays; running work has happened or not
    lose_power()   the machine stops     per sector of 512 bytes: now or kept; any length between the two;
                                         a removed file may be back, a new one may be missing
    reopen()       the next process's Disk on what remains; every old handle raises

`Crash` is such a death seen from inside: the `Fuse` raises it at any call, before or after its effect.

    disk = SimDisk(random.Random(7)); ...; disk.lose_power(); store = open_store(disk.reopen(), ...)
"""

import atexit
import errno
import gc
import itertools
import math
import shutil
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import numpy as np
from numpy.typing import NDArray

from timer.disk import File
from timer.errors import UnreadableError

SECTOR = 512


class Crash(BaseException):
    """The process is dead from here on. No `except Exception` may catch it."""


class Fuse:
    """Counts the calls that one process makes through its ports, and ends the process at one of them.

    A burnt fuse raises at every further call too: `finally` blocks of a dead process have no effect.
    """

    def __init__(self) -> None:
        self.where = ""
        self.burnt = False
        self._left: float = math.inf
        self._part = ""

    def arm(self, steps: int, part: str = "") -> None:
        """Burn at the `steps`-th call from now on. Only calls whose name begins with `part` are counted."""
        self._left, self._part = steps, part

    def disarm(self) -> None:
        """Do not burn. Has no effect on a burnt fuse."""
        self._left = math.inf

    def step(self, where: str) -> None:
        """Count one call. To be called before and after every effect."""
        if where.startswith(self._part) and not self.burnt:
            self._left -= 1
            if self._left <= 0:
                self.where, self.burnt = where, True
        if self.burnt:
            raise Crash(self.where)


class DeadHandleError(RuntimeError):
    """A closed file, or a file of an earlier process, was used."""


class _Node:
    """The bytes of a file, whatever its name: as seen now, and as found after a loss of power."""

    def __init__(self, now: bytes | bytearray = b"", kept: bytes = b"") -> None:
        self.now = bytearray(now)
        self.kept = kept
        self.is_overwritten = False
        """True if overwritten in place since the last sync: a loss of power may tear durable bytes."""
        self.is_unreadable = False
        self.given_up: set[int] = set()
        """Sectors that the kernel considers written, as Linux does after a failed sync."""

    def write_all(self, data: bytes) -> None:
        """End a sync that began when the file held `data`."""
        self.kept = self._reaching(data)
        self.is_overwritten &= self.kept != self.now

    def give_up(self, data: bytes) -> None:
        """Fail a sync that began when the file held `data`: sectors unchanged since are not written any more."""
        for sector in range(_sectors(len(data))):
            part = slice(sector * SECTOR, (sector + 1) * SECTOR)
            if self.now[part] == data[part] != self.kept[part]:
                self.given_up.add(sector)

    def touch(self, start: int, end: int) -> None:
        self.given_up.difference_update(range(start // SECTOR, _sectors(end)))

    def found(self, rng: Random) -> bytes:
        """Return what may be found after a loss of power: of each sector the kept or the present bytes, any length."""
        kept, now = self.kept, self._reaching(self.now)
        if kept == now:
            return kept
        share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        shorter, longer = sorted((len(kept), len(now)))
        length = rng.choice((len(kept), len(now), rng.randint(shorter, longer)))
        mixed = bytearray(kept[:length].ljust(length, b"\0"))
        for at in range(0, min(len(now), length), SECTOR):
            end = min(at + SECTOR, length)
            if rng.random() < share:
                part = now[at:end]
                mixed[at : at + len(part)] = part
        return bytes(mixed)

    def _reaching(self, data: bytes | bytearray) -> bytes:
        """Return what of `data` may reach the platter. Sectors given up stay as they are there, or zeros."""
        reaching = bytearray(data)
        for at in (sector * SECTOR for sector in self.given_up):
            size = len(reaching[at : at + SECTOR])
            reaching[at : at + size] = self.kept[at : at + size].ljust(size, b"\0")
        return bytes(reaching)


_unused_folders: list[Path] = []
"""Temporary folders of disks that nothing refers to any more."""
_MOST_UNUSED = 100
"""Unused folders that may wait until they are deleted together."""


@atexit.register
def _delete_unused_folders() -> None:
    """Delete the folders of disks that are gone, after their databases.

    RocksDB waits for a second if it is closed after its folder was deleted.
    """
    gc.collect()
    while _unused_folders:
        shutil.rmtree(_unused_folders.pop(), ignore_errors=True)


def _sectors(size: int) -> int:
    return -(-size // SECTOR)


class SimFile:
    def __init__(self, disk: "SimDisk", name: str, node: _Node) -> None:
        self._disk = disk
        self.name = name
        self._node = node
        self._open = True

    def size(self) -> int:
        return len(self.alive_node().now)

    def next_data(self, at: int) -> int:
        return at

    def read(self, at: int, size: int) -> bytes:
        node = self.alive_node()
        if node.is_unreadable:
            raise UnreadableError(self.name, f"{size} bytes at {at} cannot be read")
        return bytes(node.now[at : at + size])

    def append(self, data: bytes) -> None:
        node = self.alive_node()
        self._disk.step("disk.append")
        taken = self._disk.room_for(len(data))
        node.touch(len(node.now), len(node.now) + taken)
        node.now += memoryview(data)[: min(taken, len(data) // 2)]
        if taken:
            self._disk.step("disk.append half")
        node.now += memoryview(data)[min(taken, len(data) // 2) : taken]
        if taken < len(data):
            raise self._disk.append_error()
        self._disk.step("disk.append done")

    def overwrite(self, at: int, data: bytes) -> None:
        node = self.alive_node()
        self._disk.step("file.overwrite")
        assert at + len(data) <= len(node.now), f"{at} + {len(data)} lies beyond {len(node.now)}"
        node.now[at : at + len(data)] = data
        node.touch(at, at + len(data))
        node.is_overwritten = True
        self._disk.step("file.overwrite done")

    def rewrite(self) -> None:
        node = self.alive_node()
        self._disk.step("disk.rewrite")
        self.read(0, len(node.now))
        if self._disk.room_for(len(node.now)) < len(node.now):
            raise self._disk.append_error()
        node.touch(0, len(node.now))
        self._disk.step("disk.rewrite done")

    def truncate(self, size: int) -> None:
        node = self.alive_node()
        self._disk.step("disk.truncate")
        node.touch(min(size, len(node.now)), max(size, len(node.now)))
        node.now = node.now[:size].ljust(size, b"\0")
        self._disk.step("disk.truncate done")

    def close(self) -> None:
        self._open = False

    def alive_node(self) -> _Node:
        if not self._open:
            raise DeadHandleError(f"{self.name} is closed")
        self._disk.check_alive()
        return self._node


class SimMapping:
    """Its blocks are sectors: those that are not zeros at first have room."""

    def __init__(self, disk: "SimDisk", node: _Node) -> None:
        self._disk = disk
        self._node = node
        self._buffer = memoryview(node.now)
        self._has_room = self._are_used()

    @property
    def buffer(self) -> memoryview:
        self._disk.check_alive()
        return self._buffer

    def _are_used(self) -> NDArray[np.bool_]:
        data = np.frombuffer(bytes(self._node.now), np.uint8)
        return np.logical_or.reduceat(data, np.arange(0, len(data), SECTOR))

    def allocate(self, at: int, size: int) -> None:
        if self._disk.room_for(size) < size:
            raise self._disk.append_error()
        self._has_room[at // SECTOR : _sectors(at + size)] = True

    def drop_page_cache(self) -> None: ...

    def close(self) -> None:
        """Close. As with the real one, no view of the buffer may exist."""
        self._buffer.release()
        assert not (self._are_used() & ~self._has_room).any(), "SIGBUS: a sector without room was written"


@dataclass(eq=False)
class SimSyncing:
    """Work that is done at some later `done()`. A replacement that dies may leave `scratch`."""

    disk: "SimDisk"
    names: frozenset[str]
    work: Callable[[bool], None]
    """Its argument is False if the work fails."""
    scratch: str = ""
    finished: bool = False
    error: OSError | None = None

    def done(self) -> bool:
        self.disk.step("disk.done")
        return (self.finished or not self.disk.still_busy()) and self._end()

    def wait(self) -> None:
        self.disk.step("disk.wait")
        self._end()

    def _end(self) -> bool:
        if not self.finished:
            self.disk.finish(self)
        if self.error is not None:
            raise self.error
        return True

    def finish(self, error: OSError | None = None) -> None:
        self.finished, self.error = True, error
        self.work(error is None)


class SimDisk:
    """One folder in memory. Without `rng` every sync is done at once; with it, at some later call.

    Work on different names may finish in any order; on one name, in the order of the calls.
    """

    def __init__(self, rng: Random | None = None, fuse: Fuse | None = None) -> None:
        self._rng = rng
        self._fuse = fuse or Fuse()
        self._now: dict[str, _Node] = {}
        self._kept: dict[str, _Node] = {}
        self._busy: list[SimSyncing] = []
        self._folders: Path | None = None
        self._alive = True
        self._appends_left: float = math.inf
        self._taken_share = 0.0
        self._errno = errno.ENOSPC
        self._sync_error: OSError | None = None
        self.free = 1 << 40
        """Value that `free_bytes` returns."""
        self.may_be_torn = False
        """True if a loss of power met bytes overwritten in place: only that excuses a damaged store."""

    # The Disk port

    def open(self, name: str) -> SimFile:
        self.step("disk.open")
        return SimFile(self, name, self._now.setdefault(name, _Node()))

    def map(self, name: str, size: int) -> SimMapping:
        self.step("disk.map")
        node = self._now.setdefault(name, _Node())
        if len(node.now) != size:
            node.now = bytearray(size)
        return SimMapping(self, node)

    def read(self, name: str) -> bytes | None:
        self.step("disk.read")
        node = self._now.get(name)
        if node is not None and node.is_unreadable:
            raise UnreadableError(name, "it cannot be read")
        return None if node is None else bytes(node.now)

    def names(self, folder: str) -> list[str]:
        self.step("disk.names")
        prefix = f"{folder}/" if folder else ""
        inside = (name.removeprefix(prefix) for name in self._now if name.startswith(prefix))
        return sorted(name for name in inside if "/" not in name)

    def remove(self, name: str) -> None:
        self.step("disk.remove")
        self._now.pop(name, None)
        self.step("disk.remove done")

    def folder(self, name: str) -> Path:
        """Return a real, temporary folder. A crash keeps the databases of checkpoints, and loses the one in use."""
        self.step("disk.folder")
        path = self._real_folders() / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def remove_folder(self, name: str) -> None:
        if self._folders is not None:
            self.step("disk.remove_folder")
            shutil.rmtree(self._folders / name, ignore_errors=True)
            self.step("disk.remove_folder done")

    def free_bytes(self) -> int:
        return self.free

    def start_sync(self, files: Sequence[File]) -> SimSyncing:
        self.step("disk.start_sync")
        parts = [(file.name, file.alive_node()) for file in files if isinstance(file, SimFile)]
        copies = [bytes(node.now) for _, node in parts]

        def work(succeeds: bool) -> None:  # noqa: FBT001
            for (name, node), copy in zip(parts, copies, strict=True):
                (node.write_all if succeeds else node.give_up)(copy)
                if succeeds and self._now.get(name) is node:
                    self._kept[name] = node

        return self._begin(SimSyncing(self, frozenset(name for name, _ in parts), work))

    def start_replace(self, name: str, data: bytes) -> SimSyncing:
        self.step("disk.start_replace")
        data, scratch = bytes(data), f"{name}.new"

        def work(succeeds: bool) -> None:  # noqa: FBT001
            if succeeds:
                self._now.pop(scratch, None)
                self._now[name] = self._kept[name] = _Node(data, data)

        return self._begin(SimSyncing(self, frozenset({name}), work, scratch=scratch))

    @property
    def has_given_up(self) -> bool:
        """True if a loss of power would lose bytes of a file, though a sync may have reported success."""
        return any(node.given_up for node in self._now.values())

    # Faults

    def fail_read(self, place: str) -> None:
        """Make a file, or all files that are in a folder now, unreadable."""
        found = [node for name, node in self._now.items() if name == place or name.startswith(f"{place}/")]
        assert found, f"no file in {place}"
        for node in found:
            node.is_unreadable = True

    def fail_append(self, after: int, *, share: float = 0.5, error: int = errno.ENOSPC) -> None:
        """Let every append after the next `after` raise OSError(error) after `share` of its bytes, until `mend()`."""
        self._appends_left, self._taken_share, self._errno = after, share, error

    def fail_sync(self, error: int = errno.EIO) -> None:
        """Let the next work fail when it would end."""
        self._sync_error = OSError(error, "simulated")

    def mend(self) -> None:
        self._appends_left = math.inf
        for node in self._now.values():
            node.is_unreadable = False

    def kill(self) -> None:
        """End the process: written bytes stay, running work has happened or not."""
        rng = self._rng or Random(0)
        for work in list(self._busy):
            if not work.finished and rng.random() < 0.5:
                self.finish(work)
            elif work.scratch and rng.random() < 0.5:
                self._now[work.scratch] = _Node(b"torn")
        self._alive = False

    def lose_power(self, rng: Random | None = None) -> None:
        """Stop the machine: each sector that was not synced is there, torn or lost."""
        rng = rng or self._rng or Random(0)
        if self._alive:
            self.kill()
        found: dict[str, _Node] = {}
        for name in sorted(self._now.keys() | self._kept.keys()):
            now, kept = self._now.get(name), self._kept.get(name)
            node = now if now is kept or rng.random() < 0.5 else kept
            if node is not None:
                self.may_be_torn |= node.is_overwritten
                content = node.found(rng)
                found[name] = _Node(content, content)
        self._now, self._kept = found, dict(found)

    def reopen(self, fuse: Fuse | None = None) -> "SimDisk":
        """Return the disk of the next process; a disk still alive is killed first."""
        if self._alive:
            self.kill()
        return self.copy(fuse)

    def copy(self, fuse: Fuse | None = None) -> "SimDisk":
        """Return an independent disk with the same bytes: an old directory that may come back later."""
        twin = SimDisk(self._rng, fuse)
        twin.may_be_torn = self.may_be_torn
        if self._folders is not None:
            ignored = shutil.ignore_patterns("open-*")  # a database that is open changes its files meanwhile
            shutil.copytree(self._folders, twin._real_folders(), dirs_exist_ok=True, ignore=ignored)
        twin._now, twin._kept = deepcopy((self._now, self._kept))
        return twin

    def contents(self) -> dict[str, bytes]:
        return {name: bytes(node.now) for name, node in sorted(self._now.items())}

    # For the handles

    def _real_folders(self) -> Path:
        """Return a temporary folder that goes with this disk."""
        if self._folders is None:
            if len(_unused_folders) > _MOST_UNUSED:
                _delete_unused_folders()
            self._folders = Path(mkdtemp(prefix="sim-disk-"))
            weakref.finalize(self, _unused_folders.append, self._folders)
        return self._folders

    def step(self, where: str) -> None:
        self.check_alive()
        self._fuse.step(where)

    def check_alive(self) -> None:
        if not self._alive:
            raise DeadHandleError("this disk belongs to an earlier process: use reopen()")

    def room_for(self, size: int) -> int:
        self._appends_left -= 1
        return size if self._appends_left >= 0 else int(size * self._taken_share)

    def append_error(self) -> OSError:
        return OSError(self._errno, "simulated")

    def still_busy(self) -> bool:
        return self._rng is not None and self._rng.random() < 0.6

    def finish(self, work: SimSyncing) -> None:
        """Finish `work`, and before it earlier work on the same names."""
        if self._sync_error is not None:
            work.finish(self._sync_error)
            self._sync_error = None
        for earlier in itertools.takewhile(lambda other: other is not work, list(self._busy)):
            if not earlier.names.isdisjoint(work.names):
                earlier.finish()
        if not work.finished:
            work.finish()
        self._busy = [other for other in self._busy if not other.finished]

    def _begin(self, syncing: SimSyncing) -> SimSyncing:
        self._busy.append(syncing)
        if self._rng is not None and self._rng.random() < 0.3:
            for name, node in self._now.items():
                if self._rng.random() < 0.5:  # the kernel writes some of the sectors, in any order
                    node.kept = node.found(self._rng)
                    self._kept[name] = node
        if not self.still_busy():
            self.finish(syncing)
        self.step("disk.start done")
        return syncing
