"""Liveness and readiness of the bridge, with reasons.

    live    a turn has ended, or a wait for a broker was reported, within LIVE_WITHIN_S; or a partition recovers
    ready   partitions are assigned and recovered, intake goes on, and no call waits for a broker
            or the group has assigned none to us for SPARE_AFTER_S: a spare is as ready as it can be

The loop's thread writes (other threads where a method says so), any thread reads. State is replaced, never changed in
place, so that reads are consistent.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Literal, NamedTuple

from bridge.observe.pause_reasons import Pause, PauseReasons
from bridge.observe.recent_traffic import TrafficMeter
from kafka_timer.origin import TimerPartition

LIVE_WITHIN_S = 60.0
"""Longer than any working turn, even with a slow disk or a transaction that a broker delays."""
SPARE_AFTER_S = 10.0
"""Longer than a rebalance takes after a member has joined."""
_REPORT_VALID_S = 5.0
"""A wait is reported at each try, at least every 3 s."""

Phase = Literal["recovering", "running", "paused"]


class PartitionStatus(NamedTuple):
    """Status of one partition. If its intake is paused, `reason` is a short code, and `detail` the error text."""

    phase: Phase
    reason: str = ""
    detail: str = ""


class Verdict(NamedTuple):
    """Result of a check. `reason` is empty if it passed, else one of a few texts; `detail` is for people."""

    reason: str = ""
    detail: str = ""


class _Report(NamedTuple):
    text: str
    at_s: float


def _status(pause: Pause | None) -> PartitionStatus:
    if pause is None or pause.is_ready:
        return PartitionStatus("running")
    return PartitionStatus("recovering") if pause.reason == "recovering" else PartitionStatus("paused", *pause)


def undecodable_text(partition: TimerPartition, offset: int) -> str:
    """Return what is wrong with a partition whose next record cannot be decoded, and what to do."""
    return (
        f"{partition}: the record at offset {offset} cannot be decoded, so nothing after it is read; run"
        f" `timer-bridge skip {partition.topic} {partition.partition} {offset}` to go on without it"
    )


class Status:
    """now_s: seconds of a monotonic clock. redact: removes secrets from texts."""

    def __init__(
        self, now_s: Callable[[], float] = lambda: 0.0, redact: Callable[[str], str] = lambda text: text
    ) -> None:
        self.traffic = TrafficMeter()
        self.unavailable_targets: Mapping[str, int] = {}
        """Target topics that take no records, and since when (epoch ms). Other targets go on."""
        self.throttled_s = 0.0
        """Seconds for which brokers have delayed answers by quotas, summed over all clients."""
        self._throttle_lock = Lock()
        self._now_s = now_s
        self._redact = redact
        self.pauses = PauseReasons()
        self._assigned: frozenset[TimerPartition] = frozenset()
        self._had_partitions = False
        self._standby_s: dict[TimerPartition, float] = {}
        """When the standby of a partition was last at its committed progress."""
        self._broker_wait: _Report | None = None
        self._connection_error: _Report | None = None
        self._sign_of_life_s = now_s()
        self._idle_since_s: float | None = None
        """Since when we are a member without partitions, or None."""

    # -- written by the loop's thread

    def turn_ended(self) -> None:
        self._sign_of_life_s = self._now_s()

    def waiting_for_broker(self, why: str) -> None:
        """Note that a call waits for a broker. Threads that publish call this too."""
        self._sign_of_life_s = self._now_s()
        self._broker_wait = self._report(why)

    def broker_wait_ended(self) -> None:
        """Note the end of a wait for a broker. Threads that publish call this too."""
        self._sign_of_life_s = self._now_s()
        self._broker_wait = None

    def connection_failed(self, error: str) -> None:
        """Note an error of a Kafka client's connection. It counts only while no partition is assigned."""
        self._connection_error = self._report(error)

    def polled(self, *, is_member: bool) -> None:
        """Note after each poll whether we are a member of the group."""
        if self._assigned or not is_member:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = self._now_s()

    def throttled(self, seconds: float) -> None:
        """Note a delay by a broker's quota. Any thread may call this."""
        with self._throttle_lock:
            self.throttled_s += seconds

    def targets_checked(self, unavailable: Mapping[str, int]) -> None:
        self.unavailable_targets = unavailable

    def standby_refreshed(self, partition: TimerPartition, ago_s: float) -> None:
        """Note that a standby has all that was committed `ago_s` seconds ago."""
        self._standby_s = self._standby_s | {partition: self._now_s() - ago_s}

    def partition_recovering(self, partition: TimerPartition) -> None:
        self._had_partitions = True
        self._assigned |= {partition}
        self.pauses.pause(partition, "recovering")

    def partition_running(self, partition: TimerPartition) -> None:
        self._had_partitions = True
        self._assigned |= {partition}
        self.pauses.resume(partition)

    def partition_closed(self, partition: TimerPartition) -> None:
        self._assigned -= {partition}
        self.pauses.resume(partition)

    # -- read by any thread

    def partitions(self) -> Mapping[TimerPartition, PartitionStatus]:
        pauses = self.pauses.by_partition
        return {partition: _status(pauses.get(partition)) for partition in sorted(self._assigned)}

    def standby_ages_s(self) -> dict[TimerPartition, float]:
        """Return how many seconds ago each standby had all that was committed."""
        now_s = self._now_s()
        return {each: now_s - at_s for each, at_s in sorted(self._standby_s.items()) if each not in self._assigned}

    def in_recovery(self) -> list[TimerPartition]:
        return sorted(self.pauses.of("recovering"))

    def silence_s(self) -> float:
        return self._now_s() - self._sign_of_life_s

    def live(self) -> Verdict:
        silence_s = self.silence_s()
        if silence_s <= LIVE_WITHIN_S or self.in_recovery():
            return Verdict()
        return Verdict("the loop hangs", f"no turn has ended for {silence_s:.0f} s")

    def ready(self) -> Verdict:
        live = self.live()
        if live.reason:
            return live
        partitions = self.partitions()
        if why := self._recent(self._broker_wait) or ("" if partitions else self._recent(self._connection_error)):
            return Verdict("waiting for the broker", why)
        is_spare = self._idle_since_s is not None and self._now_s() - self._idle_since_s >= SPARE_AFTER_S
        if not partitions and not is_spare:
            return Verdict("no partitions assigned" if self._had_partitions else "no partitions assigned yet")
        if recovering := self.in_recovery():
            return Verdict(f"recovering {', '.join(map(str, recovering))}")
        for partition, status in partitions.items():
            if status.phase == "paused":
                return Verdict(f"intake paused: {status.reason}", f"{partition}: {status.detail}")
        return Verdict()

    def answer(self, verdict: Verdict) -> tuple[dict[str, object], int]:
        """Return the JSON and the HTTP status code of a probe."""
        places: dict[str, object] = {
            "shards": {str(partition): each.phase for partition, each in self.partitions().items()}
        }
        if self.unavailable_targets:
            places["unavailable_targets"] = dict(self.unavailable_targets)
        if not verdict.reason:
            return {"status": "ok", **places}, 200
        return {"status": "not ok", "reason": verdict.reason, "detail": verdict.detail, **places}, 503

    def _report(self, text: str) -> _Report:
        return _Report(self._redact(text), self._now_s())

    def _recent(self, report: _Report | None) -> str:
        return report.text if report is not None and self._now_s() - report.at_s <= _REPORT_VALID_S else ""
