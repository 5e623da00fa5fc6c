"""Options of the loop. `bridge.config.settings` makes them from flags, environment and file."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.intake.target_policy import Policy
from bridge.release.target_rate_limits import TargetLimit
from schemas.headers import Rules
from schemas.receipts import Mode
from timer.options import StoreOptions as StoreOptions


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Options and limits of a turn. Topic names are the settings of the same name."""

    rules: Rules
    store: StoreOptions = field(default_factory=StoreOptions)
    rejected_topic: str = "timer.rejected"
    receipts_topic: str = "timer.receipts"
    receipts: Mode = "outcomes"
    """Which kinds of receipts are sent: `none`, `outcomes` (all but accepted and delivered) or `all`."""
    max_message_bytes: int = 1_048_576
    """Limit of the timer topic for one record. A request whose rolled copy would be larger is refused at intake."""
    journal_topic: str = "timer.journal"
    max_poll_records: int = 2000
    """Requests read in one turn."""
    max_due_records: int = 4000
    """Timers released in one transaction. A larger burst is cut at a key K."""
    max_due_bytes: int = 16 << 20
    commit_interval_ms: int = 200
    """Longest time until the progress of stored requests is committed."""
    min_free_bytes: int = 1 << 30
    """Free disk space below which intake pauses. Delivery goes on and frees space.

    Timer topics that hold less than their equal share of the stores' bytes may use half of it.
    """
    prepare_from: int = 100_000
    """Number of timers and requests to read at a start from which on they are read in the background."""
    max_wait_ms: int = 500
    """Longest wait for a message. A due timer ends it earlier."""
    clock_skew_margin_ms: int = 360_000
    """A rebuild reads the journal from this much before L. Clocks of two brokers may differ by a minute, and records of
    one transaction by its longest duration if a leader was away."""
    max_clock_skew_ms: int = 1000
    """Difference between a broker's clock and ours above which a warning is logged."""
    adopt_progress: str | None = None
    """The operator's decision if progress is lost: 'earliest', 'latest' or epoch ms."""
    era_ms: int = 0
    """Start of this process (epoch ms). It names progress that begins in it, see schemas.progress."""
    policy: Policy = field(default_factory=Policy)
    """Target topics that a request may name."""
    partitions: int | None = None
    """Number of partitions of the timer topic; `max_pending` and `targets` were divided by it. None: any number."""
    max_requests_per_s: int | None = None
    """Most requests a second of the timer topic on this instance. Above it, intake of that topic pauses."""
    max_pending: int | None = None
    """Pending timers of one partition. Above it, a request is refused."""
    max_pending_bytes: int | None = None
    """Bytes of pending bodies in the store of one partition. Above it, a request is refused."""
    max_request_bytes: int | None = None
    """Key, value and headers of a request, decompressed. A larger request is refused."""
    targets: Mapping[str, TargetLimit] = field(default_factory=dict)
    """Rate limit of one partition for a target, by pattern."""
    topics: Mapping[str, "TurnOptions"] = field(default_factory=dict)
    """Options of timer topics that have their own."""

    def of(self, timer_topic: str) -> "TurnOptions":
        """Return the options of `timer_topic`. Limits of a turn are read from the main options."""
        return self.topics.get(timer_topic, self)
