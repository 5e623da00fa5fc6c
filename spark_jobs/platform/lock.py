"""Lock of an output folder: two audits at once would mix the evidence of one with the spans of the other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.errors import JobFailedError


@contextmanager
def folder_lock(out: Path) -> Iterator[None]:
    """Lock the folder. Raises JobFailedError if another process holds the lock, or the disk has no locks."""
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JobFailedError(f"another audit is at work in --out {out}: let it end first") from None
        except OSError as wrong:
            raise JobFailedError(f"--out {out} cannot be locked ({wrong}): give a folder of a disk that can") from wrong
        yield
