"""What a bridge is at, for those who ask from outside: is it alive, is it ready, and if not, why.

    live    a turn has ended, or whoever waits for a broker has said so, within LIVE_WITHIN_S; or a shard recovers
    ready   shards are assigned, all of them are recovered, intake goes on, and nobody waits for a broker
            or the group has had none for us for SPARE_AFTER_S: a spare is as ready as it can be

The turn's thread tells; any thread may ask. Nothing is changed in place, so an answer is never half of two.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Literal, NamedTuple

from bridge.observe.recent_traffic import TrafficMeter
from schemas.origin import Shard

LIVE_WITHIN_S = 60.0
"""Longer than any turn that goes on: a disk that syncs slowly, a transaction that a broker makes wait."""
SPARE_AFTER_S = 10.0
"""Longer than a group takes to hand its partitions out again when a member has joined."""
_WAIT_IS_OVER_S = 5.0
"""Who waits says so at each try, every 3 s at the latest."""

Phase = Literal["recovering", "running", "paused"]


class ShardStatus(NamedTuple):
    """`reason` and `detail` where it is paused: what is full, and what was said of it."""

    phase: Phase
    reason: str = ""
    detail: str = ""


class Verdict(NamedTuple):
    """`reason` is empty where all is well, else one of a few; `detail` is for people."""

    reason: str = ""
    detail: str = ""


class _Said(NamedTuple):
    text: str
    at_s: float


def undecodable_text(shard: Shard, offset: int) -> str:
    """Return what is wrong with a partition whose next record cannot be decoded, and what to do."""
    return (
        f"{shard}: the record at offset {offset} cannot be decoded, so nothing after it is read; run"
        f" `timer-bridge skip {shard.topic} {shard.partition} {offset}` to go on without it"
    )


class Status:
    """`now_s`: seconds of a clock that never goes back. `redact` takes secrets out of what others say."""

    def __init__(
        self, now_s: Callable[[], float] = lambda: 0.0, redact: Callable[[str], str] = lambda text: text
    ) -> None:
        self.traffic = TrafficMeter()
        self._now_s = now_s
        self._discreet = redact
        self._shards: Mapping[Shard, ShardStatus] = {}
        self._had_shards = False
        self._wait: _Said | None = None
        self._error: _Said | None = None
        self._sign_of_life_s = now_s()
        self._idle_since_s: float | None = None
        """When the group had let us in and nothing was ours."""
        self.unavailable_targets: Mapping[str, int] = {}
        """Target topics that take no records, each with the time (epoch ms) since when. Others are not held up."""
        self._throttled = Lock()
        self.throttled_s = 0.0
        """How long brokers have made us wait for their quotas, all clients added up."""

    # -- told by the turn's thread

    def turned(self) -> None:
        """A turn has ended."""
        self._sign_of_life_s = self._now_s()

    def waits(self, why: str | None) -> None:
        """For a broker, and tries again; None: it has answered. Told by the threads that publish, too."""
        self._sign_of_life_s = self._now_s()
        self._wait = None if why is None else self._said(why)

    def hears(self, error: str) -> None:
        """From Kafka's client: a connection fails. That may pass unnoticed, unless nothing is ours."""
        self._error = self._said(error)

    def belongs(self, *, is_member: bool) -> None:
        """To the group: told with each poll."""
        if self._shards or not is_member:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = self._now_s()

    def throttles(self, seconds: float) -> None:
        """A broker does, as a quota of it is used up. Told by any thread."""
        with self._throttled:
            self.throttled_s += seconds

    def recovering(self, shard: Shard) -> None:
        self._set(shard, ShardStatus("recovering"))

    def running(self, shard: Shard) -> None:
        self._set(shard, ShardStatus("running"))

    def paused(self, shard: Shard, reason: str, detail: str) -> None:
        """Intake pauses: `reason` is full."""
        self._set(shard, ShardStatus("paused", reason, detail))

    def gone(self, shard: Shard) -> None:
        """It is not ours any more."""
        self._shards = {each: status for each, status in self._shards.items() if each != shard}

    def _set(self, shard: Shard, status: ShardStatus) -> None:
        self._had_shards = True
        if self._shards.get(shard) != status:
            self._shards = {**self._shards, shard: status}

    # -- asked by any thread

    def shards(self) -> Mapping[Shard, ShardStatus]:
        return self._shards

    def in_recovery(self) -> list[Shard]:
        """In order."""
        return self._in("recovering")

    def silent_s(self) -> float:
        """Since the last sign of life."""
        return self._now_s() - self._sign_of_life_s

    def live(self) -> Verdict:
        silent_s = self.silent_s()
        if silent_s <= LIVE_WITHIN_S or self.in_recovery():
            return Verdict()
        return Verdict("the loop hangs", f"no turn has ended for {silent_s:.0f} s")

    def ready(self) -> Verdict:
        live = self.live()
        if live.reason:
            return live
        if why := self._lately(self._wait) or ("" if self._shards else self._lately(self._error)):
            return Verdict("waiting for the broker", why)
        if not self._shards and not self._is_spare():
            return Verdict("no partitions assigned" if self._had_shards else "no partitions assigned yet")
        if recovering := self.in_recovery():
            return Verdict(f"recovering {', '.join(map(str, recovering))}")
        for shard in self._in("paused"):
            status = self._shards[shard]
            return Verdict(f"intake paused: {status.reason}", f"{shard}: {status.detail}")
        return Verdict()

    def _is_spare(self) -> bool:
        return self._idle_since_s is not None and self._now_s() - self._idle_since_s >= SPARE_AFTER_S

    def _said(self, text: str) -> _Said:
        return _Said(self._discreet(text), self._now_s())

    def _lately(self, said: _Said | None) -> str:
        return said.text if said is not None and self._now_s() - said.at_s <= _WAIT_IS_OVER_S else ""

    def _in(self, phase: Phase) -> list[Shard]:
        return sorted(shard for shard, status in self._shards.items() if status.phase == phase)
