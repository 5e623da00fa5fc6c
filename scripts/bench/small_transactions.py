"""Small transactions at a fixed pace, without other load on the broker: the limit of lateness.

begin -> produce, some to each partition -> acknowledged -> offsets -> commit        two producers in turn
|<------------ acknowledged ---------->|
"""

import time
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from bridge.kafka.client_config import PRODUCER
from bridge.kafka.consumer import PollPacer
from scripts.common.kafka_io import QUIET, kafka_errors

_TIMEOUT_S = 30.0


class Times(NamedTuple):
    """For each transaction: ms from begin to acknowledged, and the CPU of this process until its commit."""

    acknowledged_ms: list[float]
    cpu_s: list[float]


def small_transactions(
    bootstrap_servers: str, topic: str, *, partitions: int, values: list[bytes], pace_s: float, seconds: float
) -> Times:
    """Run the transactions, each with `values`. Raises BridgeError."""
    name = f"small-{uuid4().hex[:8]}"
    shared: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, **QUIET}
    consumer, pace = Consumer({**shared, "group.id": name}), PollPacer(pace_s)
    with kafka_errors("small transactions could not go on"):
        producers = [Producer({**PRODUCER, **shared, "transactional.id": f"{name}-{number}"}) for number in range(2)]
        for producer in producers:
            producer.init_transactions(_TIMEOUT_S)
        found = Times([], [])
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            pace.wait()
            begin_s = time.perf_counter()
            producer = producers[len(found.cpu_s) % len(producers)]
            _fill(producer, topic, partitions, values)
            found.acknowledged_ms.append((time.perf_counter() - begin_s) * 1000)
            place = TopicPartition(topic, 0, len(found.cpu_s))
            producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), _TIMEOUT_S)
            producer.commit_transaction(_TIMEOUT_S)
            found.cpu_s.append(time.process_time())
    consumer.close()
    return found


def _fill(producer: Any, topic: str, partitions: int, values: list[bytes]) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    producer.flush(_TIMEOUT_S)
