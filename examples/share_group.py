"""A consumer of a share group that retries with a delay: a record that fails comes back through a retry topic.

    python -m examples.share_group --bootstrap-servers localhost:9092 --topic payments --retry-topic payments.retry
        --group billing

RELEASE alone gives a failed record back at once, at most 5 times. Here it is scheduled for the retry topic, and
accepted only when its request is acknowledged. If the consumer dies in between, the group gets the record again and
schedules it again: its id is made of its position, so the second timer replaces the first one while that is pending.
"""

import argparse
from collections.abc import Callable
from typing import Any

from confluent_kafka import AcknowledgeType, ShareConsumer

from examples.consumer_retry import ended_by_signal, handle, text_of
from kafka_timer import TimerProducer


def consume(consumer: Any, timers: TimerProducer, *, group: str, retry_topic: str, is_over: Callable[[], bool]) -> None:
    """Handle messages until `is_over()` returns True."""
    while not is_over():
        for message in consumer.poll(0.5):
            if message.error() is not None:
                continue
            if timers.handle(message, handle, group=group, topic=retry_topic) is not None:
                print("failed", text_of(message), flush=True)
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.commit_sync()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bootstrap-servers", "--topic", "--retry-topic", "--group"):
        parser.add_argument(name, required=True)
    parser.add_argument("--timer-topic", default="timer.requests")
    given = parser.parse_args()
    is_over = ended_by_signal()
    servers = {"bootstrap.servers": given.bootstrap_servers}
    consumer = ShareConsumer({**servers, "group.id": given.group, "share.acknowledgement.mode": "explicit"})
    consumer.subscribe([given.topic, given.retry_topic])
    with consumer, TimerProducer(servers, timer_topic=given.timer_topic) as timers:
        consume(consumer, timers, group=given.group, retry_topic=given.retry_topic, is_over=is_over)


if __name__ == "__main__":
    main()
