"""The data directory: 0700, one process at a time, one folder a shard, and the instance id that fences a twin.

timer-data/lock   timer-data/instance-id   timer-data/<timer topic>/<partition>/...
"""

import fcntl
import os
import uuid
from pathlib import Path

from bridge.errors import SettingsError
from schemas.origin import Shard
from timer.disk import RealDisk


class DataDir:
    """Raises SettingsError where the folder cannot be used, or is used by another process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disks: dict[Shard, RealDisk] = {}
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as wrong:
            raise SettingsError(f"data_dir {root}: {wrong.strerror}: give a folder that may be written") from wrong
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as wrong:
            os.close(self._lock)
            raise SettingsError(f"data_dir {root}: another bridge runs on it: give each its own --data-dir") from wrong

    def instance_id(self) -> str:
        """Made at the first start, kept from then on."""
        path = self._root / "instance-id"
        if not path.exists():
            path.write_text(uuid.uuid4().hex)
        return path.read_text().strip()

    def disk_for(self, shard: Shard) -> RealDisk:
        """The same one each time, so that what it still syncs for a former opening comes before what is begun now."""
        if shard not in self._disks:
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
