"""The data directory: mode 0700, locked by one process, one folder for each partition, and the instance id.

timer-data/lock   timer-data/instance-id   timer-data/<timer topic>/<partition>/...
timer-data/http.sock                       the HTTP server of a worker
timer-data/worker=2/...                    the data directory of the second worker; no topic can have this name

The bridge uses a folder only if it holds an instance id, or nothing but files that a bridge leaves.
"""

import fcntl
import logging
import os
import re
import uuid
from contextlib import closing
from pathlib import Path

from bridge.errors import SettingsError
from kafka_timer.origin import TimerPartition
from timer.disk import RealDisk

log = logging.getLogger(__name__)

LOCK, _ID, _SOCKET = "lock", "instance-id", "http.sock"
OF_WORKER = "worker="
_LEFT = frozenset({LOCK, _SOCKET, f"{_ID}.new", "lost+found"})
"""Files allowed without an id: those of an interrupted first start, and of a file system's root."""
_IS_ID = re.compile(r"[0-9a-f]{32}\s*")


class DataDir:
    """Raises SettingsError if the folder cannot be used, is not the bridge's, or is used by another process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disks: dict[TimerPartition, RealDisk] = {}
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _demand_ours(root)
            lock = take_lock(root / LOCK)
        except OSError as wrong:
            raise SettingsError(f"data_dir {root}: {wrong.strerror}: give a folder that may be written") from wrong
        if lock is None:
            raise SettingsError(f"data_dir {root}: another bridge runs on it: give each its own --data-dir")
        self._lock = lock
        if root.stat().st_mode & 0o007:
            text = "data_dir %s can be read by all users of this machine; run chmod 700 on it, as it holds messages"
            log.warning(text, root)

    def instance_id(self) -> str:
        """Return the instance id, made at the first start. If it cannot be written, warn and use it for this run only.

        A full disk is then handled for each partition.
        """
        found = _id_in(self._root)
        if found is None:
            found = uuid.uuid4().hex
            try:
                with closing(RealDisk(self._root)) as disk:
                    disk.start_replace(_ID, found.encode()).wait()
            except OSError as wrong:
                text = "data_dir %s: %s could not be written (%s), so the next start has another: fix the disk"
                log.warning(text, self._root, _ID, wrong.strerror)
        return found

    def disk_for(self, partition: TimerPartition) -> RealDisk:
        """Return the partition's disk, the same object each time, so that its pending syncs come before new writes."""
        if partition not in self._disks:
            (self._root / partition.topic).mkdir(mode=0o700, exist_ok=True)
            self._disks[partition] = RealDisk(self._root / partition.topic / str(partition.partition))
        return self._disks[partition]

    def let_go(self, partition: TimerPartition) -> Path:
        """Close the partition's disk and return its folder, for use by another process."""
        disk = self._disks.pop(partition, None)
        if disk is not None:
            disk.close()
        return self._root / partition.topic / str(partition.partition)

    def close(self) -> None:
        for disk in self._disks.values():
            disk.close()
        os.close(self._lock)


def take_lock(file: Path) -> int | None:
    """Lock `file` until the returned descriptor is closed. Return None if it is locked. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def worker_folder(root: Path, number: int) -> Path:
    """Return the data directory of a worker. The first one has that of a bridge without workers."""
    return root if number == 1 else root / f"{OF_WORKER}{number}"


def worker_socket(folder: Path) -> Path:
    return folder / _SOCKET


def unused_folders(root: Path, workers: int) -> list[Path]:
    """Return the data directories of workers beyond `workers`."""
    used = {worker_folder(root, number) for number in range(1, workers + 1)}
    return sorted({*root.glob(f"{OF_WORKER}*")} - used)


def _id_in(root: Path) -> str | None:
    """Return the id, or None if it is missing or empty (torn by a crash). Raises SettingsError if it is malformed."""
    path = root / _ID
    text = path.read_text(errors="replace") if path.exists() else ""
    if text and not _IS_ID.fullmatch(text):
        raise SettingsError(f"data_dir {root}: {_ID} is not the bridge's: give an empty folder, or one of its own")
    return text.strip() or None


def _demand_ours(root: Path) -> None:
    if _id_in(root) is not None:
        return
    there = {child.name: child for child in root.iterdir() if child.name not in _LEFT | {_ID}}
    is_known = (root / LOCK).exists()  # the operator deleted the id, as FencedError asks for after a copy
    strangers = sorted(name for name, child in there.items() if not (is_known and _is_known_folder(child)))
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        text = f"not the bridge's, as {shown} lies there: give an empty folder, or one of its own"
        raise SettingsError(f"data_dir {root}: {text}")


def _is_known_folder(folder: Path) -> bool:
    if not folder.is_dir() or folder.name.startswith(OF_WORKER):
        return folder.is_dir()
    return all(child.name.isdigit() and child.is_dir() for child in folder.iterdir())
