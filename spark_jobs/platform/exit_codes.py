"""Exit codes and error output of jobs as commands."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol

from spark_jobs.errors import JobFailedError, UsageError


class Main(Protocol):
    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def command(name: str) -> Callable[[Main], Main]:
    """Print an error of ours on standard error, with the remedy, and return its exit code."""

    def decorate(main: Main) -> Main:
        @wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            try:
                return main(argv)
            except (UsageError, JobFailedError) as wrong:
                print(f"timer-bridge {name}: {wrong}", file=sys.stderr)
                return wrong.exit_code
            except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
                return asked.code if isinstance(asked.code, int) else 2

        return run

    return decorate
