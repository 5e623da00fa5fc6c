"""Replaced producers, and waits for acknowledgements, with fakes of producers and of the clock."""

import struct
import time
from collections.abc import Callable
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
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents, await_acknowledgements
from bridge.kafka.transactions.rejection_finder import FoundTopic, TopicProbe
from bridge.kafka.transactions.sink import ConfluentSink, ProducerSlot
from bridge.observe.status import LIVE_WITHIN_S, Status
from bridge.ports import Aborted, Outgoing, Transaction
from kafka_timer.origin import TimerPartition
from schemas.progress import NOTHING_SETTLED, Progress

CONNECTION = Connection("127.0.0.1:1", "group", "one")
Config = dict[str, Any]


def use_fakes(monkeypatch: pytest.MonkeyPatch, refusal: Callable[[Config], Exception | None]) -> list[Config]:
    """Let producers be fakes, which start unless there is a refusal; return the configs of those that started."""
    started: list[Config] = []

    class Producer:
        is_broken = has_committed = False
        state = ProducerState.READY

        def __init__(self, config: Config, *_: object, **__: object) -> None:
            if (error := refusal(config)) is not None:
                raise error
            started.append(config)

        def start_sending(self, batch: object) -> None: ...

        def send_offsets(self, batch: object) -> None: ...

        def await_acknowledgements(self, batch: object) -> SendFailure:
            return SendFailure(unavailable=frozenset({"timer.receipts"}))

        def retire(self) -> None:
            self.is_broken = True

        def close(self) -> None: ...

    monkeypatch.setattr(sink_module, "TransactionalProducer", Producer)
    return started


LONGER = [10_000, 20_000, 40_000, 80_000, 160_000, LONGEST_TRANSACTION_MS]


