"""Transactions of a redrive, by a fake producer that times out on large ones."""

from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError

from bridge.config.kafka_config import Connection
from bridge.kafka.retry import Retrier
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents
from bridge.ports import Outgoing, Record
from bridge.redrive.rules import Parked, RedriveFilter
from bridge.redrive.sender import ConfluentRedrive, RedriveResult
from kafka_timer.headers import Headers
from kafka_timer.origin import TimerPartition
from schemas.resent import Job, MarkTopics
from schemas.rules import Rules

TIMERS = "timer.requests"
RULES = Rules(max_delay_ms=10**9, roll_window_ms=10**6, own_topics=frozenset({TIMERS}))
LATE = KafkaError(KafkaError._TIMED_OUT)


class Producer:
    """A fake producer that takes `most` requests in a transaction, each with its marker."""

    is_broken = False

    def __init__(self, most: int) -> None:
        self.taken: list[int] = []
        self._most = most

    def await_acknowledgements(self, batch: TransactionContents) -> SendFailure | None:
        if len(batch.records) > 2 * self._most:
            return SendFailure(cause=LATE, is_slow=True)
        return None

    def commit(self, batch: TransactionContents) -> SendFailure | None:
        self.taken.append(len(batch.records) // 2)
        return None

    def close(self) -> None: ...


class Log:
    """Two partitions of rejected records; `read`: the ranges that were read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int, int]] = []

    def partitions(self, topic: str) -> int | None:
        return 2 if topic == "timer.rejected" else None

    def bounds(self, partition: TimerPartition) -> tuple[int, int]:
        return 10, 20

    def requests(self, partition: TimerPartition, first: int, end: int) -> Iterator[list[Record]]:
        self.read.append((partition.partition, first, end))
        reason: Headers = [("timer-error", b"bad-header"), ("timer-error-detail", b"")]
        yield [
            Record(at, 1, None, b"", [*reason, ("timer-origin", f"{TIMERS}/{partition.partition}/{at}".encode())])
            for at in range(first, end)
        ]


def test_chosen_records_are_read_from_the_first_to_the_last_that_is_there() -> None:
    marks = MarkTopics(Job.REDRIVE, "timer.resent", "timer.redriven")
    redrive: Any = ConfluentRedrive(Connection("127.0.0.1:1"), "timer.rejected", marks, {TIMERS: RULES}, Retrier())
    redrive._topics = redrive._history = log = Log()
    redrive._require_partitions = lambda records: None
    chosen = {(TimerPartition("timer.rejected", 0), at) for at in (3, 12, 15, 99)}
    found = redrive.look(RedriveFilter(frozenset({TIMERS}), places=frozenset(chosen)))
    assert [each.origin_text for each in found.selected] == [f"{TIMERS}/0/12", f"{TIMERS}/0/15"]
    assert [(first, end) for _, first, end in log.read if first < end] == [(12, 16)]


def test_requests_that_time_out_in_one_transaction_are_sent_in_parts() -> None:
    marks = MarkTopics(Job.REDRIVE, "timer.resent", "timer.redriven")
    redrive: Any = ConfluentRedrive(Connection("127.0.0.1:1"), "timer.rejected", marks, {TIMERS: RULES}, Retrier())
    redrive._producer = producer = Producer(most=30)
    place, origin = TimerPartition("timer.rejected", 0), TimerPartition(TIMERS, 0)
    requests = [
        (
            Parked(place, at, 1, "not-authorized", origin, at, "orders", None, 1, False),
            Outgoing(TIMERS, 0, None, b"", [], 0),
        )
        for at in range(100)
    ]
    sent = RedriveResult()
    told: list[Parked] = []
    redrive._send(requests, sent, told.extend)
    assert sent.count == 100
    assert [each.offset for each in told] == list(range(100))
    assert sum(producer.taken) == 100
    assert max(producer.taken) <= 30
    redrive.close()
