"""Marks of what was sent again, on one compacted topic: what is marked is never sent a second time.

    key                             value                                             partition
    redrive/timer.rejected/3/17     {"v": 1, "parked": "timer.rejected/3/17", ...}    0
    import/NAME/part-7.parquet      {"v": 1, "rows": 4000}                            0
    import/NAME/part-7.parquet/41   {"v": 1, "failed": "MSG_SIZE_TOO_LARGE"}          0
    backfill/timer.requests/5/12    {"v": 1, "at_ms": ..., "target": "orders"}        1 + 5 % (partitions - 1)

A mark is sent in the transaction of what it marks. Each job reads its own partition, so a large backfill delays no
other job. A topic of one partition has all marks in it.

Up to 0.2.0 each job had a topic of its own, and its keys had no first part. These topics are still read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

TOPIC = "timer.resent"
PARTITIONS = 9
"""Partitions of a new topic: backfills share all but the first."""
CONFIG = {"cleanup.policy": "compact"}


class Job(StrEnum):
    REDRIVE = "redrive"
    BACKFILL = "backfill"
    IMPORT = "import"


FORMER_TOPICS = {Job.REDRIVE: "timer.redriven", Job.BACKFILL: "timer.backfilled", Job.IMPORT: "timer.imported"}


class Source(NamedTuple):
    """A partition with marks of a job. prefix: what the keys of its marks begin with."""

    topic: str
    partition: int
    prefix: bytes


@dataclass(frozen=True, slots=True)
class MarkTopics:
    """The topic of a job's marks, and the one on which former versions have marked."""

    job: Job
    topic: str
    former: str

    def key(self, name: str) -> bytes:
        return f"{self.job}/{name}".encode()

    def partition(self, partitions: int, of: int = 0) -> int:
        """Return the partition of marks about partition `of` of the timer topic. partitions: those of the topic."""
        return 1 + of % (partitions - 1) if self.job is Job.BACKFILL and partitions > 1 else 0

    def sources(self, partitions: Mapping[str, int | None], of: int = 0) -> list[Source]:
        """Return where the marks about partition `of` are. partitions: number by topic, of those that exist."""
        found = [Source(self.former, number, b"") for number in range(partitions.get(self.former) or 0)]
        if count := partitions.get(self.topic):
            found.append(Source(self.topic, self.partition(count, of), f"{self.job}/".encode()))
        return found


def policy_fault(topic: str, policy: str) -> str | None:
    """Return the fault of a topic of marks that is not compacted, with its remedy; None: there is none."""
    if policy == "compact":
        return None
    return f"{topic}: cleanup.policy is {policy}: set it to compact, or what was sent again is sent twice"
