"""Exit codes and error output of jobs as commands."""

import sys
from collections.abc import Callable

from spark_jobs.errors import JobFailedError, UsageError


def exit_code(name: str, job: Callable[[], int]) -> int:
    """Run `job` and return its exit code. An error is printed on standard error, with the remedy."""
    try:
        return job()
    except UsageError as wrong:
        return _print_error(name, wrong, 2)
    except JobFailedError as trouble:
        return _print_error(name, trouble, 1)
    except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
        return asked.code if isinstance(asked.code, int) else 2


def _print_error(name: str, wrong: Exception, code: int) -> int:
    print(f"timer-bridge {name}: {wrong}", file=sys.stderr)
    return code
