"""Kafka's transactions without a bridge: the limits that the bridge is measured against.

copy_loop             consume -> produce -> offsets -> commit        one thread, full transactions: throughput
plain_transactions    begin -> produce -> acknowledged -> offsets -> commit      two producers in turn, at a pace:
                      |<------ acknowledged ----->|                              lateness, CPU
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from bridge.errors import BridgeError
from bridge.kafka.client_config import PRODUCER
from kafka_timer import headers as names
from scripts.common.kafka_io import QUIET, kafka_errors, reader

ORIGINS = "plain"
Headers = list[tuple[str, str | bytes | None]]
_TIMEOUT_S = 60.0


class CopyCost(NamedTuple):
    """`cpu_s`: of this process with librdkafka's threads."""

    elapsed_s: float
    cpu_s: float


def copy_loop(bootstrap_servers: str, source: str, target: str, *, count: int, transaction_size: int) -> CopyCost:
    """Return the cost of copying `count` records exactly once, by one thread with one producer.

    Measured from the first batch to the last commit, without joining a group and the first metadata.
    """
    name = f"copy-{uuid4().hex[:8]}"
    shared = {"socket.nagle.disable": True, "retry.backoff.ms": 2}
    consumer = reader(bootstrap_servers, name, {**shared, "queued.min.messages": 50_000})
    own = {"bootstrap.servers": bootstrap_servers, "transactional.id": name, **QUIET}
    producer = Producer({**own, **shared, "linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 1 << 20})
    with kafka_errors("the copy loop could not go on"):
        producer.init_transactions(_TIMEOUT_S)
        partitions = consumer.list_topics(source, timeout=_TIMEOUT_S).topics[source].partitions
        consumer.assign([TopicPartition(source, number, OFFSET_BEGINNING) for number in partitions])
        messages = _full(consumer, min(transaction_size, count))
        begin, copied = CopyCost(time.perf_counter(), time.process_time()), 0
        while messages:
            _copy(producer, consumer, messages, target)
            copied += len(messages)
            messages = _full(consumer, min(transaction_size, count - copied))
        took = CopyCost(time.perf_counter() - begin.elapsed_s, time.process_time() - begin.cpu_s)
    consumer.close()
    return took


def _full(consumer: Consumer, count: int) -> list[Message]:
    messages = consumer.consume(count, _TIMEOUT_S) if count else []
    if len(messages) < count:
        raise BridgeError(f"the copy loop's source ended {count - len(messages)} records early")
    return messages


def _copy(producer: Producer, consumer: Consumer, messages: list[Message], target: str) -> None:
    producer.begin_transaction()
    reached: dict[int | None, Message] = {}
    for message in messages:
        producer.produce(target, message.value(), message.key(), headers=message.headers())
        reached[message.partition()] = message
    places = [
        TopicPartition(str(last.topic()), int(last.partition() or 0), int(last.offset() or 0) + 1)
        for last in reached.values()
    ]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), _TIMEOUT_S)
    producer.flush(_TIMEOUT_S)
    producer.commit_transaction(_TIMEOUT_S)


class Times(NamedTuple):
    """For each transaction: ms from begin to acknowledged; CPU of this process, and records, until its commit.

    The records are due from `begin_ms` on.
    """

    begin_ms: int
    acknowledged_ms: list[float]
    cpu_s: list[float]
    sent: list[int]


def plain_transactions(
    bootstrap_servers: str, targets: Sequence[str], partitions: int, value: bytes, per_s: int, records: int, count: int
) -> Times:
    """Send `count` records, one of them due each 1 / `per_s` s, to the targets in turn. Raises BridgeError.

    A transaction begins as soon as `records` are due, and takes all that are. Records have the headers of deliveries.
    """
    name = f"plain-{uuid4().hex[:8]}"
    shared: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, **QUIET}
    consumer = Consumer({**shared, "group.id": name})
    with kafka_errors("plain transactions could not go on"):
        producers = [Producer({**PRODUCER, **shared, "transactional.id": f"{name}-{number}"}) for number in range(2)]
        for producer in producers:
            producer.init_transactions(_TIMEOUT_S)
        found, begin_s, sent = Times(time.time_ns() // 1_000_000, [], [], []), time.perf_counter(), 0
        while sent < count:
            due = min(count, int((time.perf_counter() - begin_s) * per_s) + 1)
            if due < min(sent + records, count):
                time.sleep((sent + records - due) / per_s)
                continue
            producer, since_s = producers[len(found.cpu_s) % 2], time.perf_counter()
            producer.begin_transaction()
            for number in range(sent, due):
                due_ms = found.begin_ms + number * 1000 // per_s
                headers: list[tuple[str, str | bytes | None]] = [
                    (names.ORIGIN, b"%s/0/%d" % (ORIGINS.encode(), number)),
                    (names.DELIVER_MS, b"%d" % due_ms),
                ]
                partition = number // len(targets) % partitions
                producer.produce(targets[number % len(targets)], value, partition=partition, headers=headers)
            producer.flush(_TIMEOUT_S)
            found.acknowledged_ms.append((time.perf_counter() - since_s) * 1000)
            place = TopicPartition(targets[0], 0, due)
            producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), _TIMEOUT_S)
            producer.commit_transaction(_TIMEOUT_S)
            found.cpu_s.append(time.process_time())
            sent = due
            found.sent.append(sent)
    consumer.close()
    return found
