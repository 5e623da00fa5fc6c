"""Limits a process to a part of a core by the kernel's control groups, so that one machine can act as several.

with CpuSlice(0.2) as part:
    part.take(bridge.pid)          it and all its threads together run 2 ms of every 10; it has to end before the `with`
"""

import os
from pathlib import Path
from typing import Self
from uuid import uuid4

from bridge.errors import BridgeError

_CGROUP = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000
"""Short compared with a burst. With the kernel's default of 100 ms a turn could run as on a whole core."""


class CpuSlice:
    """Limit of CPU. `cores`: 0.2 is a fifth of one. Entering raises BridgeError if the kernel does not allow it."""

    def __init__(self, cores: float) -> None:
        self._quota_us = int(cores * _PERIOD_US)
        self._is_v2 = (_CGROUP / "cgroup.controllers").exists()
        self._folder = (_CGROUP if self._is_v2 else _CGROUP / "cpu") / f"timer-bench-{os.getpid()}-{uuid4().hex[:8]}"

    def __enter__(self) -> Self:
        try:
            if self._is_v2:
                (_CGROUP / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
            if self._is_v2:
                (self._folder / "cpu.max").write_text(f"{self._quota_us} {_PERIOD_US}")
            else:
                (self._folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (self._folder / "cpu.cfs_quota_us").write_text(str(self._quota_us))
        except OSError as wrong:
            raise BridgeError(f"a part of a core: {wrong}; root and cgroups are needed") from None
        return self

    def take(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def __exit__(self, *_: object) -> None:
        self._folder.rmdir()
