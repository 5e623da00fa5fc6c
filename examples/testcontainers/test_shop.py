"""The application with a real Kafka and a real bridge, in containers."""

import time

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from shop import REMINDERS, order_paid, order_placed
from testcontainers.community.kafka import KafkaContainer

from kafka_timer.testing import TimerBridgeContainer


def reminders(bootstrap_servers: str, timeout_s: float) -> list[bytes | None]:
    """Return the keys of all reminders, as soon as one is there."""
    config = {"bootstrap.servers": bootstrap_servers, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)  # librdkafka reads with isolation.level=read_committed by default
    consumer.subscribe([REMINDERS])
    try:
        message = consumer.poll(timeout_s)
        first = [] if message is None else [message]
        return [each.key() for each in first + consumer.consume(100, timeout=1.0)]
    finally:
        consumer.close()


def test_only_the_customer_who_has_not_paid_is_reminded(
    kafka_container: KafkaContainer, timer_bridge: TimerBridgeContainer
) -> None:
    servers = kafka_container.get_bootstrap_server()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(REMINDERS, 1)])[REMINDERS].result(30)

    started_s = time.monotonic()
    with timer_bridge.producer() as timers:
        order_placed(timers, "7", remind_after="2s")
        order_placed(timers, "8", remind_after="1s")
        order_paid(timers, "8")

    assert reminders(servers, timeout_s=30) == [b"7"]
    assert time.monotonic() - started_s >= 2
