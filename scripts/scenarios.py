"""What the bench does to a bridge, one scenario a function; a round is all of them on a broker of its own.

copy      the plain transactional loop: the limit              copy.in -> copy.out
spread    N timers, due evenly over some seconds: lateness     sent and taken in before the first is due; half as many
                                                               before, to warm the broker up
burst     N timers, due at one instant: drain                  sent and taken in before
named     as burst, half of them with ids, 10 % of N cancels   sent and taken in before
intake    N requests that wait when the bridge starts          none of them due soon

|-- send --|-- intake --|...|=== due ===|-- counted by origin, read_committed
                            ^ begin_ms = now + what sending and intake may take
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bridge.embedded import EmbeddedKafka
from bridge.errors import BridgeError
from scripts import figures, processes
from scripts.figures import Account, Seen
from scripts.kafka_io import (
    BROKER_CLOCK,
    Admin,
    Delivery,
    Receiver,
    Request,
    Span,
    cancel,
    copy_loop,
    named_timer,
    send_all,
    timer,
)
from scripts.processes import BridgeProcess

TIMER_TOPIC = "timer.requests"
GROUP = "timer-bridge"
WARM_UP, SPREAD, BURST, FAR = "bench.warm-up", "bench.spread", "bench.burst", "bench.far"
NAMED, CANCELLED = "bench.named", "bench.cancelled"
CANCEL_EACH = 10
"""Each so-manieth timer is cancelled; each second has an id."""
COPY_IN, COPY_OUT = "bench.copy-in", "bench.copy-out"
TRANSACTION_SIZE = 2_000
_SEED = 43
_GIVE_UP_S = 120.0
_QUIET_S = 1.5
_AN_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Sizes:
    messages: int
    spread_seconds: float
    body_bytes: int
    partitions: int

    @property
    def head_start_ms(self) -> int:
        """From the first send to the first due time: room for sending and for intake on a slow machine."""
        return 3_000 + self.messages // 10


@dataclass(frozen=True)
class Spread:
    late: figures.Lateness
    seen_late: figures.Lateness
    account: Account
    cpu_s: float
    taken_in_before_due: bool


@dataclass(frozen=True)
class Burst:
    drain_per_s: float
    first_late_ms: int
    last_late_ms: int
    account: Account
    cpu_s: float
    taken_in_before_due: bool


@dataclass(frozen=True)
class Named:
    """`account` is of the timers that nobody cancelled; `cancelled_but_delivered` of the others."""

    drain_per_s: float
    account: Account
    cancelled: int
    cancelled_but_delivered: int
    cpu_s: float
    taken_in_before_due: bool


@dataclass(frozen=True)
class Intake:
    per_s: float
    cpu_s: float
    peak_rss_mb: float


@dataclass(frozen=True)
class Round:
    """`others_share`: of all CPU time of the machine, what neither bridge, broker nor bench used."""

    copy_per_s: float
    spread: Spread
    burst: Burst
    named: Named
    intake: Intake
    peak_rss_mb: float
    others_share: float


def run_round(folder: Path, sizes: Sizes, say: Callable[[str], None]) -> Round:
    """A broker and a bridge of its own, in an empty folder."""
    machine, ours_s = processes.machine(), _own_s()
    with EmbeddedKafka(folder / "kafka") as kafka:
        stage = Stage(kafka.bootstrap_servers, sizes)
        say("copy loop: the limit")
        copy_per_s = stage.copy()
        with BridgeProcess(folder, kafka.bootstrap_servers, ["--partitions", str(sizes.partitions)]) as bridge:
            say(f"spread: {sizes.messages:,} timers due over {sizes.spread_seconds:g} s")
            spread = stage.spread(bridge)
            say(f"burst: {sizes.messages:,} timers due at one instant")
            burst = stage.burst(bridge)
            say(f"named: {sizes.messages:,} timers, half of them with ids, a tenth cancelled")
            named = stage.named(bridge)
            used = bridge.usage()
        say(f"intake: {sizes.messages:,} requests that wait for the bridge")
        intake = stage.intake(folder)
        assert kafka.pid is not None
        ours_s = _own_s() - ours_s + used.cpu_s + intake.cpu_s + processes.usage(kafka.pid).cpu_s
        now = processes.machine()
    others = (now.busy_s - machine.busy_s - ours_s) / max(now.total_s - machine.total_s, 0.01)
    peak_rss_mb = max(used.peak_rss_mb, intake.peak_rss_mb)
    return Round(copy_per_s, spread, burst, named, intake, peak_rss_mb, max(others, 0.0))


class Stage:
    """The broker's topics, and the scenarios on them."""

    def __init__(self, bootstrap_servers: str, sizes: Sizes) -> None:
        self._servers = bootstrap_servers
        self._sizes = sizes
        self._admin = Admin(bootstrap_servers)
        topics = (WARM_UP, SPREAD, BURST, NAMED, CANCELLED, FAR, COPY_IN, COPY_OUT)
        self._admin.create_topics(topics, partitions=sizes.partitions, settings=BROKER_CLOCK)

    def copy(self) -> float:
        """Messages a second; after a run that only warms the broker up."""
        count = self._sizes.messages
        send_all(self._servers, COPY_IN, self._timers(SPREAD, [_now_ms() + _AN_HOUR_MS] * count))
        elapsed_s = 0.0
        for _ in ("warm up", "measure"):
            elapsed_s = copy_loop(self._servers, COPY_IN, COPY_OUT, count=count, transaction_size=TRANSACTION_SIZE)
        return count / elapsed_s

    def spread(self, bridge: BridgeProcess) -> Spread:
        """Behind one that only warms the broker up: the first thousands of transactions of its life are slow."""
        warm_up_ms = self._dues_ms(1 / 2)
        self._send(WARM_UP, warm_up_ms.tolist(), int(warm_up_ms.min()), bridge)
        time.sleep(max(0.0, (int(warm_up_ms.max()) - _now_ms()) / 1000))
        before, due_ms = bridge.usage(), self._dues_ms()
        spans, in_time = self._send(SPREAD, due_ms.tolist(), int(due_ms.min()), bridge)
        deliveries = self._receive(SPREAD, spans, int(due_ms.max()), bridge)
        return Spread(
            figures.lateness(figures.late_ms(deliveries)),
            figures.lateness(figures.seen_late_ms(deliveries)),
            figures.account(spans, deliveries),
            bridge.usage().cpu_s - before.cpu_s,
            in_time,
        )

    def _dues_ms(self, share: float = 1.0) -> np.typing.NDArray[np.int64]:
        """Of a share of the messages, evenly over the same share of the spread, in no order."""
        count = int(self._sizes.messages * share)
        after_ms = np.arange(count) * (self._sizes.spread_seconds * 1000 / self._sizes.messages)
        begin_ms = _now_ms() + int(self._sizes.head_start_ms * share)
        return begin_ms + np.random.default_rng(_SEED).permutation(after_ms.astype(np.int64))

    def burst(self, bridge: BridgeProcess) -> Burst:
        before = bridge.usage()
        due_ms = _now_ms() + self._sizes.head_start_ms
        spans, in_time = self._send(BURST, [due_ms] * self._sizes.messages, due_ms, bridge)
        self._await_quiet(BURST, due_ms, bridge)  # a consumer would take the CPU that is measured
        deliveries = self._receive(BURST, spans, due_ms, bridge)
        late_ms = figures.late_ms(deliveries)
        first_ms, last_ms = (int(late_ms.min()), int(late_ms.max())) if len(late_ms) else (0, 0)
        return Burst(
            _drain_per_s(deliveries),
            first_ms,
            last_ms,
            figures.account(spans, deliveries),
            bridge.usage().cpu_s - before.cpu_s,
            in_time,
        )

    def named(self, bridge: BridgeProcess) -> Named:
        """Cancelled timers have a target of their own, where nothing may arrive."""
        before, count, filler = bridge.usage(), self._sizes.messages, b"." * self._sizes.body_bytes
        due_ms = _now_ms() + self._sizes.head_start_ms

        def request(number: int) -> Request:
            value = (b"%d" % number + filler)[: self._sizes.body_bytes]
            if number % 2:
                return timer(NAMED, due_ms, value)
            return named_timer(CANCELLED if number % CANCEL_EACH == 0 else NAMED, due_ms, value, b"id-%d" % number)

        spans = send_all(self._servers, TIMER_TOPIC, map(request, range(count)))
        cancels = (cancel(b"id-%d" % number) for number in range(0, count, CANCEL_EACH))
        behind = send_all(self._servers, TIMER_TOPIC, cancels)
        in_time = self._await_intake(behind, (due_ms - _now_ms()) / 1000, bridge)
        self._await_quiet(NAMED, due_ms, bridge)
        cancelled = len(range(0, count, CANCEL_EACH))
        deliveries = self._receive(NAMED, spans, due_ms, bridge, without=cancelled)
        account = figures.account(spans, deliveries)
        return Named(
            _drain_per_s(deliveries),
            account._replace(requested=count - cancelled, lost=account.lost - cancelled),
            cancelled,
            sum(self._admin.ends(CANCELLED).values()),
            bridge.usage().cpu_s - before.cpu_s,
            in_time,
        )

    def intake(self, folder: Path) -> Intake:
        """From ready (or the first committed offset seen after it) until progress reaches the end."""
        spans = send_all(
            self._servers, TIMER_TOPIC, self._timers(FAR, [_now_ms() + _AN_HOUR_MS] * self._sizes.messages)
        )
        with BridgeProcess(folder, self._servers) as bridge:
            before, begin_s, left = bridge.usage(), time.perf_counter(), self._left(spans)
            if not self._await_intake(spans, _GIVE_UP_S, bridge):
                raise BridgeError(f"{self._left(spans):,} requests were not taken in within {_GIVE_UP_S:.0f} s")
            elapsed_s, after = time.perf_counter() - begin_s, bridge.usage()
        return Intake(left / elapsed_s, after.cpu_s - before.cpu_s, after.peak_rss_mb)

    def _timers(self, target: str, due_ms: Sequence[int]) -> Iterable[Request]:
        filler = b"." * self._sizes.body_bytes
        return (timer(target, due, (b"%d" % i + filler)[: self._sizes.body_bytes]) for i, due in enumerate(due_ms))

    def _send(
        self, target: str, due_ms: Sequence[int], begin_ms: int, bridge: BridgeProcess
    ) -> tuple[tuple[Span, ...], bool]:
        """Where the requests stand, and whether all were taken in before the first is due."""
        spans = send_all(self._servers, TIMER_TOPIC, self._timers(target, due_ms))
        return spans, self._await_intake(spans, (begin_ms - _now_ms()) / 1000, bridge)

    def _await_intake(self, spans: Sequence[Span], timeout_s: float, bridge: BridgeProcess) -> bool:
        until_s = time.monotonic() + timeout_s
        while self._left(spans):
            bridge.demand_alive()
            if time.monotonic() > until_s:
                return False
            time.sleep(0.05)
        return True

    def _left(self, spans: Sequence[Span]) -> int:
        """Requests behind the bridge's progress."""
        reached = self._admin.committed(GROUP, TIMER_TOPIC)
        return sum(max(span.end - max(reached.get(span.partition, 0), span.begin), 0) for span in spans)

    def _await_quiet(self, topic: str, due_ms: int, bridge: BridgeProcess) -> None:
        """Until nothing has been committed to `topic` for a while."""
        time.sleep(max(0.0, (due_ms - _now_ms()) / 1000))
        ends, since_s, give_up_s = self._admin.ends(topic), time.monotonic(), time.monotonic() + _GIVE_UP_S
        while time.monotonic() < min(since_s + _QUIET_S, give_up_s):
            bridge.demand_alive()
            time.sleep(0.2)
            found = self._admin.ends(topic)
            if found != ends or not sum(found.values()):
                ends, since_s = found, time.monotonic()

    def _receive(
        self, topic: str, spans: Sequence[Span], last_due_ms: int, bridge: BridgeProcess, *, without: int = 0
    ) -> list[Delivery]:
        """All but `without` of them, and what still comes within the quiet time behind the last: duplicates."""
        seen, deliveries = Seen(spans), list[Delivery]()
        give_up_ms = last_due_ms + _GIVE_UP_S * 1000
        with Receiver(self._servers, [topic]) as receiver:
            while len(deliveries) < seen.expected - without or seen.lost > without:
                if _now_ms() > give_up_ms:
                    return deliveries
                bridge.demand_alive()
                came = receiver.poll(0.5)
                deliveries += came
                for delivery in came:
                    seen.note(delivery.origin)
            while came := receiver.poll(_QUIET_S):
                deliveries += came
        return deliveries


def _drain_per_s(deliveries: Sequence[Delivery]) -> float:
    """From the first to the last, by the broker's clock."""
    appended_ms = [delivery.appended_ms for delivery in deliveries]
    return len(deliveries) * 1000 / max(max(appended_ms) - min(appended_ms), 1) if deliveries else 0.0


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _own_s() -> float:
    times = os.times()
    return times.user + times.system
