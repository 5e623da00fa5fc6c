"""The data directory: 0700, one process at a time, one folder a shard, and the instance id that fences a twin.

timer-data/lock   timer-data/instance-id   timer-data/<timer topic>/<partition>/...

A folder is the bridge's if an instance id stands in it, or nothing but what a bridge leaves. Others are left alone.
"""

import fcntl
import logging
import os
import re
import uuid
from pathlib import Path

from bridge.errors import SettingsError
from schemas.origin import Shard
from timer.files.disk import RealDisk

log = logging.getLogger(__name__)

LOCK, _ID = "lock", "instance-id"
_LEFT = frozenset({LOCK, f"{_ID}.new", "lost+found"})
"""May stand beside no id: a start that came no further, and what a file system keeps at its root."""
_IS_ID = re.compile(r"[0-9a-f]{32}\s*")


class DataDir:
    """Raises SettingsError where the folder cannot be used, is not the bridge's, or is used by another process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disks: dict[Shard, RealDisk] = {}
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _demand_ours(root)
            self._lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as wrong:
            raise SettingsError(f"data_dir {root}: {wrong.strerror}: give a folder that may be written") from wrong
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as wrong:
            os.close(self._lock)
            raise SettingsError(f"data_dir {root}: another bridge runs on it: give each its own --data-dir") from wrong
        if root.stat().st_mode & 0o007:
            log.warning("data_dir %s is open to everybody on this machine, and messages lie there: chmod 700 it", root)

    def instance_id(self) -> str:
        """Made at the first start, kept from then on; where it cannot be written, this life's alone, with a warning.

        So a full disk is waited for where it matters, shard by shard.
        """
        found = _id_in(self._root)
        if found is None:
            found = uuid.uuid4().hex
            disk = RealDisk(self._root)
            try:
                disk.start_replace(_ID, found.encode()).wait()
            except OSError as wrong:
                told = "data_dir %s: %s could not be written (%s), so the next start has another: mend the disk"
                log.warning(told, self._root, _ID, wrong.strerror)
            finally:
                disk.close()
        return found

    def disk_for(self, shard: Shard) -> RealDisk:
        """The same one each time, so that what it still syncs for a former opening comes before what is begun now."""
        if shard not in self._disks:
            (self._root / shard.topic).mkdir(mode=0o700, exist_ok=True)
            self._disks[shard] = RealDisk(self._folder_of(shard))
        return self._disks[shard]

    def _folder_of(self, shard: Shard) -> Path:
        return self._root / shard.topic / str(shard.partition)

    def let_go(self, shard: Shard) -> Path:
        """The shard's folder, for another process: nothing of ours is on its way there, until it is asked for again."""
        disk = self._disks.pop(shard, None)
        if disk is not None:
            disk.close()
        return self._folder_of(shard)

    def close(self) -> None:
        for disk in self._disks.values():
            disk.close()
        os.close(self._lock)


def _id_in(root: Path) -> str | None:
    """None where there is none; an empty one was torn by a crash. Raises SettingsError where it is something else."""
    path = root / _ID
    text = path.read_text(errors="replace") if path.exists() else ""
    if text and not _IS_ID.fullmatch(text):
        raise SettingsError(f"data_dir {root}: {_ID} is not the bridge's: give an empty folder, or one of its own")
    return text.strip() or None


def _demand_ours(root: Path) -> None:
    if _id_in(root) is not None:
        return
    there = {child.name: child for child in root.iterdir() if child.name not in _LEFT | {_ID}}
    is_known = (root / LOCK).exists()  # somebody took the id away, as a bridge asks for where the folder is a copy
    strangers = sorted(name for name, child in there.items() if not (is_known and _is_topic(child)))
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise SettingsError(
            f"data_dir {root}: not the bridge's, as {shown} lies there: give an empty folder, or one of its own"
        )


def _is_topic(folder: Path) -> bool:
    return folder.is_dir() and all(child.name.isdigit() and child.is_dir() for child in folder.iterdir())
