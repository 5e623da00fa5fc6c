"""A large history for the audit, written without a bridge."""

from integration_tests.support.cluster import Cluster
from kafka_timer import headers as names
from scripts.common.kafka_io import now_ms

TIMERS, TARGETS = "timer.requests", ("orders", "bills", "returns")
PARTITIONS = 4


def write_history(cluster: Cluster, count: int) -> None:
    """Write timers, half of them with ids, and their deliveries, to new topics."""
    for topic in (TIMERS, "timer.rejected", "timer.receipts", *TARGETS):
        cluster.create(topic, PARTITIONS, message_timestamp_type="LogAppendTime")
    due_ms = str(now_ms())
    for number in range(count):
        offset, partition = divmod(number, PARTITIONS)
        target, value = TARGETS[number % len(TARGETS)], b"%d" % number
        asked = [(names.TOPIC, target), (names.DELIVER_MS, due_ms), (names.ID, f"order-{number}")]
        cluster.send(TIMERS, value, headers=asked[: 2 + offset % 2], partition=partition)
        origin = (names.ORIGIN, f"{TIMERS}/{partition}/{offset}")
        times = [(names.DELIVER_MS, due_ms), (names.RELEASED_MS, due_ms)]
        cluster.send(target, value, headers=[origin, *times, (names.ROLLS, "0")], partition=partition)
    cluster.flush()
