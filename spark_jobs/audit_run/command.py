"""The audit's command line: flags to arguments."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from schemas.levels import DEFAULT
from spark_jobs.audit_run.arguments import SETTLE_MS, AuditArguments, levels_ms, offsets, time_ms
from spark_jobs.platform.flags import add_flags, resolved


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> AuditArguments:
    """Parse the flags. Raises UsageError, or argparse's SystemExit after --help or a wrong flag."""
    parser = argparse.ArgumentParser(
        prog="timer-bridge audit", description="Prove from Kafka's topics what became of every timer."
    )
    add_flags(parser, "timer_topic", "rejected_topic", "receipts_topic", "lateness_topic")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--from", dest="from_ms", metavar="TIME", help="requests since then: 2026-12-24T18:00:00Z")
    parser.add_argument("--to", dest="to_ms", metavar="TIME", help="requests before then")
    parser.add_argument("--as-of", dest="as_of_ms", metavar="TIME", help="judge what was due by then; default: now")
    parser.add_argument(
        "--settle-ms", type=int, default=SETTLE_MS, help="due so lately is pending; default %(default)s"
    )
    parser.add_argument("--offsets", metavar="P:FIRST-BEHIND,...", help="requests by offset: 0:1200-9800,1:0-300")
    parser.add_argument(
        "--daily", action="store_true", help="go on where the last run in DIR ended: reads the day, not the history"
    )
    parser.add_argument(
        "--stream", action="store_true", help="go on where the last run in DIR ended, batch by batch, until SIGTERM"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="with --stream: end when what stands by now is judged"
    )
    parser.add_argument(
        "--every-s",
        type=int,
        default=AuditArguments.every_s,
        help="with --stream: seconds from batch to batch; default %(default)s",
    )
    parser.add_argument(
        "--tolerance-ms",
        type=int,
        default=AuditArguments.tolerance_ms,
        help="how long the bridge may take to read a cancel; default %(default)s",
    )
    parser.add_argument(
        "--skew-ms",
        type=int,
        default=AuditArguments.skew_ms,
        help="how far the brokers' clocks may be apart; default %(default)s",
    )
    parser.add_argument(
        "--archive", type=Path, metavar="DIR", help="the --out of archive, for requests that retention took"
    )
    parser.add_argument("--late-ms", type=int, help="delivered later than this is late; default: nothing is")
    parser.add_argument("--levels", help=f"the bridge's delay levels; default {DEFAULT!r}")
    given = resolved(vars(parser.parse_args(argv)), environment)
    for flag in ("from", "to", "as_of"):
        text = given[f"{flag}_ms"]
        given[f"{flag}_ms"] = None if text is None else time_ms(f"--{flag.replace('_', '-')}", text)
    given["levels_ms"] = levels_ms(given.pop("levels"))
    given["offsets"] = offsets(given["offsets"]) if given["offsets"] is not None else None
    return AuditArguments(**given)
