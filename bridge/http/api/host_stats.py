"""What the process takes of its machine: room on the disk, and memory."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from bridge.http.api.responses import Disk

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512


def disk_of(folder: Path) -> Disk:
    """`used_bytes` is what the folder takes; files that go while it is looked at are left out."""
    whole = shutil.disk_usage(folder)
    used = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                used += (Path(place) / name).stat().st_blocks * _BLOCK_BYTES
    return Disk(used_bytes=used, free_bytes=whole.free, total_bytes=whole.total)


def resident_bytes() -> int | None:
    """None where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return None
