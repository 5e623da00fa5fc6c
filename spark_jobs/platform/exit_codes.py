"""Exit codes and error output of jobs as commands."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol

from spark_jobs.errors import JobFailedError, UsageError


def exit_code_of(name: str, run: Callable[[], int]) -> int:
    """Run a job and return its exit code. A UsageError or JobFailedError is printed on standard error."""
    try:
        return run()
    except (UsageError, JobFailedError) as wrong:
        print(f"timer-bridge {name}: {wrong}", file=sys.stderr)
        return wrong.exit_code
    except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
        return asked.code if isinstance(asked.code, int) else 2


class Main(Protocol):
    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def command(name: str) -> Callable[[Main], Main]:
    """Make the main function of a job end with an exit code, as `exit_code_of` does."""

    def decorate(main: Main) -> Main:
        @wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            return exit_code_of(name, lambda: main(argv))

        return run

    return decorate
