"""Response models of the API. Times are epoch ms. Partitions are `topic/partition`, records `topic/partition/offset`.

Answers about all instances list as `missing` the partitions that no instance answered for, with the reason.
"""

from pydantic import BaseModel, Field

from bridge.observe.recent_traffic import Counts, Traffic
from bridge.observe.status import Phase
from bridge.query.search import Content, Header, Listing, NamedTimer, TimerDetail
from bridge.query.summary import Pending
from schemas.receipts import Receipt


class Refused(BaseModel):
    """Any status from 400 on: what is wrong, and what to do."""

    reason: str


class Missing(BaseModel):
    """A partition that is not in the answer."""

    partition: str
    why: str


class Disk(BaseModel):
    """Usage of the data directory."""

    used_bytes: int
    free_bytes: int
    total_bytes: int


class PartitionState(BaseModel):
    phase: Phase
    reason: str = ""
    detail: str = ""
    lag: int | None = Field(default=None, description="Offsets of the timer topic that are not read yet.")
    pending: int | None = Field(default=None, description="Null while it recovers.")


class TargetTopics(BaseModel):
    paused_topics: list[str] = Field(description="Paused target topics, in any partition.")
    unavailable_topics: dict[str, int] = Field(
        description="Target topics that take no records, each with the begin of that (epoch ms)."
    )


class Instance(TargetTopics):
    """One bridge instance, described by itself."""

    address: str
    version: str
    at_ms: int
    not_ready: str = Field(description="Empty if it is ready, else the reason.")
    partitions: dict[str, PartitionState]
    traffic: Traffic
    disk: Disk
    resident_bytes: int | None
    standby_age_s: dict[str, float] = Field(
        default_factory=dict, description="How long ago each standby had all that was committed."
    )


class Owned(PartitionState):
    partition: str
    owner: str = Field(description="Address of the owner.")


class Lateness(Counts):
    """Traffic of 10 s or a minute, and the lateness that half and 99 % of its timers did not exceed."""

    p50_ms: int | None = Field(description="Null: all waited for a paused or rate-limited target.")
    p99_ms: int | None


class Overview(TargetTopics):
    """The whole group."""

    at_ms: int
    pending: int
    late_p50_ms: int | None = Field(description="Over the last 5 minutes; null: nothing was delivered.")
    late_p99_ms: int | None
    lateness: list[Lateness] = Field(description="The last 5 minutes; 10 s without deliveries are left out.")
    hour: list[Lateness] = Field(description="The last hour, by the minute.")
    in_per_s: float = Field(description="Requests read, over the last minute.")
    out_per_s: float = Field(description="Timers delivered, over the last minute.")
    partitions: list[Owned]
    instances: list[Instance]
    missing: list[Missing]


class GroupPending(Pending):
    recovering: list[str] = Field(default_factory=list, exclude=True)  # they are in `missing`
    next_due_ms: int | None = None
    missing: list[Missing] = Field(default_factory=list)


class GroupListing(Listing):
    missing: list[Missing] = Field(default_factory=list)


class GroupFound(BaseModel):
    """At most one timer for each partition."""

    at_ms: int
    timers: list[TimerDetail]
    partitions: list[str] = Field(description="Partitions that the answer covers.")
    is_local: bool = False
    missing: list[Missing] = Field(default_factory=list)


class Acted(BaseModel):
    """`outcomes`: receipts by kind, if they arrived in time."""

    action: str
    sent: list[str] = Field(description="The requests on the timer topic.")
    outcomes: dict[str, int]
    unanswered: int = Field(description="Requests without a receipt yet; with receipts = none, all of them.")


class LatestReceipts(BaseModel):
    receipts: list[Receipt] = Field(description="By time. The setting `receipts` says which there are.")
    has_older: bool = Field(description="Older receipts were not read.")


class Counted(BaseModel):
    """The count of a selection. Send `token` with the action."""

    matching: int
    taken: int = Field(
        description="Number of timers that the token covers, the first by due time: the action is for these."
    )
    first: list[str] = Field(description="The first ones by id, or by position if they have none.")
    samples: list[NamedTimer] = Field(description="The first ones.")
    token: str
    after: str | None = Field(None, description="To count the next ones; null: there are none.")
    missing: list[Missing]


class ActedOnSelection(Acted):
    left: int = Field(description="Timers that match but are not in the token: they came later, or were too many.")


class Rejected(BaseModel):
    """A record of the rejected topic."""

    parked: str = Field(description="Its position on the rejected topic.")
    parked_ms: int
    code: str
    detail: str
    origin: str = Field(description="The request, on the timer topic.")
    topic: str = Field(description="The target topic; empty if the request names none.")
    id: str | None = None
    id_base64: str | None = None
    bytes: int
    may_redrive: bool = Field(
        description="False: its contents are missing, its origin is not on a timer topic, or it was sent again already."
    )
    is_redriven: bool


class RejectedRecord(Rejected):
    """With the content of the request; values are cut at 64 KiB."""

    key: Content | None
    headers: list[Header]
    value: Content | None


class RejectedRecords(BaseModel):
    """The latest first."""

    records: list[Rejected]
    looked_at: int
    has_older: bool = Field(description="Older ones were not read; `timer-bridge redrive` reads all.")


class Redriven(BaseModel):
    sent: int
    refused: dict[str, str] = Field(description="Records that the timer topic does not take, and why.")
    not_sent: int = Field(description="Gone by then, sent before, or unfit to be sent again.")
