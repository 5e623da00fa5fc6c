"""Scenarios of the bench, one function each. Each returns its numbers by name.

copy      the plain transactional loop: the limit              copy-in -> copy-out
spread    N timers, due evenly over some seconds: lateness     sent and taken in before the first is due
burst     N timers, due at one instant: drain                  sent and taken in before
named     as burst, half of them with ids, 10 % of N cancels   sent and taken in before
intake    N requests that wait when the bridge starts          none of them due soon
steady    a fixed rate, each timer due a little later          in and out at once
small     transactions as small, without a bridge: the limit   what falls due at that rate between two turns
outage    N timers, due at one instant, and no bridge          killed 1 s before, started when all are due
pending   many timers that stay: memory, disk, starts          and what a burst costs among them

Lateness (`late`) is by the broker's clock, `seen_late` by the consumer's.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bridge.errors import BridgeError
from bridge.kafka.consumer import POLL_INTERVAL_S
from scripts.bench.measurements import CpuCost, Measured
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
from scripts.common.delivery_figures import account, late_ms, lateness, seen_late_ms
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
WARM_UP_RATES = (2_000, 30_000)
"""None of those that are measured, as each has a target of its own."""
LIVE_UP_TO_PER_S = 1_000
"""Above this rate a Python consumer would use the CPU that is measured: it reads afterwards."""
STEADY_DELAY_MS = 2_000
OUTAGE_S = 3.0
"""Time from the due time to the start."""
KILLED_BEFORE_MS = 1_000
LOOKED_UP = 1_000
PAGE = ("--page", "true")
STATIC = ("--static-membership", "true")
_INTAKE_S = 900.0
_START_S = 600.0


def copy(topics: TopicFixture) -> Measured:
    """Measure the copy loop, after a run that warms up the broker. `cpu_us`: per record, with librdkafka's threads."""
    count, source, target = topics.sizes.messages, topics.target("copy-in"), topics.target("copy-out")
    send_all(topics.servers, source, topics.timers(target, [now_ms() + AN_HOUR_MS] * count))
    copy_loop(topics.servers, source, target, count=count, transaction_size=TRANSACTION_SIZE)
    took = copy_loop(topics.servers, source, target, count=count, transaction_size=TRANSACTION_SIZE)
    return {"per_s": count / took.elapsed_s, "cpu_us": took.cpu_s * 1e6 / count}


