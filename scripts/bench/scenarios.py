"""Scenarios of the bench, one per function.

copy      the plain transactional loop: the limit              copy-in -> copy-out
spread    N timers, due evenly over some seconds: lateness     sent and taken in before the first is due
burst     N timers, due at one instant: drain                  sent and taken in before
named     as burst, half of them with ids, 10 % of N cancels   sent and taken in before
intake    N requests that wait when the bridge starts          none of them due soon
steady    so many a second, each due a little later            in and out at once
small     transactions as small, and no bridge: the limit      what falls due at that rate between two turns
outage    N timers, due at one instant, and no bridge          killed 1 s before, started when all are due
pending   many timers that stay: memory, disk, starts          and what a burst costs among them
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bridge.errors import BridgeError
from bridge.kafka.poll_pacing import POLL_INTERVAL_S
from scripts.bench.measurements import (
    NO_COST,
    Burst,
    Copy,
    CpuCost,
    IdFigures,
    IntakeFigures,
    Outage,
    PendingFigures,
    Small,
    Spread,
    Steady,
)
from scripts.bench.small_transactions import small_transactions
from scripts.bench.topic_fixture import (
    AN_HOUR_MS,
    GIVE_UP_S,
    SEED,
    Meter,
    TopicFixture,
    drain_per_s,
    now_ms,
    out_per_s,
    seconds_of,
    sleep_until,
)
from scripts.common import delivery_figures as figures
from scripts.common import processes
from scripts.common.kafka_io import (
    Delivery,
    OffsetRange,
    Receiver,
    TimerRequest,
    cancel,
    copy_loop,
    named_timer,
    send_all,
    timer,
)
from scripts.common.processes import BridgeProcess

CANCEL_EACH = 10
"""Every 10th timer is cancelled; every second one has an id."""
TRANSACTION_SIZE = 2_000
WARM_UP = 20_000
LIVE_UP_TO_PER_S = 1_000
"""Above this rate a Python consumer would use the CPU that is measured: it reads afterwards."""
STEADY_DELAY_MS = 2_000
OUTAGE_S = 3.0
"""Time from the due time to the start."""
KILLED_BEFORE_MS = 1_000
_GATHER_S = 900.0
LOOKED_UP = 1_000
PAGE = ("--page", "true")
STATIC = ("--static-membership", "true")
_START_S = 600.0


def copy(stage: TopicFixture) -> Copy:
    """Measure, after a run that warms up the broker."""
    count, source, target = stage.sizes.messages, stage.target("copy-in"), stage.target("copy-out")
    send_all(stage.servers, source, stage.timers(target, [now_ms() + AN_HOUR_MS] * count))
    took = [
        copy_loop(stage.servers, source, target, count=count, transaction_size=TRANSACTION_SIZE)
        for _ in ("warm up", "measure")
    ][-1]
    return Copy(count / took.elapsed_s, took.cpu_s * 1e6 / count)


def warm_up(stage: TopicFixture, bridge: BridgeProcess, messages: int, over_s: float) -> None:
    """Warm up the broker: its first thousands of transactions are slow."""
    due_ms = stage.dues_ms(messages, over_s, now_ms() + 3_000 + messages // 20)
    stage.send_in_time(stage.timers(stage.target("warm-up"), due_ms.tolist()), int(due_ms.min()), bridge)
    sleep_until(int(due_ms.max()))


def spread(stage: TopicFixture, bridge: BridgeProcess) -> Spread:
    sizes, target = stage.sizes, stage.target("spread")
    meter = Meter(bridge)
    due_ms = stage.dues_ms(sizes.messages, sizes.spread_seconds, now_ms() + sizes.head_start_ms)
    spans = stage.send_in_time(stage.timers(target, due_ms.tolist()), int(due_ms.min()), bridge)
    deliveries = stage.receive(target, spans, int(due_ms.max()), bridge.demand_alive)
    return spread_of(deliveries, spans, meter.read())


def spread_of(deliveries: Sequence[Delivery], spans: Sequence[OffsetRange], cost: CpuCost) -> Spread:
    late, seen_late = figures.late_ms(deliveries), figures.seen_late_ms(deliveries)
    return Spread(figures.lateness(late), figures.lateness(seen_late), figures.account(spans, deliveries), cost)


def burst(
    stage: TopicFixture,
    bridges: Sequence[BridgeProcess],
    use: str = "burst",
    when_taken_in: Callable[[], None] = lambda: None,
) -> Burst:
    """By all of the bridges together, to a target of its own."""
    meters = [Meter(bridge) for bridge in bridges]
    count, target = stage.sizes.messages, stage.target(use)
    due_ms = now_ms() + stage.sizes.head_start_ms
    spans = stage.send_in_time(stage.timers(target, [due_ms] * count), due_ms, bridges[0])
    when_taken_in()
    stage.await_quiet(target, due_ms, bridges[0].demand_alive)  # a consumer would take the CPU that is measured
    cost = sum((meter.read() for meter in meters), NO_COST)
    return burst_of(stage.receive(target, spans, due_ms, bridges[0].demand_alive), spans, cost)


def await_even(bridges: Sequence[BridgeProcess], partitions: int) -> None:
    """Wait until all instances own the same number of partitions: one with more would decide the last delivery."""
    until_s = time.monotonic() + GIVE_UP_S
    while {bridge.partitions() for bridge in bridges} != {partitions // len(bridges)}:
        if time.monotonic() > until_s:
            raise BridgeError(f"{len(bridges)} instances do not share {partitions} partitions evenly")
        time.sleep(0.5)


def burst_of(deliveries: Sequence[Delivery], spans: Sequence[OffsetRange], cost: CpuCost) -> Burst:
    late_ms = figures.late_ms(deliveries)
    first_ms, last_ms = (int(late_ms.min()), int(late_ms.max())) if len(late_ms) else (0, 0)
    account = figures.account(spans, deliveries)
    from_due_per_s = (account.requested - account.lost) * 1000 / max(last_ms, 1)
    return Burst(drain_per_s(deliveries), from_due_per_s, first_ms, last_ms, account, cost)


def named(stage: TopicFixture, bridge: BridgeProcess) -> IdFigures:
    """Cancelled timers have a target of their own, where nothing may arrive."""
    meter, count = Meter(bridge), stage.sizes.messages
    target, elsewhere = stage.target("named"), stage.target("cancelled")
    due_ms = now_ms() + stage.sizes.head_start_ms

    def request(number: int) -> TimerRequest:
        if number % 2:
            return timer(target, due_ms, stage.body(number))
        where = elsewhere if number % CANCEL_EACH == 0 else target
        return named_timer(where, due_ms, stage.body(number), b"id-%d" % number)

    spans = stage.send(map(request, range(count)))
    cancels = (cancel(b"id-%d" % number) for number in range(0, count, CANCEL_EACH))
    stage.send_in_time(cancels, due_ms, bridge)
    stage.await_quiet(target, due_ms, bridge.demand_alive)
    cost = meter.read()
    cancelled = len(range(0, count, CANCEL_EACH))
    deliveries = stage.receive(target, spans, due_ms, bridge.demand_alive, without=cancelled)
    account = figures.account(spans, deliveries)
    return IdFigures(
        drain_per_s(deliveries),
        account._replace(requested=count - cancelled, lost=account.lost - cancelled),
        cancelled,
        sum(stage.admin.ends(elsewhere).values()),
        cost,
    )


def intake(stage: TopicFixture, folder: Path) -> IntakeFigures:
    """Measure from ready (or the first committed offset after it) until progress reaches the end."""
    count = stage.sizes.messages
    spans = stage.send(stage.timers(stage.target("far"), [now_ms() + AN_HOUR_MS] * count))
    with stage.bridge(folder) as bridge:
        meter, begin_s, left = Meter(bridge), time.perf_counter(), stage.left(spans)
        stage.demand_intake(spans, GIVE_UP_S, bridge)
        return IntakeFigures(left / (time.perf_counter() - begin_s), left, meter.read())


def steady(stage: TopicFixture, bridge: BridgeProcess, broker_pid: int, per_s: int, seconds: float) -> Steady:
    """Measure a steady load. The sender is a separate process, so that it keeps its rate."""
    target = stage.target(f"steady-{per_s}")
    meter, broker, begins = Meter(bridge), processes.usage(broker_pid), stage.admin.ends(stage.timer_topic)
    deliveries, live = list[Delivery](), per_s <= LIVE_UP_TO_PER_S
    with stage.sender(target, per_s, seconds, STEADY_DELAY_MS, bridge.log_path) as sender, ExitStack() as ends:
        receiver = ends.enter_context(Receiver(stage.servers, [target])) if live else None
        while receiver is not None and sender.poll() is None:
            deliveries += receiver.poll(0.1)
        took_s = seconds_of(sender)
        sent_ms, places = now_ms(), stage.admin.ends(stage.timer_topic)
        spans = [OffsetRange(stage.timer_topic, number, begins[number], end) for number, end in places.items()]
        if receiver is None:
            stage.await_quiet(target, sent_ms + STEADY_DELAY_MS, bridge.demand_alive)
            receiver = ends.enter_context(Receiver(stage.servers, [target]))
        stage.collect(receiver, deliveries, spans, sent_ms + STEADY_DELAY_MS, bridge.demand_alive)
    broker_cpu_s = processes.usage(broker_pid).cpu_s - broker.cpu_s
    return steady_of(per_s, took_s, sent_ms, deliveries, spans, meter.read(), broker_cpu_s)


def steady_of(
    per_s: int,
    took_s: float,
    sent_ms: int,
    deliveries: Sequence[Delivery],
    spans: Sequence[OffsetRange],
    cost: CpuCost,
    broker_cpu_s: float,
) -> Steady:
    """Sent in `took_s`, until `sent_ms`."""
    account = figures.account(spans, deliveries)
    seen_late_ms = figures.seen_late_ms(deliveries if per_s <= LIVE_UP_TO_PER_S else [])
    return Steady(
        per_s,
        account.requested / took_s,
        out_per_s(deliveries, sent_ms),
        figures.lateness(figures.late_ms(deliveries)),
        figures.lateness(seen_late_ms),
        account,
        cost,
        broker_cpu_s,
    )


def small(stage: TopicFixture, per_s: int, seconds: float) -> Small:
    """The second half of it: its producers and its topic are new."""
    pace_s, sizes = POLL_INTERVAL_S["exactly-once"], stage.sizes
    values = [stage.body(number) for number in range(int(per_s * pace_s))]
    topic = stage.target(f"small-{per_s}")
    times = small_transactions(
        stage.servers, topic, partitions=sizes.partitions, values=values, pace_s=pace_s, seconds=seconds
    )
    half = len(times.committed_ms) // 2
    records = (len(times.cpu_s) - 1 - half) * len(values)
    return Small(
        len(values),
        (times.cpu_s[-1] - times.cpu_s[half]) * 1e6 / records,
        figures.lateness(np.array(times.acknowledged_ms[half:]).round().astype(np.int64)),
        figures.lateness(np.array(times.committed_ms[half:]).round().astype(np.int64)),
    )


def outage(stage: TopicFixture, folder: Path, warm_up: Callable[[BridgeProcess], None]) -> Outage:
    target = stage.target("outage")
    with stage.bridge(folder) as bridge:
        warm_up(bridge)
        due_ms = now_ms() + stage.sizes.head_start_ms
        spans = stage.send(stage.timers(target, [due_ms] * stage.sizes.messages))
        stage.demand_intake(spans, (due_ms - KILLED_BEFORE_MS - now_ms()) / 1000, bridge)
        sleep_until(due_ms - KILLED_BEFORE_MS)
        bridge.kill()
        sleep_until(due_ms + int(OUTAGE_S * 1000))
        begin_ms = now_ms()
        bridge.start()
        ready_s = (now_ms() - begin_ms) / 1000
        stage.await_quiet(target, due_ms, bridge.demand_alive)
        deliveries = stage.receive(target, spans, now_ms(), bridge.demand_alive)
    return outage_of(begin_ms, ready_s, deliveries, spans)


def outage_of(begin_ms: int, ready_s: float, deliveries: Sequence[Delivery], spans: Sequence[OffsetRange]) -> Outage:
    """Measure the start without earlier deliveries."""
    behind = [delivery for delivery in deliveries if delivery.appended_ms >= begin_ms]
    last_ms = max((delivery.appended_ms for delivery in behind), default=begin_ms)
    per_s = len({delivery.origin for delivery in behind}) * 1000 / max(last_ms - begin_ms, 1)
    return Outage(ready_s, per_s, drain_per_s(deliveries), figures.account(spans, deliveries))


def pending(stage: TopicFixture, folder: Path, timers: int, warm_up: Callable[[BridgeProcess], None]) -> PendingFigures:
    """Half of them have ids; all are due within a roll window, none soon. One burst without them, one among them."""
    rng, begin_ms = np.random.default_rng(SEED), now_ms() + 2 * AN_HOUR_MS
    after_ms = rng.integers(0, 40 * AN_HOUR_MS, timers)
    target = stage.target("far")

    def request(number: int) -> TimerRequest:
        due_ms, body = begin_ms + int(after_ms[number]), stage.body(number)
        return named_timer(target, due_ms, body, b"id-%d" % number) if number % 2 else timer(target, due_ms, body)

    with stage.bridge(folder, PAGE) as bridge:
        warm_up(bridge)
        alone, empty, disk_empty_mb = burst(stage, [bridge]), bridge.usage(), bridge.disk_mb()
        begin_s = time.perf_counter()
        spans = stage.send(map(request, range(timers)))
        stage.demand_intake(spans, _GATHER_S, bridge)
        taken_in_per_s = timers / (time.perf_counter() - begin_s)
        among, full = burst(stage, [bridge], "burst-among"), bridge.usage()
        disk_mb, look_up_p99_ms = bridge.disk_mb(), _look_up_p99_ms(bridge, timers)
        bridge.stop(timeout_s=_START_S)
        after_stop_s = _start_s(bridge)
        bridge.kill()
        after_kill_s = _start_s(bridge)
        bridge.stop(timeout_s=_START_S)
        shutil.rmtree(bridge.data_dir)
        after_loss_s = _start_s(bridge)
    with stage.bridge(folder, (*PAGE, *STATIC)) as bridge:  # last, as its stop does not leave the group
        bridge.kill()
        after_kill_static_s = _start_s(bridge)
    starts = after_stop_s, after_kill_s, after_kill_static_s, after_loss_s
    sizes = empty.rss_mb, full.rss_mb, disk_empty_mb, disk_mb
    return PendingFigures(timers, taken_in_per_s, *sizes, alone, among, look_up_p99_ms, *starts)


def _look_up_p99_ms(bridge: BridgeProcess, timers: int) -> float:
    """Look up timers by id, with bodies, over HTTP, one after another."""
    took_ms = []
    for number in range(1, timers, max(2, timers // LOOKED_UP // 2 * 2)):
        begin_s = time.perf_counter()
        found = json.loads(bridge.get(f"/api/v1/timer?id=id-{number}&value=true"))
        took_ms.append((time.perf_counter() - begin_s) * 1000)
        if len(found["timers"]) != 1:
            raise BridgeError(f"id-{number} is pending, but the look-up says {found}")
    return float(np.percentile(took_ms, 99))


def _start_s(bridge: BridgeProcess) -> float:
    begin_s = time.perf_counter()
    bridge.start(timeout_s=_START_S)
    return time.perf_counter() - begin_s
