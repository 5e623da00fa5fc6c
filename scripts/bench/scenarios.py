"""Scenarios of the bench, one function each. Each returns its numbers by name.

copy      the plain transactional loop: a reference            copy-in -> copy-out
burst     N timers, due at one instant: drain                  sent and taken in before
intake    N requests that wait when the bridge starts          none of them due soon
steady    a fixed rate, each timer due a little later          in and out at once
small     transactions as many and as small, without a bridge  as those of a steady load
idle      nothing to do: CPU
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
from scripts.bench.measurements import CpuCost, Measured, flat
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
    copy_loop,
    named_timer,
    send_all,
    timer,
)
from scripts.common.processes import BridgeProcess

TRANSACTION_SIZE = 2_000
WARM_UP = 20_000
WARM_UP_RATES = (2_000, 30_000)
"""Other rates than the measured ones, as each rate has a target of its own."""
LIVE_UP_TO_PER_S = 1_000
"""Above this rate a Python consumer would use the CPU that is measured: it reads afterwards."""
STEADY_DELAY_MS = 2_000
SETTLE_S = 10.0
"""Time from ready to idle."""
FEW_PENDING = 10_000
LOOKED_UP = 1_000
PAGE = ("--page", "true")
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


def burst(
    topics: TopicFixture,
    bridges: Sequence[BridgeProcess],
    when_taken_in: Callable[[], None] = lambda: None,
) -> Measured:
    """Measure a burst by all of the bridges together. No consumer runs meanwhile."""
    meter, count, target = Meter(*bridges), topics.sizes.messages, topics.target("burst")
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
        "account": counted,
        "cost": cost,
    }


def await_even(bridges: Sequence[BridgeProcess], partitions: int) -> None:
    """Wait until all own the same number of partitions: an instance or worker with more would end last."""
    until_s = time.monotonic() + GIVE_UP_S
    while (
        len(set(owned := [count for bridge in bridges for count in bridge.partitions()])) > 1 or sum(owned) < partitions
    ):
        if time.monotonic() > until_s:
            raise BridgeError(f"{partitions} partitions are not shared evenly: {owned}")
        time.sleep(0.5)


def intake(topics: TopicFixture, folder: Path) -> Measured:
    """Measure from ready (or the first committed offset after it) until progress reaches the end.

    Twice the messages, because progress without deliveries is committed each 200 ms only.
    """
    count = 2 * topics.sizes.messages
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


def small(topics: TopicFixture, per_s: int, load: Measured, seconds: float) -> Measured:
    """Measure transactions as many and as small as those of a steady `load`; nothing is read. `cpu_us`: a record.

    Times are since the begin. The first half is a warm-up: its producers and its topic are new.
    """
    of = flat(load)
    records = max(1, round(of["account.requested"] / max(of["cost.transactions"], 1.0)))
    times = small_transactions(
        topics.servers,
        topics.target(f"small-{per_s}"),
        partitions=topics.sizes.partitions,
        values=[topics.body(number) for number in range(records)],
        pace_s=records / per_s,
        seconds=seconds,
    )
    half = len(times.cpu_s) // 2
    spent_s = times.cpu_s[-1] - times.cpu_s[half]
    return {
        "records": records,
        "cpu_us": spent_s * 1e6 / (len(times.cpu_s) - 1 - half) / records,
        "acknowledged": lateness(np.array(times.acknowledged_ms[half:]).round().astype(np.int64)),
    }


def idle(topics: TopicFixture, folder: Path, seconds: float) -> Measured:
    """Measure the CPU of a bridge without timers, as a share of a core in percent."""
    with topics.bridge(folder) as bridge:
        time.sleep(SETTLE_S)
        meter, begin_s = Meter(bridge), time.perf_counter()
        time.sleep(seconds)
        return {"cpu_percent": 100 * meter.read().cpu_s / (time.perf_counter() - begin_s)}


def pending(topics: TopicFixture, folder: Path, timers: int, seconds: float, tries: int) -> Sequence[Measured]:
    """Measure what pending timers cost. Half of them have ids; all are due within a roll window, none soon.

    Each try has a burst among FEW_PENDING (`burst_before`) and one among all, the first try also the rest. Starts are
    from the launch to the ready line: after SIGTERM, after SIGKILL, without the stores; the instance id stays, so that
    no start waits for a former session. A look-up is of one timer by its id, with its value, over HTTP.
    """
    rng, begin_ms = np.random.default_rng(SEED), now_ms() + 2 * AN_HOUR_MS
    after_ms = rng.integers(0, 40 * AN_HOUR_MS, timers)
    target = topics.target("far")

    def request(number: int) -> TimerRequest:
        due_ms, body = begin_ms + int(after_ms[number]), topics.body(number)
        return named_timer(target, due_ms, body, b"id-%d" % number) if number % 2 else timer(target, due_ms, body)

    each: list[dict[str, object]] = [{} for _ in range(tries)]
    found = each[0]
    found["timers"] = timers
    with topics.bridge(folder, PAGE) as bridge:
        warm_up(topics, bridge, seconds)
        topics.await_intake(topics.send(map(request, range(FEW_PENDING))), GIVE_UP_S, bridge)
        for one in each:
            one["burst_before"] = burst(topics, [bridge])
        found["rss_empty_mb"], found["disk_empty_mb"] = bridge.usage().rss_mb, bridge.disk_mb()
        begin_s = time.perf_counter()
        topics.await_intake(topics.send(map(request, range(FEW_PENDING, timers))), _INTAKE_S, bridge)
        found["taken_in_per_s"] = (timers - FEW_PENDING) / (time.perf_counter() - begin_s)
        for one in each:
            one["burst"] = burst(topics, [bridge])
        found["rss_mb"], found["disk_mb"] = bridge.usage().rss_mb, bridge.disk_mb()
        found["look_up_p99_ms"] = _look_up_p99_ms(bridge, timers)
        bridge.stop(timeout_s=_START_S)
        found["ready_after_stop_s"] = _start_s(bridge)
        bridge.kill()
        found["ready_after_kill_s"] = _start_s(bridge)
        bridge.stop(timeout_s=_START_S)
        shutil.rmtree(bridge.data_dir / topics.timer_topic)
        found["ready_after_loss_s"] = _start_s(bridge)
    return each


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