@pytest.mark.parametrize(("most_ms", "timeouts"), [(10**9, LONGER), (30_000, [10_000, 20_000, 20_000]), (5_000, None)])
def test_a_producer_that_times_out_gets_twice_the_timeout_up_to_a_limit_or_to_what_brokers_allow(
    most_ms: int, timeouts: list[int] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A longer wait without a poll would lose the partitions."""
    refused = TimeoutRefusedError("starting the producer: too long")
    started = use_fakes(monkeypatch, lambda config: refused if config["transaction.timeout.ms"] > most_ms else None)
    if timeouts is None:
        with pytest.raises(TimeoutRefusedError):
            ProducerSlot(CONNECTION, 0, Retrier())
        return
    slot = ProducerSlot(CONNECTION, 0, Retrier())
    for _ in range(8):
        slot.use_longer_timeout()
        slot.replace_if_broken()
    assert [config["transaction.timeout.ms"] for config in started] == timeouts
    assert ("brokers do not allow that" in caplog.text) == (most_ms == 30_000)
    assert LONGEST_TRANSACTION_MS < 300_000
    slot.close()


HELD = IdHeldError("starting the producer: concurrent transactions")


def test_a_transactional_id_that_kafka_holds_is_replaced_by_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"group-one-0", "group-one-0-1"}
    started = use_fakes(monkeypatch, lambda config: HELD if config["transactional.id"] in held else None)
    slot = ProducerSlot(CONNECTION, 0, Retrier())
    held.add("group-one-0-2")
    slot.producer.retire()
    slot.replace_if_broken()
    assert [config["transactional.id"] for config in started] == ["group-one-0-2", "group-one-0-3"]
    slot.close()


def test_if_kafka_holds_every_id_the_start_waits_and_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def held(config: Config) -> IdHeldError:
        tried.append(config["transactional.id"])
        assert len(tried) < 100, "it never asks whether it is time to give up"
        return HELD

    use_fakes(monkeypatch, held)
    retrier = Retrier()
    retrier.give_up_in(0)
    with pytest.raises(BrokerUnavailableError, match="starting the producer"):
        ProducerSlot(CONNECTION, 0, retrier)
    assert len(set(tried)) == 16


def test_an_own_topic_that_takes_no_records_is_named_by_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry can leave out the timers of a target, but not the receipts."""
    none = frozenset({"timer.receipts"})
    use_fakes(monkeypatch, lambda _: None)
    monkeypatch.setattr(TopicProbe, "unavailable", lambda *_, **__: none)
    monkeypatch.setattr(TopicProbe, "describe", lambda _, topics: dict.fromkeys(topics, FoundTopic(1, "id")))
    monkeypatch.setattr(TopicProbe, "settings", lambda *_: {})
    status = Status(time.monotonic)
    status.partition_running(TimerPartition("timer.requests", 0))
    made = ConfluentSink(CONNECTION, {}, Retrier(status=status))
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


@pytest.mark.parametrize("is_named", [False, True])
def test_offsets_are_sent_while_records_are_in_flight_unless_failures_are_named(
    is_named: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a refused record the offsets fail, too, and would hide which record it was."""
    calls = list[str]()

    class Acknowledging(Silent):
        def flush(self, timeout_s: float) -> int:
            calls.append("acknowledged")
            return 0

        def send_offsets_to_transaction(self, *_: object) -> None:
            calls.append("offsets")

        def commit_transaction(self, timeout_s: float) -> None:
            calls.append("commit")

    Acknowledging(monkeypatch)
    producer = TransactionalProducer({"transaction.timeout.ms": 10_000}, Retrier())
    progress = {TimerPartition("timer.requests", 0): Progress(1, NOTHING_SETTLED, 0)}
    batch = TransactionContents([Outgoing("target", -1, None, b"v", [], 0)], progress, b"", {})
    if not is_named:
        producer.start_sending(batch)
    for step in (producer.send_offsets, producer.await_acknowledgements, producer.commit):
        assert step(batch) is None
    assert calls == (["acknowledged", "offsets", "commit"] if is_named else ["offsets", "acknowledged", "commit"])


class Slow:
    """A producer whose records are acknowledged at `at_s`; `look` is called each second until then."""

    def __init__(self, at_s: float, look: Callable[[], None]) -> None:
        self.now_s = 0.0
        self._at_s = at_s
        self._look = look

    def flush(self, timeout_s: float) -> int:
        before_s, self.now_s = self.now_s, self.now_s + timeout_s
        if int(before_s) != int(self.now_s):
            self._look()
        return int(self.now_s < self._at_s)


@pytest.mark.parametrize(("takes_s", "is_told"), [(LIVE_WITHIN_S * 3, True), (3.0, False)])
def test_during_a_long_wait_for_acknowledgements_the_bridge_is_live_but_not_ready(
    takes_s: float,
    is_told: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quota may make each transaction last for minutes, so a restart would not help."""
    seen: list[tuple[str, str]] = []
    producer: Any = Slow(takes_s, lambda: seen.append((status.live().reason, status.ready().reason)))
    status = Status(lambda: producer.now_s)
    monkeypatch.setattr(time, "monotonic", lambda: producer.now_s)
    await_acknowledgements(producer, Retrier(status=status), lambda: False, lambda _: None)
    assert {live for live, _ in seen} == {""}
    assert ("waiting for the broker" in {ready for _, ready in seen}) == is_told
    assert [ready for _, ready in seen[10:]] == ["waiting for the broker"] * len(seen[10:])
    assert status.ready().reason != "waiting for the broker"


def test_on_stall_is_called_early_and_then_each_time_without_an_acknowledgement_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stalling(Slow):
        """Acknowledges one record after 2 s, the other after 12 s."""

        def flush(self, timeout_s: float) -> int:
            return super().flush(timeout_s) and 1 + (self.now_s < 2)

    producer: Any = Stalling(12.0, lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: producer.now_s)
    early, late = list[float](), list[float]()

    def note(is_early: bool) -> None:  # noqa: FBT001
        (early if is_early else late).append(round(producer.now_s))

    await_acknowledgements(producer, Retrier(), lambda: False, note)
    assert (early, late) == ([0, 2], [5, 8, 11])
