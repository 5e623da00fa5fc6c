"""A consumer that retries: a message that fails comes back later, up to 16 times, and then goes to a DLQ.

    python -m examples.consumer_retry --bootstrap-servers localhost:9092 --topic payments --group billing

An offset is committed when its message is handled or its retry is acknowledged, so no message is lost if the consumer
dies. A message that was retried twice for that reason comes back once, as the retry's id is made of its position.
Create the topic `DLQ.<group>` before, or let the broker create it.
"""

import argparse
import signal
from collections.abc import Callable
from threading import Event
from typing import Any

from confluent_kafka import Consumer

from kafka_timer import RETRIES, TimerProducer


def handle(message: Any) -> None:
    """Your work. Raises if it cannot be done now."""
    if (message.value() or b"").startswith(b"fail"):
        raise RuntimeError("the bank is closed")
    retries = int(dict(message.headers() or ()).get(RETRIES, b"0"))
    print("handled", text_of(message), "after", retries, "retries", flush=True)


def consume(consumer: Any, timers: TimerProducer, *, group: str, is_over: Callable[[], bool]) -> None:
    """Handle messages one by one until `is_over()` returns True."""
    while not is_over():
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        sent = timers.handle(message, handle, group=group)  # leaves out retries of other groups
        if sent is not None:
            print("failed", text_of(message), "sent to", sent.topic, flush=True)
        consumer.commit(message, asynchronous=False)


def text_of(message: Any) -> str:
    """Return the value as text; empty for null."""
    return (message.value() or b"").decode(errors="replace")


def ended_by_signal() -> Callable[[], bool]:
    """Return a function that returns True once SIGTERM or SIGINT has come."""
    ended = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended.is_set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--bootstrap-servers", "--topic", "--group"):
        parser.add_argument(name, required=True)
    parser.add_argument("--timer-topic", default="timer.requests")
    given = parser.parse_args()
    is_over = ended_by_signal()
    servers = {"bootstrap.servers": given.bootstrap_servers}
    reading = {"group.id": given.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**servers, **reading, "isolation.level": "read_committed"})
    consumer.subscribe([given.topic])
    try:
        with TimerProducer(servers, timer_topic=given.timer_topic) as timers:
            consume(consumer, timers, group=given.group, is_over=is_over)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
