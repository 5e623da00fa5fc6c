"""What the loop has to know, checked once. `bridge.config.settings` makes it from flags, environment and file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.intake.target_policy import Policy
from bridge.release.target_rate_limits import TargetLimit
from schemas.headers import Rules
from schemas.receipts import Mode
from timer.options import StoreOptions as StoreOptions

Delivery = Literal["exactly-once", "at-least-once"]
"""How the sink publishes: all in one transaction, or deliveries acknowledged first, then the rest in a transaction."""


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Limits of one turn. Names of topics are the settings of the same name."""

    rules: Rules
    store: StoreOptions = field(default_factory=StoreOptions)
    rejected_topic: str = "timer.rejected"
    receipts_topic: str = "timer.receipts"
    receipts: Mode = "outcomes"
    """Which kinds of receipts are sent: `none`, `outcomes` (all but accepted and delivered) or `all`."""
    max_message_bytes: int = 1_048_576
    """What the timer topic takes; a request whose rolled copy would not fit is refused when it comes."""
    journal_topic: str = "timer.journal"
    max_poll_records: int = 2000
    """Requests read in one turn."""
    max_due_records: int = 4000
    """Timers released in one transaction; a burst is cut at a full position K."""
    max_due_bytes: int = 16 << 20
    commit_interval_ms: int = 200
    """How long requests that were only stored may wait for their progress to be committed."""
    min_free_bytes: int = 1 << 30
    """Room on the disk below which intake pauses; delivery goes on and gives room back.

    Timer topics that hold less than their equal share of the stores' bytes may use half of it.
    """
    prepare_from: int = 100_000
    """From so many timers and requests to be looked through at a start on, this is done beside the turns."""
    max_wait_ms: int = 500
    """The longest wait for a message; a due timer ends it earlier."""
    clock_skew_margin_ms: int = 360_000
    """A rebuild reads the journal from this much before L: clocks of two brokers may stand a minute apart, and records
    of one transaction as long as the longest one takes, where one of their leaders was away."""
    max_clock_skew_ms: int = 1000
    """How far a broker's clock may stand from ours without a word."""
    adopt_progress: str | None = None
    """The operator's word where progress is gone: 'earliest', 'latest' or epoch ms."""
    era_ms: int = 0
    """When this process began: it names progress that begins in it, see schemas.progress."""
    policy: Policy = field(default_factory=Policy)
    """Which real topics a request may name."""
    partitions: int | None = None
    """Of the timer topic, as `max_pending` and `targets` were shared out to them; None: any number."""
    max_requests_per_s: int | None = None
    """Of the timer topic, on this instance: beyond it, intake of that topic pauses."""
    max_pending: int | None = None
    """Timers of one shard: beyond it, a request is refused."""
    max_pending_bytes: int | None = None
    """Bytes of the pending timers' bodies in the store of one shard: beyond it, a request is refused."""
    max_request_bytes: int | None = None
    """Key, value and headers of a request, decompressed: a larger one is refused."""
    targets: Mapping[str, TargetLimit] = field(default_factory=dict)
    """By pattern: how many timers of one shard may leave for a target."""
    topics: Mapping[str, "TurnOptions"] = field(default_factory=dict)
    """Of timer topics that have their own; all others have these."""

    def of(self, timer_topic: str) -> "TurnOptions":
        """What holds for the shards of `timer_topic`; the limits of a turn are not looked up there."""
        return self.topics.get(timer_topic, self)
