"""The cores that this process may use."""

import contextlib
import os
from pathlib import Path


def usable_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores of this process. A container may have only a part of the machine's, and memory to match."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no such limit
        quota, period = map(int, cpu_max.read_text().split())
        cores = min(cores, -(-quota // period))
    return cores
