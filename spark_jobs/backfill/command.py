"""The backfill's command line: flags to arguments."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_jobs.backfill.job import BackfillArguments
from spark_jobs.platform.flags import add_flags, resolved


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> BackfillArguments:
    """Parse the flags. Raises UsageError, or argparse's SystemExit after --help or a wrong flag."""
    parser = argparse.ArgumentParser(
        prog="timer-bridge backfill", description="Deliver what an audit found missing. Without --apply it only looks."
    )
    add_flags(parser, "timer_topic", "rejected_topic", "journal_topic", "backfilled_topic", "group")
    parser.add_argument("--audit", required=True, type=Path, metavar="DIR", help="the --out of the audit")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where it tells of each; default: --audit")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="the --out of archive, for requests that are gone")
    parser.add_argument("--apply", action="store_true", help="send; without it nothing is sent")
    parser.add_argument(
        "--although-unknown",
        action="store_true",
        help="also what its topic may have had and forgotten (cannot-tell): for those who have looked elsewhere",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="no more than these, earliest due first")
    parser.add_argument("--rate", dest="per_s", type=int, metavar="N", help="records a second; default: no limit")
    given = resolved(vars(parser.parse_args(argv)), environment)
    given["out"] = given["out"] or given["audit"]
    return BackfillArguments(**given)
