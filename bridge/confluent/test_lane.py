"""A producer that is replaced by one with more time, where brokers allow that."""

from typing import Any

import pytest

from bridge.confluent import sink
from bridge.confluent.clients import LONGEST_TRANSACTION_MS
from bridge.confluent.producer import IdHeldError, TimeoutRefusedError
from bridge.confluent.sink import Lane
from bridge.confluent.waiting import Patience
from bridge.connection import Connection


def lane(monkeypatch: pytest.MonkeyPatch, most_ms: int) -> tuple[Lane, list[int]]:
    """Of brokers that allow transactions of so long; and the time-outs of the producers that were started."""
    started: list[int] = []

    class Producer:
        is_broken = is_hurried = is_proven = was_forgiven = False

        def __init__(self, config: dict[str, Any], patience: Patience, unavailable: object, **_: object) -> None:
            del patience, unavailable
            if config["transaction.timeout.ms"] > most_ms:
                raise TimeoutRefusedError("starting the producer: too long")
            started.append(config["transaction.timeout.ms"])

        def close(self) -> None: ...

    monkeypatch.setattr(sink, "TransactionalProducer", Producer)
    return Lane(Connection("127.0.0.1:1"), 0, Patience()), started


def test_who_runs_out_of_time_gets_twice_as_much_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it the group would take the shards away: who waits does not poll."""
    of, started = lane(monkeypatch, 10**9)
    for _ in range(8):
        of.producer.is_hurried = True
        of.heal()
    assert started == [10_000, 20_000, 40_000, 80_000, 160_000, LONGEST_TRANSACTION_MS]
    assert LONGEST_TRANSACTION_MS < 300_000
    of.close()


def test_where_brokers_allow_no_more_time_it_goes_on_with_what_it_had(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of, started = lane(monkeypatch, 30_000)
    for _ in range(4):
        of.producer.is_hurried = True
        of.heal()
    assert started == [10_000, 20_000, 20_000]
    assert "brokers do not allow that" in caplog.text
    of.close()


def test_brokers_that_allow_not_even_the_usual_time_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutRefusedError):
        lane(monkeypatch, 5_000)


def test_an_id_that_kafka_holds_is_left_for_the_next_one_that_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"group-one-0", "group-one-0-1"}

    class Producer:
        is_broken = is_hurried = is_proven = was_forgiven = False

        def __init__(self, config: dict[str, Any], *_: object, **__: object) -> None:
            self.id = config["transactional.id"]
            if self.id in held:
                raise IdHeldError("starting the producer: concurrent transactions")

        def close(self) -> None: ...

    monkeypatch.setattr(sink, "TransactionalProducer", Producer)
    of: Any = Lane(Connection("127.0.0.1:1", "group", "one"), 0, Patience())
    assert of.producer.id == "group-one-0-2"
    held.add(of.producer.id)
    of.producer.is_broken = True
    of.heal()
    assert of.producer.id == "group-one-0-3"
    of.close()
