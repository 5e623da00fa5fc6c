"""Run `timer-bridge` with a small store, and its clock shifted by the ms in a file, which chaos changes.

python -m scripts.chaos.skewed_clock FILE run --bootstrap-servers ...
python -m scripts.chaos.skewed_clock FILE 2                              its second worker
"""

import os
import sys
from functools import cache
from unittest import mock

from bridge import process as run
from bridge.cli import app as cli
from bridge.config import settings
from bridge.workers import supervisor
from timer.options import Engine, StoreOptions


@cache
def _file() -> int:
    return os.open(sys.argv[0], os.O_RDONLY)


class SteppedClock(run.SystemClock):
    """Reads the file each time, so that a step takes effect at once."""

    def now_ms(self) -> int:
        return super().now_ms() + int(os.pread(_file(), 20, 0) or 0)


def small_store(engine: Engine, **_: int) -> StoreOptions:
    """Return options of a store that begins files and laps often, and fits on a small disk."""
    return StoreOptions(engine, tick_ms=100, slots=1000, segment_bytes=200_000)


if __name__ == "__main__":
    del sys.argv[0]
    worker = [sys.executable, "-m", "scripts.chaos.skewed_clock", sys.argv[0]]
    with (
        mock.patch.object(run, "SystemClock", SteppedClock),
        mock.patch.object(settings, "StoreOptions", small_store),
        mock.patch.object(supervisor, "COMMAND", worker),
    ):
        supervisor.main() if sys.argv[1].isdigit() else cli.main()
