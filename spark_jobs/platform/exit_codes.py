"""How a job ends as a command: what it prints is its own, how trouble is told is the same for all."""

import sys
from collections.abc import Callable

from spark_jobs.errors import AuditTroubleError, UsageError


def exit_code(name: str, job: Callable[[], int]) -> int:
    """The exit code of `job`; where it cannot go on, that is told on standard error, with the remedy."""
    try:
        return job()
    except UsageError as wrong:
        return _complain(name, wrong, 2)
    except AuditTroubleError as trouble:
        return _complain(name, trouble, 1)
    except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
        return asked.code if isinstance(asked.code, int) else 2


def _complain(name: str, wrong: Exception, code: int) -> int:
    print(f"timer-bridge {name}: {wrong}", file=sys.stderr)
    return code
