"""One audit at a time in a folder: two would mix the evidence of one with the spans of the other."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.errors import AuditTroubleError


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Raises AuditTroubleError where another process is at work there, until its death, or nothing can be locked."""
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuditTroubleError(f"another audit is at work in --out {out}: let it end first") from None
        except OSError as wrong:
            raise AuditTroubleError(
                f"--out {out} cannot be locked ({wrong}): give a folder of a disk that can"
            ) from wrong
        yield
