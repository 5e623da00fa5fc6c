"""Arguments of an audit, parsed and checked before Spark starts."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from kafka_timer.control import DEFAULT_TOPIC as CONTROL_TOPIC
from kafka_timer.durations import parse_duration_ms
from kafka_timer.headers import MAX_DELAY_MS, TRACE_ID
from kafka_timer.instants import parse_instant_ms
from kafka_timer.levels import DEFAULT, DEFAULT_MS, parse_levels
from schemas.profiles import DEFAULT_PROFILES
from spark_jobs.audit_rules.verdicts import AuditLimits
from spark_jobs.audit_run import audit_folder, waivers
from spark_jobs.audit_run.positions import demand_own, read_positions
from spark_jobs.errors import UsageError
from spark_jobs.platform import flags
from spark_jobs.platform.files import Location
from spark_jobs.platform.flags import JobArguments, Option, Profiles, Setting, location, number, setting, switch

EVERYTHING = ("*",)
"""Patterns of target topics that select none to be read beside those that requests name."""
_HELD = {
    "older": "an audit by day or batch of an older version, which this one cannot continue: give a new folder",
    "daily": "a daily audit: continue it with --daily, or give another folder",
    "stream": "a streaming audit: continue it with --stream, or give another folder",
}


def parse_offsets(text: str) -> dict[int, tuple[int, int]]:
    """Parse "0:1200-9800,1:0-300", partition:first-end. Raises ValueError with the wrong part."""
    found = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10}):([0-9]{1,18})-([0-9]{1,18})\s*", part)
        if match is None or int(match[2]) >= int(match[3]):
            raise ValueError(f"{part!r}: give partition:first-end, such as 0:1200-9800")
        found[int(match[1])] = (int(match[2]), int(match[3]))
    return found


def parse_patterns(text: str) -> tuple[str, ...]:
    """Parse "orders.*,bills". Raises ValueError with the wrong pattern."""
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [pattern for pattern in patterns if not re.fullmatch(r"[A-Za-z0-9._*?-]+", pattern)]
    if wrong:
        raise ValueError(f"{wrong[0]!r}: give names of topics, with * for any characters and ? for one")
    return patterns


def parse_table(text: str) -> str:
    """Return the name of a table, with its catalog. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2,}", text):
        raise ValueError(f"{text!r}: give catalog.database.table, such as lake.audit.requests")
    return text


def _patterns(help_: str) -> Option:
    return setting(help_, "PATTERN,...", parse=parse_patterns)


def _time(flag: str, help_: str) -> Option:
    return Option(flag, parse=parse_instant_ms, metavar="TIME", help=help_)


