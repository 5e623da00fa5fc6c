"""Kafka's transactions without a bridge: the limit that the bridge is measured against, in lateness and CPU.

begin -> produce -> acknowledged -> offsets -> commit        two producers in turn, at a pace
|<------ acknowledged ----->|
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from bridge.kafka.client_config import PRODUCER
from kafka_timer import headers as names
from scripts.common.kafka_io import QUIET, kafka_errors

ORIGINS = "plain"
_TIMEOUT_S = 60.0


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
