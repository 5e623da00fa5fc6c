"""Disk space and memory that the process uses."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from bridge.config.data_directory import OF_WORKER
from bridge.http.api.responses import Disk

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512


def disk_of(folder: Path) -> Disk:
    """Return the usage of `folder` and its disk; a file that is removed meanwhile does not count."""
    whole = shutil.disk_usage(folder)
    used = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(OF_WORKER)]  # others of our workers
        for name in names:
            with suppress(OSError):
                used += (Path(place) / name).stat().st_blocks * _BLOCK_BYTES
    return Disk(used_bytes=used, free_bytes=whole.free, total_bytes=whole.total)


def resident_bytes() -> int | None:
    """Return the resident memory, None on a system without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return None
