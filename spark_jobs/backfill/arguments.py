"""Arguments of a backfill, parsed and checked before Spark starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas import resent
from schemas.profiles import DEFAULT_PROFILES
from schemas.resent import Job, MarkTopics
from spark_jobs.archive import RECORDS
from spark_jobs.audit_run.arguments import parse_patterns
from spark_jobs.audit_run.audit_folder import done_parts
from spark_jobs.audit_run.positions import demand_own, read_positions
from spark_jobs.errors import UsageError
from spark_jobs.platform import files, flags
from spark_jobs.platform.files import Location
from spark_jobs.platform.flags import FormerTopic, JobArguments, Option, Profiles, Setting, location, number, switch


def parse_topics(text: str) -> tuple[str, ...]:
    """Parse "orders,bills". Raises ValueError for a pattern: each topic has to be looked at."""
    topics = parse_patterns(text)
    if any(letter in text for letter in "*?"):
        raise ValueError(f"{text!r} is a pattern: give the name of each topic")
    return topics


@dataclass(frozen=True, kw_only=True)
class BackfillArguments(JobArguments):
    """Raises UsageError with the argument's name."""

    audit: Annotated[Location, location("the --out of the audit")]
    out: Annotated[Location, location("for the outcome of each; default: --audit", required=False)]
    rejected_topic: Setting = "timer.rejected"
    journal_topic: Setting = "timer.journal"
    resent_topic: Setting = resent.TOPIC
    backfilled_topic: FormerTopic = resent.FORMER_TOPICS[Job.BACKFILL]
    group: Setting = "timer-bridge"
    profiles: Profiles = DEFAULT_PROFILES
    archive: Annotated[Location | None, location("the --out of archive, for requests that are gone")] = None
    apply: Annotated[bool, switch("send; without it nothing is sent")] = False
    although_unknown: Annotated[
        tuple[str, ...],
        Option(
            parse=parse_topics,
            metavar="TOPIC,...",
            help="also send to these targets what they may have had (cannot-tell); first check elsewhere",
        ),
    ] = ()
    limit: Annotated[int | None, number("send at most N, earliest due first", metavar="N")] = None
    per_s: Annotated[
        int | None, number("records a second, an equal share for each partition that lacks some", "--rate", metavar="N")
    ] = None

    def __post_init__(self) -> None:
        for flag, value in {"--limit": self.limit, "--rate": self.per_s}.items():
            if value is not None and value < 1:
                raise UsageError(f"{flag} is {value}: give 1 or more")

    @property
    def marks(self) -> MarkTopics:
        return MarkTopics(Job.BACKFILL, self.resent_topic, self.backfilled_topic)

    def demand_fitting_folders(self) -> None:
        """Raise UsageError if `audit` or `archive` holds something else. Needs the Spark session."""
        positions = read_positions(self.audit, next(reversed(done_parts(self.audit)), None))
        if not positions:
            what = "holds no audit of this version that has ended"
            raise UsageError(f"--audit {self.audit} {what}: give the --out of `timer-bridge audit`, or run it again")
        demand_own(positions, self.timer_topic, f"--audit {self.audit}")
        if self.archive is not None and not files.exists(self.archive / RECORDS):
            raise UsageError(f"--archive {self.archive} holds no archive: give the --out of `timer-bridge archive`")


def parse(argv: Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> BackfillArguments:
    description = "Deliver what an audit found missing. Without --apply, only report."
    parser = flags.JobParser("backfill", description, BackfillArguments, "--audit audit --apply")
    given = parser.resolved(argv, environment)
    return BackfillArguments(**{"out": given["audit"], **given})
