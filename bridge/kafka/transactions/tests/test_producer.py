"""A producer is replaced by one with a longer timeout if brokers allow it."""

import struct
import time
from typing import Any

import pytest
from confluent_kafka import KafkaException

from bridge.config.kafka_config import Connection
from bridge.errors import BrokerUnavailableError
from bridge.kafka.client_config import LONGEST_TRANSACTION_MS
from bridge.kafka.retry import Retrier
from bridge.kafka.tests.fake_clients import STATE
from bridge.kafka.transactions import producer as producer_module
from bridge.kafka.transactions import sink as sink_module
from bridge.kafka.transactions.producer import IdHeldError, ProducerState, TimeoutRefusedError, TransactionalProducer
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents
from bridge.kafka.transactions.rejection_finder import FoundTopic, TopicProbe
from bridge.kafka.transactions.sink import ConfluentSink, ProducerSlot
from bridge.observe.status import Status
from bridge.ports import Aborted, Outgoing, Transaction
from kafka_timer.origin import TimerPartition


def slot(monkeypatch: pytest.MonkeyPatch, most_ms: int) -> tuple[ProducerSlot, list[int]]:
    """Return a slot on brokers that allow transactions of `most_ms`, and the timeouts of the started producers."""
    started: list[int] = []

    class Producer:
        is_broken = has_committed = False
        state = ProducerState.READY

        def __init__(self, config: dict[str, Any], retrier: Retrier, unavailable: object, **_: object) -> None:
            del retrier, unavailable
            if config["transaction.timeout.ms"] > most_ms:
                raise TimeoutRefusedError("starting the producer: too long")
            started.append(config["transaction.timeout.ms"])

        def retire(self) -> None:
            self.is_broken = True

        def close(self) -> None: ...

    monkeypatch.setattr(sink_module, "TransactionalProducer", Producer)
    return ProducerSlot(Connection("127.0.0.1:1"), 0, Retrier()), started


def test_a_producer_that_times_out_gets_twice_the_timeout_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer wait without a poll would lose the partitions."""
    own_slot, started = slot(monkeypatch, 10**9)
    for _ in range(8):
        own_slot.use_longer_timeout()
        own_slot.replace_if_broken()
    assert started == [10_000, 20_000, 40_000, 80_000, 160_000, LONGEST_TRANSACTION_MS]
    assert LONGEST_TRANSACTION_MS < 300_000
    own_slot.close()


def test_a_producer_keeps_its_timeout_if_brokers_allow_no_longer_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_slot, started = slot(monkeypatch, 30_000)
    for _ in range(4):
        own_slot.use_longer_timeout()
        own_slot.replace_if_broken()
    assert started == [10_000, 20_000, 20_000]
    assert "brokers do not allow that" in caplog.text
    own_slot.close()


def test_a_broker_that_refuses_the_usual_timeout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutRefusedError):
        slot(monkeypatch, 5_000)


def test_a_transactional_id_that_kafka_holds_is_replaced_by_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"group-one-0", "group-one-0-1"}

    class Producer:
        is_broken = has_committed = False
        state = ProducerState.READY

        def __init__(self, config: dict[str, Any], *_: object, **__: object) -> None:
            self.id = config["transactional.id"]
            if self.id in held:
                raise IdHeldError("starting the producer: concurrent transactions")

        def close(self) -> None: ...

    monkeypatch.setattr(sink_module, "TransactionalProducer", Producer)
    own_slot: Any = ProducerSlot(Connection("127.0.0.1:1", "group", "one"), 0, Retrier())
    assert own_slot.producer.id == "group-one-0-2"
    held.add(own_slot.producer.id)
    own_slot.producer.is_broken = True
    own_slot.replace_if_broken()
    assert own_slot.producer.id == "group-one-0-3"
    own_slot.close()


def test_if_kafka_holds_every_id_the_start_waits_and_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    class Producer:
        def __init__(self, config: dict[str, Any], *_: object, **__: object) -> None:
            started.append(config["transactional.id"])
            assert len(started) < 100, "it never asks whether it is time to give up"
            raise IdHeldError("starting the producer: concurrent transactions")

    monkeypatch.setattr(sink_module, "TransactionalProducer", Producer)
    retrier = Retrier()
    retrier.give_up_in(0)
    with pytest.raises(BrokerUnavailableError, match="starting the producer"):
        ProducerSlot(Connection("127.0.0.1:1", "group", "one"), 0, retrier)
    assert len(set(started)) == 16


def test_an_own_topic_that_takes_no_records_is_named_by_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry can leave out the timers of a target, but not the receipts."""
    none = frozenset({"timer.receipts"})

    class Producer:
        is_broken = has_committed = False
        state = ProducerState.READY

        def __init__(self, *_: object, **__: object) -> None: ...

        def start_sending(self, batch: object) -> None: ...

        def retire(self) -> None: ...

        def await_acknowledgements(self, batch: object) -> SendFailure:
            del batch
            return SendFailure(unavailable=none)

        def close(self) -> None: ...

    monkeypatch.setattr(sink_module, "TransactionalProducer", Producer)
    monkeypatch.setattr(TopicProbe, "unavailable", lambda *_, **__: none)
    monkeypatch.setattr(TopicProbe, "describe", lambda _, topics: dict.fromkeys(topics, FoundTopic(1, "id")))
    monkeypatch.setattr(TopicProbe, "settings", lambda *_: {})
    status = Status(time.monotonic)
    status.partition_running(TimerPartition("timer.requests", 0))
    made = ConfluentSink(Connection("127.0.0.1:1", "group", "one"), {}, Retrier(status=status))
    group_metadata = b"CGMDv2:" + struct.pack("=i", 1) + b"group\0member\0"
    reasons = []
    for tries in range(6):
        records = [Outgoing("timer.receipts", -1, None, b"v", [], 0)]
        fate = made.submit(Transaction(records, {}, {}, group_metadata, tries)).wait()
        assert isinstance(fate, Aborted)
        assert fate.unavailable == none
        reasons.append(status.ready().reason)
    assert (reasons[0], reasons[-1]) == ("", "waiting for the broker")
    made.close()


class Silent:
    """A fake producer of librdkafka that never reports what became of a record. Its waits move the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.is_open = 1000.0, False
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(producer_module, "make", lambda *_: self)

    def poll(self, timeout_s: float) -> int:
        return 0

    def flush(self, timeout_s: float) -> int:
        self.now_s += timeout_s
        return 1

    def init_transactions(self, timeout_s: float) -> None: ...

    def begin_transaction(self) -> None:
        if self.is_open:
            raise KafkaException(STATE)
        self.is_open = True

    def produce(self, *_: object) -> None: ...

    def purge(self) -> None: ...


@pytest.mark.parametrize(("is_named", "earliest_s", "latest_s"), [(False, 0.0, 12.0), (True, 20.0, 30.0)])
def test_a_record_without_any_report_is_given_up_when_kafka_has_aborted_its_transaction(
    is_named: bool,  # noqa: FBT001
    earliest_s: float,
    latest_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction that names no failures is repeated with names, so it is given up sooner."""
    silent = Silent(monkeypatch)
    producer = TransactionalProducer({"transaction.timeout.ms": 10_000}, Retrier())
    batch = TransactionContents([Outgoing("deleted", -1, None, b"v", [], 0)], {}, b"", {})
    if not is_named:
        producer.start_sending(batch)
    began_s = silent.now_s
    assert producer.await_acknowledgements(batch) is not None
    assert producer.is_broken
    assert earliest_s < silent.now_s - began_s < latest_s
