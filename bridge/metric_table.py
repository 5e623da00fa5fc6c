"""Every metric of the bridge: its name, what it tells, what to do by it, and where its numbers are.

    counter("requests", ("topic",), tells, do, read)     timer_bridge_requests_total{topic="timer.requests"}

By this table `/metrics` is written (bridge.exposition), and docs/metrics.md (bridge.metric_docs). Times are in seconds,
as Prometheus wants it. Every label has a bounded set of values: names of topics that senders choose end in `other`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from bridge.meters import Histogram, Labels, Tally
from bridge.metrics import Metrics
from bridge.seen import Seen, ShardSeen
from bridge.status import Status
from schemas.origin import Shard

PREFIX = "timer_bridge_"
Kind = Literal["counter", "gauge", "histogram"]
Samples = Iterable[tuple[Labels, float]]
Shards = ("topic", "partition")


class Limits(NamedTuple):
    """Settings that alerts compare with."""

    version: str
    min_free_bytes: int
    max_clock_skew_ms: int


class Facts(NamedTuple):
    """All there is to read."""

    metrics: Metrics
    status: Status
    seen: Seen
    limits: Limits


class Metric(NamedTuple):
    """`name` is without the `_total` that a counter ends in outside."""

    name: str
    kind: Kind
    labels: Labels
    tells: str
    do: str
    read: Callable[[Facts], Samples | Histogram]

    @property
    def full_name(self) -> str:
        return self.name + ("_total" if self.kind == "counter" else "")

    @property
    def unit(self) -> str:
        return next((unit for unit in ("timestamp_seconds", "seconds", "bytes") if self.name.endswith(unit)), "")


class Chapter(NamedTuple):
    """Metrics that are read together."""

    title: str
    metrics: tuple[Metric, ...]


# -- how they are read


def _tally(choose: Callable[[Metrics], Tally]) -> Callable[[Facts], Samples]:
    return lambda facts: choose(facts.metrics).read().items()


def _total(choose: Callable[[Metrics], Tally]) -> Callable[[Facts], Samples]:
    return lambda facts: [((), sum(choose(facts.metrics).read().values()))]


def _one(choose: Callable[[Facts], float | None]) -> Callable[[Facts], Samples]:
    """None: nothing is told."""

    def read(facts: Facts) -> Samples:
        value = choose(facts)
        return [] if value is None else [((), value)]

    return read


def _of_shards(choose: Callable[[Facts], Mapping[Shard, float]]) -> Callable[[Facts], Samples]:
    """Of those that are ours."""

    def read(facts: Facts) -> Iterator[tuple[Labels, float]]:
        ours = facts.status.shards()
        for shard, value in sorted(choose(facts).items()):
            if shard in ours:
                yield (shard.topic, str(shard.partition)), value

    return read


def _seen(choose: Callable[[ShardSeen], float]) -> Callable[[Facts], Samples]:
    return _of_shards(lambda facts: {shard: choose(each) for shard, each in facts.seen.shards.items()})


def _of_topics(choose: Callable[[Metrics], Mapping[str, float]]) -> Callable[[Facts], Samples]:
    return lambda facts: [((topic,), value) for topic, value in sorted(choose(facts.metrics).items())]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _phases(facts: Facts) -> Samples:
    found = Counter(each.phase for each in facts.status.shards().values())
    return [((phase,), found[phase]) for phase in ("running", "recovering", "paused")]


def _paused(facts: Facts) -> Samples:
    found = Counter(facts.metrics.paused.values())
    return [((reason,), found[reason]) for (reason,) in facts.metrics.pauses.read()]


def _retention(metrics: Metrics) -> dict[str, float]:
    return {topic: math.inf if ms < 0 else ms / 1000 for topic, ms in metrics.retention_ms.items()}


def _hanging(facts: Facts) -> dict[Shard, float]:
    now, looked_at = facts.metrics.hanging, facts.metrics.ends
    return {shard: (now[shard].seen_ms - now[shard].since_ms) / 1000 if shard in now else 0 for shard in looked_at}


# -- what there is

LOOK = "As of the last look, every 15 s."
_NONE = "Nothing."

TRAFFIC = Chapter(
    "Traffic",
    (
        Metric(
            *(f"{PREFIX}requests", "counter", ("topic",)),
            "Requests taken in from a timer topic: timers, cancels, those refused; not the bridge's own copies.",
            "Compare with what is sent: where it stays behind, see the lag and the pauses.",
            _tally(lambda metrics: metrics.requests),
        ),
        Metric(
            *(f"{PREFIX}deliveries", "counter", ("target",)),
            "Timers delivered, by real topic. The first 100 real topics of a process have a label, all others `other`.",
            _NONE,
            _tally(lambda metrics: metrics.deliveries),
        ),
        Metric(
            *(f"{PREFIX}refused", "counter", ("code",)),
            "Requests that lie on the rejected topic as they were never timers.",
            "The sender's to mend: docs/headers.md tells by the code what.",
            _tally(lambda metrics: metrics.refused),
        ),
        Metric(
            *(f"{PREFIX}parked", "counter", ("code",)),
            "Timers that were due, but that their real topic does not take: they lie on the rejected topic.",
            "Mend the real topic (docs/headers.md), then `timer-bridge redrive`.",
            _tally(lambda metrics: metrics.parked),
        ),
        Metric(
            *(f"{PREFIX}receipts", "counter", ("kind",)),
            "Receipts sent, by kind. Which are sent is the setting `receipts`.",
            "Many `too-late` or `not-found`: cancels come late, or meet another partition than their timers.",
            _tally(lambda metrics: metrics.receipts),
        ),
        Metric(
            *(f"{PREFIX}lateness_seconds", "histogram", ()),
            "How much later than due timers were released (`timer-released-ms` less `timer-deliver-ms`); those that"
            " waited for their real topic count in the next one instead.",
            "The FAQ of lateness: lag, pauses, transactions, recovery, in this order.",
            lambda facts: facts.metrics.lateness,
        ),
        Metric(
            *(f"{PREFIX}waited_seconds", "histogram", ()),
            "The same of timers whose real topic was paused, or beyond its rate, until just before they were released.",
            "As you set it: docs/release.md.",
            lambda facts: facts.metrics.waited,
        ),
        Metric(
            *(f"{PREFIX}transaction_seconds", "histogram", ()),
            "From the begin of a transaction until it stands in Kafka; readers see a record at its end.",
            "Slow: look at the brokers, and at the throttling.",
            lambda facts: facts.metrics.transactions,
        ),
        Metric(
            *(f"{PREFIX}transaction_aborts", "counter", ("reason",)),
            "Transactions of which nothing stands: `refused` by a real topic, behind an `earlier` one that was aborted,"
            " begun for a `stale-member` of the group (fenced), or a passing `fault`. Each is repeated.",
            "Steady `fault`: look at the brokers and the log.",
            _tally(lambda metrics: metrics.aborts),
        ),
        Metric(
            *(f"{PREFIX}transaction_retries", "counter", ()),
            "Transactions sent once more.",
            _NONE,
            _total(lambda metrics: metrics.retries),
        ),
        Metric(
            *(f"{PREFIX}last_transaction_timestamp_seconds", "gauge", ()),
            "When the newest transaction that stands was begun. A bridge without anything to do makes none.",
            "Old, while timers are due or requests wait: see whether it waits for a broker.",
            _one(lambda facts: _seconds(facts.metrics.last_commit_ms)),
        ),
    ),
)

TIMERS = Chapter(
    "Timers",
    (
        Metric(
            *(f"{PREFIX}pending_timers", "gauge", ("target",)),
            "Timers that wait, by real topic; copies on their way among them.",
            "`timer-bridge pending` tells when they are due.",
            lambda facts: [((target,), count) for target, count in sorted(facts.seen.pending.items())],
        ),
        Metric(
            *(f"{PREFIX}partition_pending_timers", "gauge", Shards),
            "The same by partition of the timer topic.",
            "Uneven: keys, and with them ids, are.",
            _seen(lambda each: each.pending),
        ),
        Metric(
            *(f"{PREFIX}next_due_timestamp_seconds", "gauge", ()),
            "When the first pending timer is due, but for real topics that are paused, or beyond their rate; not told"
            " where none is pending, nor where the search takes more than 5 ms.",
            "In the past by more than seconds: timers are late now.",
            _one(lambda facts: _seconds(facts.seen.first_due_ms)),
        ),
        Metric(
            *(f"{PREFIX}paused_targets", "gauge", ()),
            "Real topics that are paused, whether or not anything waits for them.",
            "`timer-bridge resume`.",
            _one(lambda facts: facts.seen.paused),
        ),
        Metric(
            *(f"{PREFIX}waiting_timers", "gauge", ("target", "reason")),
            "Timers of target topics that are `paused`, `limited` (beyond their rate just now) or `unavailable` (they"
            " take no records). Includes those due by the end of this hour (UTC), as counts are kept by the hour.",
            "If limited ones increase steadily, more fall due than `max_per_s` allows.",
            lambda facts: sorted(facts.seen.waiting.items()),
        ),
        Metric(
            *(f"{PREFIX}waiting_since_timestamp_seconds", "gauge", ("target", "reason")),
            "Since when the first of these waits; anew where it went round, behind three quarters of a roll window.",
            "Long: resume it, or raise `max_per_s`.",
            lambda facts: [(labels, ms / 1000) for labels, ms in sorted(facts.seen.since_ms.items())],
        ),
        Metric(
            *(f"{PREFIX}target_unavailable_since_timestamp_seconds", "gauge", ("target",)),
            "Time since when a target topic has taken no records: it has no leader or too few in-sync replicas, or a"
            " quota holds its records back for longer than a transaction may last. Only its timers wait.",
            "Restore its brokers. The bridge needs nothing: it tries again at least once a minute.",
            lambda facts: [(labels, ms / 1000) for labels, ms in sorted(facts.seen.unavailable_since_ms.items())],
        ),
        Metric(
            *(f"{PREFIX}held_timers", "gauge", Shards),
            "Timers whose place in the order has passed, but that do not leave yet: a clock went back, they rest, or"
            " they came late for a real topic that waits.",
            "Many, and no clock went back: look at the clock skew.",
            _seen(lambda each: each.held),
        ),
        Metric(
            *(f"{PREFIX}rolling_timers", "gauge", Shards),
            "Copies written to the timer topic that are not read again yet.",
            "Steadily many: the lag of that partition.",
            _seen(lambda each: each.rolling),
        ),
        Metric(
            *(f"{PREFIX}rolled", "counter", ()),
            "Copies written to the timer topic: of timers due beyond the roll window, moved, or that waited for long.",
            "Beside the deliveries it tells what long delays cost.",
            _total(lambda metrics: metrics.rolled),
        ),
        Metric(
            *(f"{PREFIX}landed", "counter", ()),
            "Copies read again.",
            "Follows `rolled`.",
            _total(lambda metrics: metrics.landed),
        ),
    ),
)

PARTITIONS = Chapter(
    "Partitions",
    (
        Metric(
            *(f"{PREFIX}partitions", "gauge", ("phase",)),
            "Partitions of timer topics that are this instance's: running, recovering, or paused (no room).",
            "Recovering for long: `recovery_work`. Paused: `paused_partitions`.",
            _phases,
        ),
        Metric(
            *(f"{PREFIX}partition_owned", "gauge", Shards),
            "1 for each partition that is this instance's. Over all instances each partition has one.",
            "Nobody's: start an instance, look at the group.",
            _of_shards(lambda facts: dict.fromkeys(facts.status.shards(), 1.0)),
        ),
        Metric(
            *(f"{PREFIX}topic_partitions", "gauge", ("topic",)),
            "How many partitions a timer topic had when this instance was started.",
            "A timer topic that grew: start the instances again, one by one.",
            _of_topics(lambda metrics: metrics.partitions),
        ),
        Metric(
            *(f"{PREFIX}lag_offsets", "gauge", Shards),
            f"Offsets of the timer topic that are not read yet; up to a few, as markers have offsets too. {LOOK}",
            "Grows: a pause, a sender's open transaction, or more requests than this instance takes: add one.",
            _of_shards(lambda facts: {shard: end.lag for shard, end in facts.metrics.ends.items()}),
        ),
        Metric(
            *(f"{PREFIX}open_transaction_offsets", "gauge", Shards),
            f"Offsets behind the first record of a transaction that a sender has open: nobody may read them. {LOOK}",
            "See `hanging_transaction_seconds`.",
            _of_shards(lambda facts: {shard: end.hidden for shard, end in facts.metrics.ends.items()}),
        ),
        Metric(
            *(f"{PREFIX}hanging_transaction_seconds", "gauge", Shards),
            f"For how long the same transaction of a sender has been open; 0: none is. {LOOK}",
            "Find the sender, or end it: `kafka-transactions.sh find-hanging`, then `abort`.",
            _of_shards(_hanging),
        ),
        Metric(
            *(f"{PREFIX}undecodable_offset", "gauge", Shards),
            "Offset of a record that the Kafka client cannot decode: nothing after it is read. Absent: none.",
            "`timer-bridge skip TOPIC PARTITION OFFSET`: operations.md, TimerBridgeUndecodableRecord.",
            _of_shards(lambda facts: facts.metrics.undecodable),
        ),
        Metric(
            *(f"{PREFIX}rebalances", "counter", ()),
            "Changes of hands that this instance took part in.",
            "Steady: instances come and go, or turns take longer than the session.",
            _total(lambda metrics: metrics.rebalances),
        ),
        Metric(
            *(f"{PREFIX}moved_partitions", "counter", ("change",)),
            "Partitions assigned to, revoked from, or lost by this instance (the group had put it out).",
            "Lost: it did not answer within the session time-out; look at the machine and the network.",
            _tally(lambda metrics: metrics.moves),
        ),
        Metric(
            *(f"{PREFIX}recovery_seconds", "histogram", ()),
            "From a partition's assignment until its timers run.",
            "Long: `recovery_work`; keep the data directory over a restart.",
            lambda facts: facts.metrics.recovery,
        ),
        Metric(
            *(f"{PREFIX}undecided_recoveries", "counter", ("topic",)),
            "Recoveries that had to wait for the end of a transaction of the partition's former owner: 10 s, or for"
            " ever where Kafka has forgotten its markers (ARCHITECTURE.md).",
            "Where the partition stays `recovering`: `kafka-transactions.sh find-hanging`.",
            _tally(lambda metrics: metrics.undecided),
        ),
        Metric(
            *(f"{PREFIX}recovery_work", "counter", ("source",)),
            "Timers and requests that recoveries had to look through: from the `directory`, or from `kafka` alone.",
            "`kafka`, though directories are kept: the log says why one was of no use.",
            _tally(lambda metrics: metrics.recovery_work),
        ),
    ),
)

STORE = Chapter(
    "Intake, store and topics",
    (
        Metric(
            *(f"{PREFIX}paused_partitions", "gauge", ("reason",)),
            "Partitions whose intake pauses: `disk`, `wheel` or `held` (release.md) full, `rate`: max_requests_per_s,"
            " `undecodable`: see `undecodable_offset`.",
            "Disk: free some space. Rate: nothing, it is your setting. Stored timers are still delivered.",
            _paused,
        ),
        Metric(
            *(f"{PREFIX}pauses", "counter", ("reason",)),
            "Times that intake of a partition began to pause.",
            "The same.",
            _tally(lambda metrics: metrics.pauses),
        ),
        Metric(
            *(f"{PREFIX}backlog_requests", "gauge", Shards),
            "Requests that were read and wait to be taken in.",
            "The same.",
            _seen(lambda each: each.backlog),
        ),
        Metric(
            *(f"{PREFIX}broker_throttle_seconds", "counter", ()),
            "For how long brokers held answers back, as a quota of theirs was used up; all clients added up.",
            "Raise the quota of the bridge's user.",
            _one(lambda facts: facts.status.throttled_s),
        ),
        Metric(
            *(f"{PREFIX}store_bytes", "gauge", Shards),
            "What the files of a partition's log take on disk.",
            "Grows with what is pending; room is given back when all that a file holds has left.",
            _seen(lambda each: each.store_bytes),
        ),
        Metric(
            *(f"{PREFIX}pending_bytes", "gauge", Shards),
            "Bytes of the pending timers' bodies in a partition's store, as `max_pending_bytes` counts them.",
            "Its sum by timer topic shows which topic fills the disk: give that topic a `max_pending_bytes`.",
            _seen(lambda each: each.pending_bytes),
        ),
        Metric(
            *(f"{PREFIX}disk_free_bytes", "gauge", ()),
            "Room where the data directory lies.",
            "Make room before it falls below the next one.",
            _one(lambda facts: facts.seen.free_bytes),
        ),
        Metric(
            *(f"{PREFIX}disk_min_free_bytes", "gauge", ()),
            "The setting `min_free_bytes`: below it, intake pauses; for topics that hold little, below half of it.",
            _NONE,
            _one(lambda facts: facts.limits.min_free_bytes),
        ),
        Metric(
            *(f"{PREFIX}retention_seconds", "gauge", ("topic",)),
            "`retention.ms` of the timer topics and their journals, looked at each 10 minutes. +Inf: for ever.",
            "Keep it above the next one: a lost disk is rebuilt from there.",
            _of_topics(_retention),
        ),
        Metric(
            *(f"{PREFIX}needed_retention_seconds", "gauge", ()),
            "The least that is safe: three roll windows.",
            _NONE,
            _one(lambda facts: facts.metrics.needed_retention_ms / 1000),
        ),
        Metric(
            *(f"{PREFIX}lost_to_retention_offsets", "gauge", Shards),
            "Offsets from the oldest pending timer on that Kafka no longer holds. Looked at each 10 minutes.",
            "Raise retention.ms now, and spare the disk: it alone has these timers.",
            _of_shards(lambda facts: facts.metrics.lost_to_retention),
        ),
    ),
)

HEALTH = Chapter(
    "Health",
    (
        Metric(
            *(f"{PREFIX}live", "gauge", ()),
            "1 as long as `/health/live` answers 200.",
            "0: start it again.",
            _one(lambda facts: float(not facts.status.live().reason)),
        ),
        Metric(
            *(f"{PREFIX}ready", "gauge", ()),
            "1 as long as `/health/ready` answers 200.",
            "`/health/ready` says the reason.",
            _one(lambda facts: float(not facts.status.ready().reason)),
        ),
        Metric(
            *(f"{PREFIX}silence_seconds", "gauge", ()),
            "Since a turn has ended, or the wait for a broker was told. What the turn's thread tells is as old.",
            "Beyond 60: it hangs, unless a partition recovers.",
            _one(lambda facts: facts.status.silent_s()),
        ),
        Metric(
            *(f"{PREFIX}clock_skew_seconds", "gauge", Shards),
            "How far the clock of the broker that leads the partition's journal is ahead of ours (less than 0: behind)."
            f" Told once it has written for us; at the least. {LOOK}",
            "Keep all clocks in time (NTP): timers leave by the bridge's, delays count from the brokers'.",
            _of_shards(lambda facts: {shard: ms / 1000 for shard, ms in facts.metrics.skew_ms.items()}),
        ),
        Metric(
            *(f"{PREFIX}max_clock_skew_seconds", "gauge", ()),
            "The setting `max_clock_skew`: beyond it the log warns.",
            _NONE,
            _one(lambda facts: facts.limits.max_clock_skew_ms / 1000),
        ),
        Metric(
            *(f"{PREFIX}build_info", "gauge", ("version",)),
            "1, with the version.",
            _NONE,
            lambda facts: [((facts.limits.version,), 1.0)],
        ),
    ),
)

CHAPTERS = (TRAFFIC, TIMERS, PARTITIONS, STORE, HEALTH)


def all_metrics() -> Iterator[Metric]:
    for chapter in CHAPTERS:
        yield from chapter.metrics
