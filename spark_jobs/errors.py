"""Errors of the jobs, by who must act: the caller, or the operator; and exit codes. A fault in the data is no error."""

import sys
from collections.abc import Callable
from functools import wraps


class UsageError(ValueError):
    """An argument is wrong; the message has its name and the remedy."""

    exit_code = 2


class JobFailedError(Exception):
    """The job failed: no broker, no timer topic, no Java. Proves nothing about the bridge."""

    exit_code = 1


def reason_of(wrong: Exception) -> str:
    """Return the message of our last error in Spark's text, or the first line of the text."""
    lines = [line.strip() for line in str(wrong).strip().splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("spark_jobs.errors.")]
    return ours[-1].partition(": ")[2] if ours else next(iter(lines), type(wrong).__name__)


def exit_code_of(name: str, run: Callable[[], int]) -> int:
    """Run a job and return its exit code. A UsageError or JobFailedError is printed on standard error."""
    try:
        return run()
    except (UsageError, JobFailedError) as wrong:
        print(f"timer-bridge {name}: {wrong}", file=sys.stderr)
        return wrong.exit_code
    except SystemExit as asked:  # argparse: --help or a wrong flag, already explained
        return asked.code if isinstance(asked.code, int) else 2


def command(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make the main function of a job end with an exit code, as `exit_code_of` does."""

    def decorate(main: Callable[..., int]) -> Callable[..., int]:
        return wraps(main)(lambda *args, **kwargs: exit_code_of(name, lambda: main(*args, **kwargs)))

    return decorate
