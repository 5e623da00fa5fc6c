"""Scenarios of the bench, one function each. Each returns its numbers by name.

burst     N timers, due at one instant: drain                  sent and taken in before
intake    N requests that wait when the bridge starts          none of them due soon
steady    a fixed rate, each timer due a little later          in and out at once
plain     transactions as many and as small, without a bridge  with the records of a steady load
idle      nothing to do: CPU
pending   many timers that stay: memory, disk, starts          and what a burst costs among them

Lateness is by the broker's clock.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from bridge.kafka.client_config import PRODUCER
from kafka_timer import headers as names
from scripts.bench.topic_fixture import AN_HOUR_MS, GIVE_UP_S, TopicFixture, sent_in_s, sleep_until
from scripts.common.delivery_figures import DeliveryAccount, late_ms, lateness
from scripts.common.kafka_io import QUIET, Delivery, OffsetRange, TimerRequest, kafka_errors, named_timer, now_ms, timer
from scripts.common.processes import BridgeProcess

Measured = Mapping[str, object]
"""Numbers by name. A value may also be a mapping or a NamedTuple of numbers."""
Flat = dict[str, float]
WARM_UP = 20_000
WARM_UP_RATES = (2_000, 30_000)
STEADY_DELAY_MS = 2_000
SETTLE_S = 10.0
"""Time from ready to idle."""
FEW_PENDING = 10_000
_LEAST_RATE_MS = 2_000
"""Shorter times show the transactions, not the rate."""
_PLAIN = "plain"
"""Topic in the origins of records that no bridge sends."""
_SEED = 43
_INTAKE_S = 900.0
_START_S = 600.0


def flat(measured: Measured) -> Flat:
    """Return the numbers by name, with a dot for each level: {"burst.account.lost": 0.0}."""
    found: Flat = {}
    for name, value in measured.items():
        if isinstance(value, int | float):
            found[name] = float(value)
        else:
            inner = value if isinstance(value, Mapping) else value._asdict()  # type: ignore[attr-defined]
            found |= {f"{name}.{part}": number for part, number in flat(inner).items()}
    return found


def warm_up(topics: TopicFixture, bridge: BridgeProcess, seconds: float) -> None:
    """Warm up the broker: a new one uses a core for half a minute to compile itself."""
    begin_ms = now_ms() + 3_000 + WARM_UP // 20
    due_ms = begin_ms + np.random.default_rng(_SEED).permutation(WARM_UP) * 5_000 // WARM_UP
    topics.send_in_time(topics.timers(topics.target("warm-up"), due_ms.tolist()), begin_ms, bridge)
    sleep_until(begin_ms + 5_000)
    for per_s in WARM_UP_RATES:
        steady(topics, bridge, per_s, seconds)


def burst(topics: TopicFixture, bridge: BridgeProcess) -> Measured:
    """Measure a burst. No consumer runs meanwhile."""
    before_s, count, target = bridge.usage().cpu_s, topics.sizes.messages, topics.target("burst")
    due_ms = now_ms() + topics.sizes.head_start_ms
    spans = topics.send_in_time(topics.timers(target, [due_ms] * count), due_ms, bridge)
    topics.await_quiet(target, due_ms, bridge.demand_alive)  # a consumer would take the CPU that is measured
    cpu_s = bridge.usage().cpu_s - before_s
    found = burst_of(topics.receive([target], spans, due_ms, bridge.demand_alive), spans)
    return found | {"cpu_us": cpu_s * 1e6 / count}


def burst_of(deliveries: Sequence[Delivery], spans: Sequence[OffsetRange]) -> dict[str, object]:
    """Return the numbers of a burst, by the broker's clock.

    `drain_per_s` is from the first to the last delivery, `from_due_per_s` from the due time to the last. The former
    says little of few transactions, as most is done before the first one is committed.
    """
    last_ms = max(late_ms(deliveries).tolist(), default=0)
    counted = DeliveryAccount(spans, deliveries).counts()
    return {
        "drain_per_s": _per_s(deliveries),
        "from_due_per_s": (counted.requested - counted.lost) * 1000 / max(last_ms, 1),
        "account": counted,
    }


def _per_s(deliveries: Sequence[Delivery]) -> float:
    """Return the rate from the first to the last delivery."""
    appended_ms = [delivery.appended_ms for delivery in deliveries] or [0]
    return len(deliveries) * 1000 / max(max(appended_ms) - min(appended_ms), 1)


def intake(topics: TopicFixture, folder: Path) -> Measured:
    """Measure from ready (or the first committed offset after it) until progress reaches the end.

    Twice the messages, because progress without deliveries is committed each 200 ms only.
    """
    count = 2 * topics.sizes.messages
    spans = topics.send(topics.timers(topics.target("far"), [now_ms() + AN_HOUR_MS] * count))
    with topics.bridge(folder) as bridge:
        begin_s, left = time.perf_counter(), topics.left(spans)
        topics.await_intake(spans, GIVE_UP_S, bridge)
        return {"per_s": left / (time.perf_counter() - begin_s)}


def steady(
    topics: TopicFixture, bridge: BridgeProcess, per_s: int, seconds: float, targets: Sequence[str] = ()
) -> Measured:
    """Measure a steady load. The sender is a separate process, so that it keeps its rate."""
    targets, begin_ms = targets or [topics.target(f"steady-{per_s}")], now_ms()
    before_s, transactions = bridge.usage().cpu_s, bridge.transactions()
    broker_s, begins = topics.broker_cpu_s(), topics.admin.ends(topics.timer_topic)
    sender = topics.sender(targets, per_s, seconds, STEADY_DELAY_MS, log := bridge.log_path)
    took_s = sent_in_s(sender, 2 * seconds + 60, log)
    sent_ms, spans = now_ms(), topics.admin.ranges_since(topics.timer_topic, begins)
    topics.await_quiet(targets[0], sent_ms + STEADY_DELAY_MS, bridge.demand_alive)
    cpu_s, broker_s = bridge.usage().cpu_s - before_s, topics.broker_cpu_s() - broker_s
    transactions = bridge.transactions() - transactions
    deliveries = topics.receive(targets, spans, sent_ms + STEADY_DELAY_MS, bridge.demand_alive)
    own = [delivery for delivery in deliveries if delivery.due_ms >= begin_ms]  # targets may have been used before
    each_us = 1e6 / sum(map(len, spans))
    costs = {"transactions": transactions, "cpu_us": cpu_s * each_us, "broker_us": broker_s * each_us}
    costs["total_us"] = (cpu_s + broker_s) * each_us
    return steady_of(took_s, sent_ms, own, spans) | costs


def steady_of(
    took_s: float, sent_ms: int, deliveries: Sequence[Delivery], spans: Sequence[OffsetRange]
) -> dict[str, object]:
    """Return the numbers of a load that was sent in `took_s`, until `sent_ms`.

    `out_per_s` is while others were still sent, or of all if that was short.
    """
    early_ms = [each.appended_ms for each in deliveries if each.appended_ms < sent_ms]
    span_ms = sent_ms - min(early_ms, default=sent_ms)
    counted = DeliveryAccount(spans, deliveries).counts()
    return {
        "sent_per_s": counted.requested / took_s,
        "out_per_s": _per_s(deliveries) if span_ms < _LEAST_RATE_MS else len(early_ms) * 1000 / span_ms,
        "late": lateness(late_ms(deliveries)),
        "account": counted,
    }


def plain(
    topics: TopicFixture, per_s: int, load: Measured, seconds: float, targets: Sequence[str] = (), partitions: int = 0
) -> Measured:
    """Measure transactions as many and as small as those of a steady `load`, without a bridge. `cpu_us`: a record.

        begin -> produce -> acknowledged -> offsets -> commit        two producers in turn, at a pace
        |<------ acknowledged ----->|

    It is the limit that the bridge is measured against, in lateness and CPU. A transaction begins as soon as as many
    records are due as in those of the load, and takes all that are. `acknowledged` and `cpu_us` leave out the first
    half, a warm-up: its producers are new.
    """
    targets, partitions = targets or [topics.target(f"plain-{per_s}")], partitions or topics.sizes.partitions
    of, count, broker_s = flat(load), round(per_s * seconds), topics.broker_cpu_s()
    records, value = max(1, round(of["account.requested"] / max(of["transactions"], 1.0))), topics.body(0)
    acknowledged_ms, cpu_s, ends = list[float](), list[float](), list[int]()
    with kafka_errors("plain transactions could not go on"), _plain_senders(topics.servers) as (producers, group):
        begin_ms, begin_s, sent = now_ms(), time.perf_counter(), 0
        while sent < count:
            due = min(count, int((time.perf_counter() - begin_s) * per_s) + 1)
            if due < min(sent + records, count):
                time.sleep((sent + records - due) / per_s)
                continue
            producer, since_s = producers[len(ends) % 2], time.perf_counter()
            producer.begin_transaction()
            for number in range(sent, due):
                headers = [  # those of a delivery
                    (names.ORIGIN, b"%s/0/%d" % (_PLAIN.encode(), number)),
                    (names.DELIVER_MS, b"%d" % (begin_ms + number * 1000 // per_s)),
                ]
                partition = number // len(targets) % partitions
                producer.produce(targets[number % len(targets)], value, partition=partition, headers=headers)
            producer.flush(GIVE_UP_S)
            acknowledged_ms.append((time.perf_counter() - since_s) * 1000)
            producer.send_offsets_to_transaction([TopicPartition(targets[0], 0, due)], group, GIVE_UP_S)
            producer.commit_transaction(GIVE_UP_S)
            cpu_s.append(time.process_time())
            ends.append(sent := due)
    broker_s, half, spans = topics.broker_cpu_s() - broker_s, len(ends) // 2, [OffsetRange(_PLAIN, 0, 0, count)]
    deliveries = topics.receive(targets, spans, now_ms(), lambda: None)
    own = [delivery for delivery in deliveries if delivery.due_ms >= begin_ms]
    return {
        "records": records,
        "cpu_us": (cpu_s[-1] - cpu_s[half]) * 1e6 / (count - ends[half]),
        "acknowledged": lateness(np.array(acknowledged_ms[half:]).round().astype(np.int64)),
        "late": lateness(late_ms(own)),
        "account": DeliveryAccount(spans, own).counts(),
        "broker_us": broker_s * 1e6 / count,
    }


@contextmanager
def _plain_senders(servers: str) -> Iterator[tuple[list[Any], Any]]:
    name, shared = f"plain-{uuid4().hex[:8]}", {"bootstrap.servers": servers, **QUIET}
    producers = [Producer({**PRODUCER, **shared, "transactional.id": f"{name}-{number}"}) for number in range(2)]
    for producer in producers:
        producer.init_transactions(GIVE_UP_S)
    with closing(Consumer({**shared, "group.id": name})) as consumer:
        yield producers, consumer.consumer_group_metadata()


def idle(topics: TopicFixture, folder: Path, seconds: float) -> Measured:
    """Measure the CPU of a bridge without timers, as a share of a core in percent."""
    with topics.bridge(folder) as bridge:
        time.sleep(SETTLE_S)
        before_s, begin_s = bridge.usage().cpu_s, time.perf_counter()
        time.sleep(seconds)
        return {"cpu_percent": 100 * (bridge.usage().cpu_s - before_s) / (time.perf_counter() - begin_s)}


def pending(topics: TopicFixture, folder: Path, timers: int, seconds: float, tries: int) -> Sequence[Measured]:
    """Measure what pending timers cost. Half of them have ids; all are due within a roll window, none soon.

    Each try has a burst among FEW_PENDING (`burst_before`) and one among all, the first try also the rest. Starts are
    from the launch to the ready line: after SIGTERM, after SIGKILL, without the stores; the instance id stays, so that
    no start waits for a former session.
    """
    rng, begin_ms = np.random.default_rng(_SEED), now_ms() + 2 * AN_HOUR_MS
    after_ms = rng.integers(0, 40 * AN_HOUR_MS, timers)
    target = topics.target("far")

    def request(number: int) -> TimerRequest:
        due_ms, body = begin_ms + int(after_ms[number]), topics.body(number)
        return named_timer(target, due_ms, body, b"id-%d" % number) if number % 2 else timer(target, due_ms, body)

    each: list[dict[str, object]] = [{} for _ in range(tries)]
    found = each[0]
    with topics.bridge(folder) as bridge:
        warm_up(topics, bridge, seconds)
        topics.await_intake(topics.send(map(request, range(FEW_PENDING))), GIVE_UP_S, bridge)
        for one in each:
            one["burst_before"] = burst(topics, bridge)
        found["rss_empty_mb"] = bridge.usage().rss_mb
        topics.await_intake(topics.send(map(request, range(FEW_PENDING, timers))), _INTAKE_S, bridge)
        for one in each:
            one["burst"] = burst(topics, bridge)
        found["rss_mb"], found["disk_mb"] = bridge.usage().rss_mb, bridge.disk_mb()
        bridge.stop(timeout_s=_START_S)
        found["ready_after_stop_s"] = _start_s(bridge)
        bridge.kill()
        found["ready_after_kill_s"] = _start_s(bridge)
        bridge.stop(timeout_s=_START_S)
        shutil.rmtree(bridge.data_dir / topics.timer_topic)
        found["ready_after_loss_s"] = _start_s(bridge)
    return each


def _start_s(bridge: BridgeProcess) -> float:
    begin_s = time.perf_counter()
    bridge.start(timeout_s=_START_S)
    return time.perf_counter() - begin_s
