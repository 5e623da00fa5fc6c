"""Timers from Python: schedule, cancel, replace, move, pause, and retry for consumers.

    with TimerProducer({"bootstrap.servers": "localhost:9092"}) as timers:
        timers.schedule("orders", b"hello", key=b"7", delay="5s")
        timers.schedule("orders", b"remind", at=datetime(2026, 12, 24, 18, tzinfo=UTC), id="reminder-7")
        timers.cancel("reminder-7")
        timers.schedule("reports", b"daily", repeat=Repeat(cron="0 9 * * MON-FRI", zone="Europe/Berlin"), id="daily")
        sent = timers.schedule("orders", b"later", delay="1h").result()
        timers.cancel(sent)                            # a timer without an id, by the position of its request
        timers.flush()                                 # raises if a request was not acknowledged

    producer.begin_transaction()                       # with a (transactional) producer of your own:
    producer.produce("timer.requests", b"hello", headers=headers_for("orders", delay="5s"))

    timers.handle(message, charge, group="billing")    # in a consumer: if charge(message) raises, again in 10 s, 30 s,
    consumer.commit(message)                           # ... 2 h, then DLQ.<group>; retries of other groups are left out

    async with AsyncTimerProducer(timers) as timers:   # asyncio: kafka_timer.aio
        await timers.schedule("orders", b"hello", delay="5s")

An id chooses the partition of the timer topic by murmur2, so all requests with the same id meet there, from any
language, as long as the number of partitions stays the same: docs/timer-topics.md says how to add some.
"""

from kafka_timer.errors import BridgeError, BrokerUnavailableError, SettingsError
from kafka_timer.outcomes import Outcome, Outcomes
from kafka_timer.producer import Outbox, TimerOperator, TimerProducer
from kafka_timer.requests import (
    Headers,
    Pairs,
    Repeat,
    Sent,
    Text,
    cancel_headers,
    headers_for,
    move_headers,
    partition_for,
    pause_timer_headers,
    resume_timer_headers,
)
from kafka_timer.retry import (
    FIRST_RETRY_LEVEL,
    MAX_RETRIES,
    RETRIES,
    RETRY_GROUP,
    RETRY_OF,
    Message,
    Retry,
    RetryPolicy,
    belongs_to,
    retry_of,
)

__all__ = [
    "FIRST_RETRY_LEVEL",
    "MAX_RETRIES",
    "RETRIES",
    "RETRY_GROUP",
    "RETRY_OF",
    "BridgeError",
    "BrokerUnavailableError",
    "Headers",
    "Message",
    "Outbox",
    "Outcome",
    "Outcomes",
    "Pairs",
    "Repeat",
    "Retry",
    "RetryPolicy",
    "Sent",
    "SettingsError",
    "Text",
    "TimerOperator",
    "TimerProducer",
    "belongs_to",
    "cancel_headers",
    "headers_for",
    "move_headers",
    "partition_for",
    "pause_timer_headers",
    "resume_timer_headers",
    "retry_of",
]
