"""Twins of the planted bugs that change the fake (planted_bugs.py): the same mistake in bridge.kafka.

The contract of the ports must find each, with a broker. Without them it passes: test_ports_contract.py.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Producer

from bridge.kafka import ConfluentSink
from bridge.kafka import client_config as clients
from bridge.kafka.transactions.producer import TransactionalProducer
from bridge.kafka.transactions.record_sender import SendFailure, TransactionContents
from bridge.kafka.transactions.sink import InFlightTransaction
from bridge.ports import Aborted, Committed, Transaction
from bridge.tests.simulation.planted_bugs import MUTATIONS
from integration_tests.conftest import Broker
from integration_tests.kafka import test_ports_contract as ports
from integration_tests.kafka.test_ports_contract import ConfluentHarness, Reader
from integration_tests.support.patience import PATIENCE_S

_begin, _wait, _commit = ConfluentSink.submit, InFlightTransaction.wait, TransactionalProducer.commit
_PREFIX_BYTES = len(b"CGMDv2:")


def write_journal(sink: ConfluentSink, transaction: Transaction) -> None:
    producer = Producer({"bootstrap.servers": sink._slots[0]._connection.bootstrap_servers})
    for record in sink._journal_records(transaction):
        producer.produce(record.topic, record.value, record.key, record.partition)
    assert producer.flush(PATIENCE_S) == 0


def journal_before(sink: ConfluentSink, transaction: Transaction) -> InFlightTransaction:
    write_journal(sink, transaction)
    return _begin(sink, replace(transaction, journal={}))


def journal_behind(sink: ConfluentSink, transaction: Transaction) -> InFlightTransaction:
    submitted = _begin(sink, replace(transaction, journal={}))

    def wait() -> Committed | Aborted:
        fate = _wait(submitted)
        if isinstance(fate, Committed):
            write_journal(sink, transaction)
        return fate

    submitted.wait = wait  # type: ignore[method-assign]
    return submitted


def without_member(producer: TransactionalProducer, batch: TransactionContents) -> SendFailure | None:
    """Commit with generation -1 and no member id, which the coordinator does not check."""
    assert isinstance(batch.group_metadata, bytes)
    group, _, rest = batch.group_metadata[_PREFIX_BYTES + 4 :].split(b"\0", 2)
    group_metadata = b"".join([batch.group_metadata[:_PREFIX_BYTES], struct.pack("=i", -1), group, b"\0\0", rest])
    return _commit(producer, replace(batch, group_metadata=group_metadata))


TWINS: dict[str, tuple[Callable[[], Any], Callable[..., None]]] = {
    "journal before the transaction": (
        lambda: mock.patch.object(ConfluentSink, "submit", journal_before),
        ports.TestInFlight.test_each_is_committed_whatever_becomes_of_the_others,
    ),
    "journal behind the transaction": (
        lambda: mock.patch.object(ConfluentSink, "submit", journal_behind),
        ports.TestHistory.test_the_journal_from_an_offset_and_from_a_time,
    ),
    "unstable progress": (
        lambda: mock.patch.dict(clients.READER_MUSTS, {"isolation.level": "read_uncommitted"}),
        ports.TestHistory.test_progress_that_may_still_change_is_waited_for,
    ),
    "stale fence accepted": (
        lambda: mock.patch.object(TransactionalProducer, "commit", without_member),
        ports.TestSink.test_stale_group_metadata_publishes_nothing,
    ),
}


@pytest.fixture
def harness(kafka: Broker) -> Iterator[ConfluentHarness]:
    real = ConfluentHarness(kafka.bootstrap_servers)
    yield real
    real.close()


@pytest.mark.broker
@pytest.mark.parametrize("name", TWINS)
def test_the_contract_finds_a_planted_bug_of_the_adapter(name: str, harness: ConfluentHarness) -> None:
    assert name in MUTATIONS
    plant, contract = TWINS[name]
    given: dict[str, object] = {"harness": harness}
    if "reader" in contract.__annotations__:
        given["reader"] = reader = Reader(harness.source())
        reader.own(2)
    with plant(), pytest.raises(AssertionError):
        contract(contract.__globals__[contract.__qualname__.partition(".")[0]](), **given)
