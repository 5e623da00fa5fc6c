"""Deliveries that are sent before their transaction, by a fake producer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.config.kafka_config import Connection
from bridge.kafka.retry import Retrier
from bridge.kafka.transactions.early_delivery import EarlyDeliverySender
from bridge.ports import Outgoing

DENIED, TOO_LARGE = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE


def out(topic: str) -> Outgoing:
    return Outgoing(topic, -1, None, b"v", [], 0)


OUTGOING = [out("timer.rejected"), out("orders"), out("orders"), out("payments")]


class Sending:
    """A fake producer. `failures`: errors of the broker; `wrong`: raised by the wait for acknowledgements."""

    def __init__(self, failures: Mapping[int, int], wrong: Exception | None = None) -> None:
        self._reported = failures
        self._wrong = wrong
        self.failures: dict[int, int] = {}
        self.sent: list[int] = []

    def begin(self) -> None:
        self.failures = {}

    def send(self, numbered: Sequence[tuple[int, Outgoing]]) -> None:
        self.sent += [index for index, _ in numbered]

    def send_in_small_batches(
        self, numbered: Sequence[tuple[int, Outgoing]], max_batch_bytes: Mapping[str, int]
    ) -> list[None]:
        self.send([each for each in numbered if each[1].topic not in max_batch_bytes])
        self.send([each for each in numbered if each[1].topic in max_batch_bytes])
        return [None] if max_batch_bytes else []

    def await_acknowledgements(
        self, records: Sequence[Outgoing], *, has_failed: Callable[[], bool], on_stall: Callable[[], None]
    ) -> None:
        assert (records, has_failed()) == (OUTGOING, False)
        on_stall()
        if self._wrong is not None:
            raise self._wrong
        self.failures = dict(self._reported)


def ahead(failures: Mapping[int, int], wrong: Exception | None = None) -> Any:
    made: Any = EarlyDeliverySender(
        Connection("127.0.0.1:1"), frozenset({"timer.rejected"}), Retrier(), lambda _: frozenset()
    )
    made._sending = Sending(failures, wrong)
    return made


def test_a_topic_that_was_not_acknowledged_in_time_is_named_if_others_were() -> None:
    late = KafkaError._MSG_TIMED_OUT
    assert ahead({3: late}).await_acknowledgements(OUTGOING, {}).failed.unavailable == {"payments"}
    assert ahead({1: late, 2: late, 3: late}).await_acknowledgements(OUTGOING, {}).failed.unavailable == frozenset()


def test_topics_that_the_cluster_names_end_the_wait_for_them() -> None:
    made: Any = EarlyDeliverySender(Connection("127.0.0.1:1"), frozenset({"timer.rejected"}), Retrier(), frozenset)
    made._sending = Sending({})
    producer = made._producer
    acknowledged, failed = made.await_acknowledgements(OUTGOING, {})
    assert (acknowledged, failed.unavailable) == ([1, 2, 3], {"orders", "payments"})
    assert made._producer is not producer


def test_acknowledged_deliveries_count_although_others_fail() -> None:
    each = ahead({2: TOO_LARGE})
    producer = each._producer
    sent = each.await_acknowledgements(OUTGOING, {"payments": 100})
    assert each._sending.sent == [1, 2, 3]
    assert (sent.acknowledged, sent.failed.named, sent.failed.cause) == ([1, 3], {2: TOO_LARGE}, None)
    assert each._producer is producer
    each.close()


def test_a_loaded_delivery_is_sent_once() -> None:
    each = ahead({})
    each.start_sending(OUTGOING)
    assert each.await_acknowledgements(OUTGOING, {}) == ([1, 2, 3], None)
    assert each._sending.sent == [1, 2, 3]
    each.close()


def test_a_denied_topic_is_reported_as_by_a_transaction_without_naming_records() -> None:
    each = ahead({1: DENIED, 2: DENIED})
    sent = each.await_acknowledgements(OUTGOING, {})
    assert (sent.acknowledged, sent.failed.named, sent.failed.cause.code()) == ([3], {}, DENIED)
    each.close()


@pytest.mark.parametrize("code", [KafkaError._FATAL, KafkaError._STATE])
def test_a_producer_after_a_fatal_error_is_replaced(code: int) -> None:
    each = ahead({3: code})
    producer = each._producer
    sent = each.await_acknowledgements(OUTGOING, {})
    assert (sent.acknowledged, sent.failed.named) == ([1, 2], {3: code})
    assert each._producer is not producer
    each.close()


def test_deliveries_cut_off_by_a_fatal_error_do_not_count_as_acknowledged() -> None:
    fatal = KafkaException(KafkaError(KafkaError._FATAL, "out of order", fatal=True))
    wrapped = SystemError("returned a result with an exception set")
    wrapped.__cause__ = fatal
    each = ahead({}, wrapped)
    producer = each._producer
    sent = each.await_acknowledgements(OUTGOING, {})
    assert (sent.acknowledged, sent.failed.cause) == ([], fatal.args[0])
    assert each._producer is not producer
    each.close()
