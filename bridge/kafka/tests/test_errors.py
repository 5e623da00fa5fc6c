"""Errors of librdkafka: what they mean, and what to do."""

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from bridge.kafka.errors import answered, error_of, explained, is_passing, reason


def test_an_answer_that_never_comes_is_a_passing_error() -> None:
    with pytest.raises(KafkaException) as failed:
        answered(Future[int](), 0)
    error = error_of(failed.value)
    assert (error.str(), is_passing(error)) == ("no answer in 0 s", True)


def test_a_refused_transaction_timeout_names_the_setting_of_the_brokers() -> None:
    told = str(explained("starting the producer", KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT)))
    assert told.startswith("starting the producer: ")
    assert told.endswith(
        "set the brokers' transaction.max.timeout.ms, which is below the bridge's 10 s, to 10000 or more"
    )


def test_a_name_that_does_not_resolve_names_the_setting_of_the_brokers() -> None:
    told = reason(KafkaError(KafkaError._RESOLVE, "Failed to resolve 'kafka-1:9092'"))  # noqa: SLF001
    assert told == "Failed to resolve 'kafka-1:9092': check bootstrap_servers and the brokers' advertised.listeners"