@dataclass(frozen=True, kw_only=True)
class AuditArguments(JobArguments):
    """Times are epoch ms. Raises UsageError with the argument's name."""

    out: Annotated[Location, location()]
    timer_topic: Annotated[
        str, setting("may repeat; default: each timer topic of the settings, else %(default)s", action="append")
    ] = "timer.requests"
    rejected_topic: Setting = "timer.rejected"
    receipts_topic: Setting = "timer.receipts"
    control_topic: Setting = CONTROL_TOPIC
    from_ms: Annotated[int | None, _time("--from", "requests since then: 2026-12-24T18:00:00Z")] = None
    to_ms: Annotated[int | None, _time("--to", "requests before then")] = None
    as_of_ms: Annotated[int | None, _time("--as-of", "judge timers that were due by then; default: now")] = None
    settle_ms: Annotated[int, number("pending if due in these last ms; default %(default)s")] = AuditLimits.settle_ms
    offsets: Annotated[
        Mapping[int, tuple[int, int]] | None,
        Option(parse=parse_offsets, metavar="P:FIRST-END,...", help="requests by offset: 0:1200-9800,1:0-300"),
    ] = None
    daily: Annotated[bool, switch("go on where the last run in DIR ended: reads the day, not the history")] = False
    stream: Annotated[bool, switch("go on where the last run in DIR ended, batch by batch, until SIGTERM")] = False
    available_now: Annotated[bool, switch("with --stream: judge what is there now, then end")] = False
    every_s: Annotated[int, number("with --stream: seconds from batch to batch; default %(default)s")] = 10
    tolerance_ms: Annotated[int, number("how long the bridge may take to read a cancel; default %(default)s")] = 10_000
    skew_ms: Annotated[int, number("how far the brokers' clocks may be apart; default %(default)s")] = 1_000
    hanging_ms: Annotated[int, number("exit code 1 if a transaction is open for longer; default %(default)s")] = 900_000
    late_ms: Annotated[int | None, number("a delivery later than this is late; default: none is")] = None
    archive: Annotated[Location | None, location("the --out of archive, for requests that retention deleted")] = None
    levels_ms: Annotated[
        tuple[int, ...], setting(f"delay levels; default {DEFAULT!r}", "LEVELS", "--levels", parse_levels)
    ] = DEFAULT_MS
    profiles: Profiles = DEFAULT_PROFILES
    trace_header: Annotated[
        str, Option(metavar="NAME", help="a foreign header with the sender's trace id; '': none; default %(default)s")
    ] = TRACE_ID
    metrics_file: Annotated[
        Path | None, Option(type=Path, metavar="FILE", help="write metrics for node_exporter's textfile collector")
    ] = None
    pushgateway: Annotated[str | None, Option(metavar="HOST:PORT", help="push metrics to a Pushgateway")] = None
    allow_targets: Annotated[tuple[str, ...], _patterns("topics to read even if no request names them")] = EVERYTHING
    deny_targets: Annotated[tuple[str, ...], _patterns("exceptions from --allow-targets")] = ()
    max_delay_ms: Annotated[
        int,
        setting(
            "longest delay: a request due later has to be refused; default 366d",
            "DURATION",
            "--max-delay",
            parse_duration_ms,
        ),
    ] = MAX_DELAY_MS
    delivery: Annotated[None, flags.removed("take it out, of the bridge's config too: delivery is exactly once")] = None
    lateness_topic: Annotated[None, flags.removed("read the table `minutes` in --out")] = None
    max_refused_percent: Annotated[
        int, number("exit code 1 if more of the requests are refused with codes that cannot be checked; default 10")
    ] = 10
    waivers: Annotated[
        Path | None, Option(type=Path, metavar="FILE", help="known faults: CSV or Parquet of origin, reason, until")
    ] = None
    table: Annotated[
        str | None,
        Option(parse=parse_table, metavar="CATALOG.DB.NAME", help="merge the judged requests into this Iceberg table"),
    ] = None

    def __post_init__(self) -> None:
        for name in ("settle_ms", "tolerance_ms", "skew_ms", "hanging_ms", "late_ms"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"--{name.replace('_', '-')} is {getattr(self, name)}: give 0 or more")
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise UsageError("--from is not before --to: nothing lies between")
        if self.offsets is not None and (self.from_ms is not None or self.to_ms is not None):
            raise UsageError("--offsets cannot be combined with --from or --to: give one of them")
        if self.archive is not None and (self.daily or self.offsets is not None):
            raise UsageError("--archive cannot be combined with --daily or --offsets: use --from and --to")
        if self.daily and (self.to_ms is not None or self.offsets is not None):
            raise UsageError(
                "--daily continues after its last run: leave out --to and --offsets; --as-of ends a run earlier"
            )
        self._demand_fitting_stream()
        if self.waivers is not None:
            list(waivers.read(self.waivers))
        if self.as_of_ms is not None and self.as_of_ms > time.time() * 1000:
            raise UsageError("--as-of is in the future: timers due until then cannot be judged yet")

    def limits(self, as_of_ms: int) -> AuditLimits:
        flags_of_limits = {each.name: getattr(self, each.name) for each in fields(AuditLimits)}
        return AuditLimits(**flags_of_limits | {"as_of_ms": as_of_ms})

    def _demand_fitting_stream(self) -> None:
        given = {"--daily": self.daily, "--to": self.to_ms, "--offsets": self.offsets, "--as-of": self.as_of_ms}
        beside = [name for name, value in {**given, "--archive": self.archive}.items() if value not in (None, False)]
        if self.stream and beside:
            raise UsageError(f"--stream continues after its last batch: leave out {', '.join(beside)}")
        if self.available_now and not self.stream:
            raise UsageError("--available-now ends a stream: add --stream")
        if self.every_s < 1:
            raise UsageError(f"--every-s is {self.every_s}: give 1 or more")

    def demand_fitting_folder(self) -> None:
        """Raise UsageError if `out` holds another kind of audit, or one of another topic. Needs the Spark session."""
        kind, given = audit_folder.kind_of(self.out), "stream" if self.stream else "daily" if self.daily else None
        if kind is not None and kind != given:
            raise UsageError(f"--out {self.out} holds {_HELD[kind]}")
        for part in audit_folder.done_parts(self.out)[-1:]:
            demand_own(read_positions(self.out, part), self.timer_topic, f"--out {self.out}")


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> list[AuditArguments]:
    """Parse the flags: an audit for each timer topic. Several have a folder and a file of metrics each."""
    text = "Prove from Kafka's topics what became of every timer."
    each = flags.JobParser("audit", text, AuditArguments, "--out audit").resolved_each(argv, environment)
    audits = [AuditArguments(**given) for given in each.values()]
    return audits if len(audits) == 1 else [_one_of_several(audit) for audit in audits]


def _one_of_several(audit: AuditArguments) -> AuditArguments:
    for name, given in {"--offsets": audit.offsets, "--archive": audit.archive}.items():
        if given is not None:
            raise UsageError(f"{name} takes one timer topic, and the settings have several: give --timer-topic")
    file = audit.metrics_file
    named = None if file is None else file.with_stem(f"{file.stem}-{audit.timer_topic}")
    return replace(audit, out=audit.out / audit.timer_topic, metrics_file=named)


def iso(at_ms: int) -> str:
    """Return 2026-12-24 18:00:00.000 UTC; "... ms" if no calendar date fits."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
