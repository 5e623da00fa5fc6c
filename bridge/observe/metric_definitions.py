"""Define every metric of the bridge: source, name, meaning, and what an operator should do.

    Metric(*_counter("requests", "topic", read), tells, do)     timer_bridge_requests_total{topic="timer.requests"}

bridge.observe.prometheus writes `/metrics` by this table, scripts.release.metric_docs docs/metrics.md. Times are in s,
as Prometheus wants it. Every label has a bounded set of values: names of topics that senders choose end in `other`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from bridge.observe.metric_types import Histogram, LabelledSums, Labels
from bridge.observe.metrics import Metrics
from bridge.observe.metrics_snapshot import MetricsSnapshot, ShardSeen
from bridge.observe.status import Status
from schemas.origin import Shard

PREFIX = "timer_bridge_"
Kind = Literal["counter", "gauge", "histogram"]
Samples = Iterable[tuple[Labels, float]]
T = TypeVar("T")


class AlertLimits(NamedTuple):
    """Settings that alerts compare with."""

    version: str
    min_free_bytes: int
    max_clock_skew_ms: int


class Facts(NamedTuple):
    """Sources of the metrics."""

    metrics: Metrics
    status: Status
    seen: MetricsSnapshot
    limits: AlertLimits


Source: TypeAlias = tuple[str, Kind, Labels, Callable[[Facts], Samples | Histogram]]
"""The first four fields of a Metric."""


class Metric(NamedTuple):
    """`name` is without the `_total` that a counter ends in outside."""

    name: str
    kind: Kind
    labels: Labels
    read: Callable[[Facts], Samples | Histogram]
    tells: str
    do: str = "Nothing."

    @property
    def full_name(self) -> str:
        return self.name + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        return next((unit for unit in ("timestamp_seconds", "seconds", "bytes") if self.name.endswith(unit)), "")


class Chapter:
    """Metrics of one topic, shown under one heading."""

    def __init__(self, title: str, *metrics: Metric) -> None:
        self.title = title
        self.metrics = metrics


# -- sources


def _counter(name: str, label: str, choose: Callable[[Metrics], LabelledSums]) -> Source:
    return PREFIX + name, "counter", (label,), lambda facts: choose(facts.metrics).read().items()


def _total(name: str, choose: Callable[[Metrics], LabelledSums]) -> Source:
    return PREFIX + name, "counter", (), lambda facts: [((), sum(choose(facts.metrics).read().values()))]


def _histogram(name: str, choose: Callable[[Metrics], Histogram]) -> Source:
    return PREFIX + name, "histogram", (), lambda facts: choose(facts.metrics)


def _gauge(name: str, labels: Labels, read: Callable[[Facts], Samples]) -> Source:
    return PREFIX + name, "gauge", labels, read


def _one(name: str, choose: Callable[[Facts], float | None], kind: Kind = "gauge") -> Source:
    """If `choose` returns None, there is no sample."""

    def read(facts: Facts) -> Samples:
        value = choose(facts)
        return [] if value is None else [((), value)]

    return PREFIX + name, kind, (), read


def _of_topics(name: str, label: str, choose: Callable[[Facts], Mapping[str, float]]) -> Source:
    return _gauge(name, (label,), lambda facts: [((topic,), value) for topic, value in sorted(choose(facts).items())])


def _of_shards(name: str, choose: Callable[[Facts], Mapping[Shard, float]]) -> Source:
    """Leave out shards that this instance does not own."""

    def read(facts: Facts) -> Iterator[tuple[Labels, float]]:
        ours = facts.status.shards()
        for shard, value in sorted(choose(facts).items()):
            if shard in ours:
                yield (shard.topic, str(shard.partition)), value

    return _gauge(name, ("topic", "partition"), read)


def _seen(name: str, choose: Callable[[ShardSeen], float]) -> Source:
    return _of_shards(name, lambda facts: {shard: choose(each) for shard, each in facts.seen.shards.items()})


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _each_in_seconds(ms: Mapping[T, int]) -> dict[T, float]:
    return {key: value / 1000 for key, value in ms.items()}


def _phases(facts: Facts) -> Samples:
    found = Counter(each.phase for each in facts.status.shards().values())
    return [((phase,), found[phase]) for phase in ("running", "recovering", "paused")]


def _paused(facts: Facts) -> Samples:
    found = Counter(facts.metrics.paused.values())
    return [((reason,), found[reason]) for (reason,) in facts.metrics.pauses.read()]


def _retention(facts: Facts) -> dict[str, float]:
    return {topic: math.inf if ms < 0 else ms / 1000 for topic, ms in facts.metrics.retention_ms.items()}


def _hanging(facts: Facts) -> dict[Shard, float]:
    now, looked_at = facts.metrics.hanging, facts.metrics.ends
    return {shard: (now[shard].seen_ms - now[shard].since_ms) / 1000 if shard in now else 0 for shard in looked_at}


# -- what there is

LOOK = "As of the last look, every 15 s."

TRAFFIC = Chapter(
    "Traffic",
    Metric(
        *_counter("requests", "topic", lambda metrics: metrics.requests),
        "Requests taken in from a timer topic: timers, cancels, those refused; not the bridge's own copies.",
        "Compare with what is sent: where it stays behind, see the lag and the pauses.",
    ),
    Metric(
        *_counter("deliveries", "target", lambda metrics: metrics.deliveries),
        "Timers delivered, by real topic. The first 100 real topics of a process have a label, all others `other`.",
    ),
    Metric(
        *_counter("refused", "code", lambda metrics: metrics.refused),
        "Requests that lie on the rejected topic as they were never timers.",
        "The sender's to mend: docs/headers.md tells by the code what.",
    ),
    Metric(
        *_counter("parked", "code", lambda metrics: metrics.parked),
        "Timers that were due, but that their real topic does not take: they lie on the rejected topic.",
        "Mend the real topic (docs/headers.md), then `timer-bridge redrive`.",
    ),
    Metric(
        *_counter("receipts", "kind", lambda metrics: metrics.receipts),
        "Receipts sent, by kind. Which are sent is the setting `receipts`.",
        "Many `too-late` or `not-found`: cancels come late, or meet another partition than their timers.",
    ),
    Metric(
        *_histogram("lateness_seconds", lambda metrics: metrics.lateness),
        "How much later than due timers were released (`timer-released-ms` less `timer-deliver-ms`); those that"
        " waited for their real topic count in the next one instead.",
        "The FAQ of lateness: lag, pauses, transactions, recovery, in this order.",
    ),
    Metric(
        *_histogram("waited_seconds", lambda metrics: metrics.waited),
        "The same of timers whose real topic was paused, or beyond its rate, until just before they were released.",
        "As you set it: docs/release.md.",
    ),
    Metric(
        *_histogram("transaction_seconds", lambda metrics: metrics.transactions),
        "From the begin of a transaction until it stands in Kafka; readers see a record at its end.",
        "Slow: look at the brokers, and at the throttling.",
    ),
    Metric(
        *_counter("transaction_aborts", "reason", lambda metrics: metrics.aborts),
        "Transactions of which nothing stands: `refused` by a real topic, behind an `earlier` one that was aborted,"
        " begun for a `stale-member` of the group (fenced), or a passing `fault`. Each is repeated.",
        "Steady `fault`: look at the brokers and the log.",
    ),
    Metric(*_total("transaction_retries", lambda metrics: metrics.retries), "Transactions sent once more."),
    Metric(
        *_one("last_transaction_timestamp_seconds", lambda facts: _seconds(facts.metrics.last_commit_ms)),
        "When the newest transaction that stands was begun. A bridge without anything to do makes none.",
        "Old, while timers are due or requests wait: see whether it waits for a broker.",
    ),
)

TIMERS = Chapter(
    "Timers",
    Metric(
        *_of_topics("pending_timers", "target", lambda facts: facts.seen.pending),
        "Timers that wait, by real topic; copies on their way among them.",
        "`timer-bridge pending` tells when they are due.",
    ),
    Metric(
        *_seen("partition_pending_timers", lambda each: each.pending),
        "The same by partition of the timer topic.",
        "Uneven: keys, and with them ids, are.",
    ),
    Metric(
        *_one("next_due_timestamp_seconds", lambda facts: _seconds(facts.seen.first_due_ms)),
        "When the first pending timer is due, but for real topics that are paused, or beyond their rate; not told"
        " where none is pending, nor where the search takes more than 5 ms.",
        "In the past by more than seconds: timers are late now.",
    ),
    Metric(
        *_one("paused_targets", lambda facts: facts.seen.paused),
        "Real topics that are paused, whether or not anything waits for them.",
        "`timer-bridge resume`.",
    ),
    Metric(
        *_gauge("waiting_timers", ("target", "reason"), lambda facts: sorted(facts.seen.waiting.items())),
        "Timers of target topics that are `paused`, `limited` (beyond their rate just now) or `unavailable` (they"
        " take no records). Includes those due by the end of this hour (UTC), as counts are kept by the hour.",
        "If limited ones increase steadily, more fall due than `max_per_s` allows.",
    ),
    Metric(
        *_gauge(
            "waiting_since_timestamp_seconds",
            ("target", "reason"),
            lambda facts: sorted(_each_in_seconds(facts.seen.since_ms).items()),
        ),
        "Since when the first of these waits; anew where it went round, behind three quarters of a roll window.",
        "Long: resume it, or raise `max_per_s`.",
    ),
    Metric(
        *_gauge(
            "target_unavailable_since_timestamp_seconds",
            ("target",),
            lambda facts: sorted(_each_in_seconds(facts.seen.unavailable_since_ms).items()),
        ),
        "Time since when a target topic has taken no records: it has no leader or too few in-sync replicas, or a"
        " quota holds its records back for longer than a transaction may last. Only its timers wait.",
        "Restore its brokers. The bridge needs nothing: it tries again at least once a minute.",
    ),
    Metric(
        *_seen("held_timers", lambda each: each.held),
        "Timers whose place in the order has passed, but that do not leave yet: a clock went back, they rest, or"
        " they came late for a real topic that waits.",
        "Many, and no clock went back: look at the clock skew.",
    ),
    Metric(
        *_seen("rolling_timers", lambda each: each.rolling),
        "Copies written to the timer topic that are not read again yet.",
        "Steadily many: the lag of that partition.",
    ),
    Metric(
        *_total("rolled", lambda metrics: metrics.rolled),
        "Copies written to the timer topic: of timers due beyond the roll window, moved, or that waited for long.",
        "Beside the deliveries it tells what long delays cost.",
    ),
    Metric(*_total("landed", lambda metrics: metrics.landed), "Copies read again.", "Follows `rolled`."),
)

PARTITIONS = Chapter(
    "Partitions",
    Metric(
        *_gauge("partitions", ("phase",), _phases),
        "Partitions of timer topics that are this instance's: running, recovering, or paused (no room).",
        "Recovering for long: `recovery_work`. Paused: `paused_partitions`.",
    ),
    Metric(
        *_of_shards("partition_owned", lambda facts: dict.fromkeys(facts.status.shards(), 1.0)),
        "1 for each partition that is this instance's. Over all instances each partition has one.",
        "Nobody's: start an instance, look at the group.",
    ),
    Metric(
        *_of_topics("topic_partitions", "topic", lambda facts: facts.metrics.partitions),
        "How many partitions a timer topic had when this instance was started.",
        "A timer topic that grew: start the instances again, one by one.",
    ),
    Metric(
        *_of_shards("lag_offsets", lambda facts: {shard: end.lag for shard, end in facts.metrics.ends.items()}),
        f"Offsets of the timer topic that are not read yet; up to a few, as markers have offsets too. {LOOK}",
        "Grows: a pause, a sender's open transaction, or more requests than this instance takes: add one.",
    ),
    Metric(
        *_of_shards(
            "open_transaction_offsets", lambda facts: {shard: end.hidden for shard, end in facts.metrics.ends.items()}
        ),
        f"Offsets behind the first record of a transaction that a sender has open: nobody may read them. {LOOK}",
        "See `hanging_transaction_seconds`.",
    ),
    Metric(
        *_of_shards("hanging_transaction_seconds", _hanging),
        f"For how long the same transaction of a sender has been open; 0: none is. {LOOK}",
        "Find the sender, or end it: `kafka-transactions.sh find-hanging`, then `abort`.",
    ),
    Metric(
        *_of_shards("undecodable_offset", lambda facts: facts.metrics.undecodable),
        "Offset of a record that the Kafka client cannot decode: nothing after it is read. Absent: none.",
        "`timer-bridge skip TOPIC PARTITION OFFSET`: operations.md, TimerBridgeUndecodableRecord.",
    ),
    Metric(
        *_total("rebalances", lambda metrics: metrics.rebalances),
        "Changes of hands that this instance took part in.",
        "Steady: instances come and go, or turns take longer than the session.",
    ),
    Metric(
        *_counter("moved_partitions", "change", lambda metrics: metrics.moves),
        "Partitions assigned to, revoked from, or lost by this instance (the group had put it out).",
        "Lost: it did not answer within the session time-out; look at the machine and the network.",
    ),
    Metric(
        *_histogram("recovery_seconds", lambda metrics: metrics.recovery),
        "From a partition's assignment until its timers run.",
        "Long: `recovery_work`; keep the data directory over a restart.",
    ),
    Metric(
        *_counter("undecided_recoveries", "topic", lambda metrics: metrics.undecided),
        "Recoveries that had to wait for the end of a transaction of the partition's former owner: 10 s, or for"
        " ever where Kafka has forgotten its markers (docs/design/kafka-markers.md).",
        "Where the partition stays `recovering`: `kafka-transactions.sh find-hanging`.",
    ),
    Metric(
        *_counter("recovery_work", "source", lambda metrics: metrics.recovery_work),
        "Timers and requests that recoveries had to look through: from the `directory`, or from `kafka` alone.",
        "`kafka`, though directories are kept: the log says why one was of no use.",
    ),
)

STORE = Chapter(
    "Intake, store and topics",
    Metric(
        *_gauge("paused_partitions", ("reason",), _paused),
        "Partitions whose intake pauses: `disk`, `wheel` or `held` (release.md) full, `rate`: max_requests_per_s,"
        " `undecodable`: see `undecodable_offset`.",
        "Disk: free some space. Rate: nothing, it is your setting. Stored timers are still delivered.",
    ),
    Metric(
        *_counter("pauses", "reason", lambda metrics: metrics.pauses),
        "Times that intake of a partition began to pause.",
        "The same.",
    ),
    Metric(
        *_seen("backlog_requests", lambda each: each.backlog),
        "Requests that were read and wait to be taken in.",
        "The same.",
    ),
    Metric(
        *_one("broker_throttle_seconds", lambda facts: facts.status.throttled_s, "counter"),
        "For how long brokers held answers back, as a quota of theirs was used up; all clients added up.",
        "Raise the quota of the bridge's user.",
    ),
    Metric(
        *_seen("store_bytes", lambda each: each.store_bytes),
        "What the files of a partition's log take on disk.",
        "Grows with what is pending; room is given back when all that a file holds has left.",
    ),
    Metric(
        *_seen("pending_bytes", lambda each: each.pending_bytes),
        "Bytes of the pending timers' bodies in a partition's store, as `max_pending_bytes` counts them.",
        "Its sum by timer topic shows which topic fills the disk: give that topic a `max_pending_bytes`.",
    ),
    Metric(
        *_one("disk_free_bytes", lambda facts: facts.seen.free_bytes),
        "Room where the data directory lies.",
        "Make room before it falls below the next one.",
    ),
    Metric(
        *_one("disk_min_free_bytes", lambda facts: facts.limits.min_free_bytes),
        "The setting `min_free_bytes`: below it, intake pauses; for topics that hold little, below half of it.",
    ),
    Metric(
        *_of_topics("retention_seconds", "topic", _retention),
        "`retention.ms` of the timer topics and their journals, looked at each 10 minutes. +Inf: for ever.",
        "Keep it above the next one: a lost disk is rebuilt from there.",
    ),
    Metric(
        *_one("needed_retention_seconds", lambda facts: facts.metrics.needed_retention_ms / 1000),
        "The least that is safe: three roll windows.",
    ),
    Metric(
        *_of_shards("lost_to_retention_offsets", lambda facts: facts.metrics.lost_to_retention),
        "Offsets from the oldest pending timer on that Kafka no longer holds. Looked at each 10 minutes.",
        "Raise retention.ms now, and spare the disk: it alone has these timers.",
    ),
)

HEALTH = Chapter(
    "Health",
    Metric(
        *_one("live", lambda facts: float(not facts.status.live().reason)),
        "1 as long as `/health/live` answers 200.",
        "0: start it again.",
    ),
    Metric(
        *_one("ready", lambda facts: float(not facts.status.ready().reason)),
        "1 as long as `/health/ready` answers 200.",
        "`/health/ready` says the reason.",
    ),
    Metric(
        *_one("silence_seconds", lambda facts: facts.status.silent_s()),
        "Since a turn has ended, or the wait for a broker was told. What the turn's thread tells is as old.",
        "Beyond 60: it hangs, unless a partition recovers.",
    ),
    Metric(
        *_of_shards("clock_skew_seconds", lambda facts: _each_in_seconds(facts.metrics.skew_ms)),
        "How far the clock of the broker that leads the partition's journal is ahead of ours (less than 0: behind)."
        f" Told once it has written for us; at the least. {LOOK}",
        "Keep all clocks in time (NTP): timers leave by the bridge's, delays count from the brokers'.",
    ),
    Metric(
        *_one("max_clock_skew_seconds", lambda facts: facts.limits.max_clock_skew_ms / 1000),
        "The setting `max_clock_skew`: beyond it the log warns.",
    ),
    Metric(*_gauge("build_info", ("version",), lambda facts: [((facts.limits.version,), 1.0)]), "1, with the version."),
)

CHAPTERS = (TRAFFIC, TIMERS, PARTITIONS, STORE, HEALTH)


def all_metrics() -> Iterator[Metric]:
    for chapter in CHAPTERS:
        yield from chapter.metrics
