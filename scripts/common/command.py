"""Start and end of this folder's commands: one run per folder, one line per error, no process left running.

exit codes    0 success    1 failed    2 wrong call    3 a fault was found    130 Ctrl-C    143 SIGTERM
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bridge.config.data_directory import take_lock
from bridge.errors import BridgeError, SettingsError, exit_code_of
from spark_jobs.errors import JobFailedError, UsageError

FAULT_FOUND = 3


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the description as it is written, and the default of each option."""


def parser(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=_Help)


def run(name: str, job: Callable[[], int]) -> int:
    """Run `job` and return its exit code. Both signals raise in it, so that every `with` stops what it started."""
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))
    try:
        return job()
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    except BridgeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return exit_code_of(error)
    except (JobFailedError, UsageError) as error:
        print(f"{name}: the audit failed: {error}", file=sys.stderr)
        return 1


def say(step: str) -> None:
    Console().print(f"{time.strftime('%H:%M:%S')}  {step}", highlight=False)


@contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Yield the folder, empty and locked. Its content stays afterwards. Raises SettingsError if another run has it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder.with_name(f".{folder.name}.lock"))
    if lock is None:
        raise SettingsError(f"another run is using {folder}: wait for its end, or stop it")
    with os.fdopen(lock):
        for old in folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        yield folder