def warm_up(topics: TopicFixture, bridge: BridgeProcess, seconds: float) -> None:
    """Warm up the broker: a new one uses a core for half a minute to compile itself."""
    due_ms = topics.dues_ms(WARM_UP, 5.0, now_ms() + 3_000 + WARM_UP // 20)
    topics.send_in_time(topics.timers(topics.target("warm-up"), due_ms.tolist()), int(due_ms.min()), bridge)
    sleep_until(int(due_ms.max()))
    for per_s in WARM_UP_RATES:
        steady(topics, bridge, per_s, seconds)


def spread(topics: TopicFixture, bridge: BridgeProcess) -> Measured:
    sizes, target, meter = topics.sizes, topics.target("spread"), Meter(bridge)
    due_ms = topics.dues_ms(sizes.messages, sizes.spread_seconds, now_ms() + sizes.head_start_ms)
    spans = topics.send_in_time(topics.timers(target, due_ms.tolist()), int(due_ms.min()), bridge)
    deliveries = topics.receive(target, spans, int(due_ms.max()), bridge.demand_alive)
    return spread_of(deliveries, spans, meter.read())


def spread_of(deliveries: Sequence[Delivery], spans: Sequence[OffsetRange], cost: CpuCost) -> Measured:
    return {
        "late": lateness(late_ms(deliveries)),
        "seen_late": lateness(seen_late_ms(deliveries)),
        "account": account(spans, deliveries),
        "cost": cost,
    }


def burst(
    topics: TopicFixture,
    bridges: Sequence[BridgeProcess],
    use: str = "burst",
    when_taken_in: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a burst to a target of its own, by all of the bridges together. No consumer runs meanwhile."""
    meter, count, target = Meter(*bridges), topics.sizes.messages, topics.target(use)
    due_ms = now_ms() + topics.sizes.head_start_ms
    spans = topics.send_in_time(topics.timers(target, [due_ms] * count), due_ms, bridges[0])
    when_taken_in()
    topics.await_quiet(target, due_ms, bridges[0].demand_alive)  # a consumer would take the CPU that is measured
    cost = meter.read()
    return burst_of(topics.receive(target, spans, due_ms, bridges[0].demand_alive), spans, cost)


def burst_of(deliveries: Sequence[Delivery], spans: Sequence[OffsetRange], cost: CpuCost) -> Measured:
    """Return the numbers of a burst, by the broker's clock.

    `drain_per_s` is from the first to the last delivery, `from_due_per_s` from the due time to the last. The former
    says little of few transactions, as most is done before the first one is committed.
    """
    late = late_ms(deliveries)
    first_ms, last_ms = (int(late.min()), int(late.max())) if len(late) else (0, 0)
    counted = account(spans, deliveries)
    return {
        "drain_per_s": drain_per_s(deliveries),
        "from_due_per_s": (counted.requested - counted.lost) * 1000 / max(last_ms, 1),
        "first_late_ms": first_ms,
        "last_late_ms": last_ms,
        "account": counted,
        "cost": cost,
    }


def await_even(bridges: Sequence[BridgeProcess], partitions: int) -> None:
    """Wait until all instances own the same number of partitions: one with more would decide the last delivery."""
    until_s = time.monotonic() + GIVE_UP_S
    while {bridge.partitions() for bridge in bridges} != {partitions // len(bridges)}:
        if time.monotonic() > until_s:
            raise BridgeError(f"{len(bridges)} instances do not share {partitions} partitions evenly")
        time.sleep(0.5)


def named(topics: TopicFixture, bridge: BridgeProcess) -> Measured:
    """Measure a burst with ids and cancels. `account`: of the timers without a cancel.

    Cancelled timers have a target of their own, where nothing may arrive.
    """
    meter, count = Meter(bridge), topics.sizes.messages
    target, elsewhere = topics.target("named"), topics.target("cancelled")
    due_ms = now_ms() + topics.sizes.head_start_ms

    def request(number: int) -> TimerRequest:
        if number % 2:
            return timer(target, due_ms, topics.body(number))
        where = elsewhere if number % CANCEL_EACH == 0 else target
        return named_timer(where, due_ms, topics.body(number), b"id-%d" % number)

    spans = topics.send(map(request, range(count)))
    cancels = [cancel(b"id-%d" % number) for number in range(0, count, CANCEL_EACH)]
    topics.send_in_time(cancels, due_ms, bridge)
    topics.await_quiet(target, due_ms, bridge.demand_alive)
    cost = meter.read()
    deliveries = topics.receive(target, spans, due_ms, bridge.demand_alive, without=len(cancels))
    counted = account(spans, deliveries)
    return {
        "drain_per_s": drain_per_s(deliveries),
        "account": counted._replace(requested=count - len(cancels), lost=counted.lost - len(cancels)),
        "cancelled": len(cancels),
        "cancelled_but_delivered": sum(topics.admin.ends(elsewhere).values()),
        "cost": cost,
    }


def intake(topics: TopicFixture, folder: Path) -> Measured:
    """Measure from ready (or the first committed offset after it) until progress reaches the end."""
    count = topics.sizes.messages
    spans = topics.send(topics.timers(topics.target("far"), [now_ms() + AN_HOUR_MS] * count))
    with topics.bridge(folder) as bridge:
        meter, begin_s, left = Meter(bridge), time.perf_counter(), topics.left(spans)
        topics.await_intake(spans, GIVE_UP_S, bridge)
        return {"per_s": left / (time.perf_counter() - begin_s), "requests": left, "cost": meter.read()}


def steady(topics: TopicFixture, bridge: BridgeProcess, per_s: int, seconds: float) -> Measured:
    """Measure a steady load. The sender is a separate process, so that it keeps its rate."""
    target = topics.target(f"steady-{per_s}")
    meter, broker_s, begins = Meter(bridge), topics.broker_cpu_s(), topics.admin.ends(topics.timer_topic)
    deliveries, live = list[Delivery](), per_s <= LIVE_UP_TO_PER_S
    with topics.sender(target, per_s, seconds, STEADY_DELAY_MS, bridge.log_path) as sender, ExitStack() as ends:
        receiver = ends.enter_context(Receiver(topics.servers, [target])) if live else None
        while receiver is not None and sender.poll() is None:
            deliveries += receiver.poll(0.1)
        took_s = seconds_of(sender)
        sent_ms, spans = now_ms(), topics.ranges_since(begins)
        last_due_ms = sent_ms + STEADY_DELAY_MS
        if receiver is None:
            topics.await_quiet(target, last_due_ms, bridge.demand_alive)
            receiver = ends.enter_context(Receiver(topics.servers, [target]))
        topics.collect(receiver, deliveries, spans, last_due_ms, bridge.demand_alive)
    broker_s = topics.broker_cpu_s() - broker_s
    return steady_of(per_s, took_s, sent_ms, deliveries, spans, meter.read(), broker_s)


def steady_of(
    per_s: int,
    took_s: float,
    sent_ms: int,
    deliveries: Sequence[Delivery],
    spans: Sequence[OffsetRange],
    cost: CpuCost,
    broker_cpu_s: float,
) -> Measured:
    """Return the numbers of a load that was sent in `took_s`, until `sent_ms`.

    `out_per_s` is while others were still sent. `seen_late` is 0 at rates without a consumer beside the load.
    """
    counted = account(spans, deliveries)
    return {
        "asked_per_s": per_s,
        "sent_per_s": counted.requested / took_s,
        "out_per_s": out_per_s(deliveries, sent_ms),
        "late": lateness(late_ms(deliveries)),
        "seen_late": lateness(seen_late_ms(deliveries if per_s <= LIVE_UP_TO_PER_S else [])),
        "account": counted,
        "cost": cost,
        "broker_cpu_s": broker_cpu_s,
    }


def small(topics: TopicFixture, per_s: int, seconds: float) -> Measured:
    """Measure small transactions, ms since their begin; nothing is read. `cpu_us`: a record, as of `copy`.

    The first half is a warm-up: its producers and its topic are new.
    """
    pace_s, sizes = POLL_INTERVAL_S["exactly-once"], topics.sizes
    values = [topics.body(number) for number in range(int(per_s * pace_s))]
    target = topics.target(f"small-{per_s}")
    times = small_transactions(
        topics.servers, target, partitions=sizes.partitions, values=values, pace_s=pace_s, seconds=seconds
    )
    half = len(times.committed_ms) // 2
    records = (len(times.cpu_s) - 1 - half) * len(values)
    return {
        "records": len(values),
        "cpu_us": (times.cpu_s[-1] - times.cpu_s[half]) * 1e6 / records,
        "acknowledged": lateness(np.array(times.acknowledged_ms[half:]).round().astype(np.int64)),
        "committed": lateness(np.array(times.committed_ms[half:]).round().astype(np.int64)),
    }


def outage(topics: TopicFixture, folder: Path, seconds: float) -> Measured:
    """Measure a bridge that is killed 1 s before its timers are due, and started when all are."""
    target = topics.target("outage")
    with topics.bridge(folder) as bridge:
        warm_up(topics, bridge, seconds)
        due_ms = now_ms() + topics.sizes.head_start_ms
        spans = topics.send_in_time(
            topics.timers(target, [due_ms] * topics.sizes.messages), due_ms - KILLED_BEFORE_MS, bridge
        )
        sleep_until(due_ms - KILLED_BEFORE_MS)
        bridge.kill()
        sleep_until(due_ms + int(OUTAGE_S * 1000))
        begin_ms = now_ms()
        bridge.start()
        ready_s = (now_ms() - begin_ms) / 1000
        topics.await_quiet(target, due_ms, bridge.demand_alive)
        deliveries = topics.receive(target, spans, now_ms(), bridge.demand_alive)
    return outage_of(begin_ms, ready_s, deliveries, spans)


def outage_of(begin_ms: int, ready_s: float, deliveries: Sequence[Delivery], spans: Sequence[OffsetRange]) -> Measured:
    """Return the numbers of a start. `per_s`: from the start to the last delivery, each timer counted once."""
    after = [delivery for delivery in deliveries if delivery.appended_ms >= begin_ms]
    last_ms = max((delivery.appended_ms for delivery in after), default=begin_ms)
    return {
        "ready_s": ready_s,
        "per_s": len({delivery.origin for delivery in after}) * 1000 / max(last_ms - begin_ms, 1),
        "drain_per_s": drain_per_s(deliveries),
        "account": account(spans, deliveries),
    }


def pending(topics: TopicFixture, folder: Path, timers: int, seconds: float) -> Measured:
    """Measure what pending timers cost. Half of them have ids; all are due within a roll window, none soon.

    Starts are from the launch to the ready line: after SIGTERM, after SIGKILL, without the data directory. After a
    SIGKILL the group waits for the dead member's session, unless it has static membership. A look-up is of one timer by
    its id, with its value, over HTTP.
    """
    rng, begin_ms = np.random.default_rng(SEED), now_ms() + 2 * AN_HOUR_MS
    after_ms = rng.integers(0, 40 * AN_HOUR_MS, timers)
    target = topics.target("far")

    def request(number: int) -> TimerRequest:
        due_ms, body = begin_ms + int(after_ms[number]), topics.body(number)
        return named_timer(target, due_ms, body, b"id-%d" % number) if number % 2 else timer(target, due_ms, body)

    found: dict[str, object] = {"timers": timers}
    with topics.bridge(folder, PAGE) as bridge:
        warm_up(topics, bridge, seconds)
        found["burst_before"] = burst(topics, [bridge])
        found["rss_empty_mb"], found["disk_empty_mb"] = bridge.usage().rss_mb, bridge.disk_mb()
        begin_s = time.perf_counter()
        topics.await_intake(topics.send(map(request, range(timers))), _INTAKE_S, bridge)
        found["taken_in_per_s"] = timers / (time.perf_counter() - begin_s)
        found["burst"] = burst(topics, [bridge], "burst-among")
        found["rss_mb"], found["disk_mb"] = bridge.usage().rss_mb, bridge.disk_mb()
        found["look_up_p99_ms"] = _look_up_p99_ms(bridge, timers)
        bridge.stop(timeout_s=_START_S)
        found["ready_after_stop_s"] = _start_s(bridge)
        bridge.kill()
        found["ready_after_kill_s"] = _start_s(bridge)
        bridge.stop(timeout_s=_START_S)
        shutil.rmtree(bridge.data_dir)
        found["ready_after_loss_s"] = _start_s(bridge)
    with topics.bridge(folder, (*PAGE, *STATIC)) as bridge:  # last, as its stop does not leave the group
        bridge.kill()
        found["ready_after_kill_static_s"] = _start_s(bridge)
    return found


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
