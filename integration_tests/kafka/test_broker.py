"""The broker behind the fixture keeps what the bridge relies on: transactions, and offsets with metadata in them."""

from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from integration_tests.conftest import Broker
from integration_tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


def new_topic(bootstrap_servers: str) -> str:
    topic = f"broker-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    return topic


def transactional(bootstrap_servers: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": uuid4().hex})
    producer.init_transactions(PATIENCE_S)
    return producer


def reader(bootstrap_servers: str, topic: str) -> Consumer:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    return consumer


def poll(consumer: Consumer) -> Message:
    message = consumer.poll(PATIENCE_S)
    assert message is not None, "nothing came"
    assert message.error() is None, message.error()
    return message


def test_what_is_committed_arrives_and_what_is_aborted_does_not(kafka: Broker) -> None:
    topic = new_topic(kafka.bootstrap_servers)
    producer = transactional(kafka.bootstrap_servers)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, headers=[("timer-topic", b"real"), ("timer-topic", None)])
        producer.flush(PATIENCE_S)
        end(PATIENCE_S)
    consumer = reader(kafka.bootstrap_servers, topic)
    message = poll(consumer)
    consumer.close()
    assert message.value() == b"committed"
    assert message.headers() == [("timer-topic", b"real"), ("timer-topic", None)]


def test_metadata_travels_with_offsets_in_a_transaction(kafka: Broker) -> None:
    topic = new_topic(kafka.bootstrap_servers)
    producer = transactional(kafka.bootstrap_servers)
    producer.begin_transaction()
    producer.produce(topic, b"request")
    producer.commit_transaction(PATIENCE_S)
    consumer = reader(kafka.bootstrap_servers, topic)
    poll(consumer)
    producer.begin_transaction()
    progress = [TopicPartition(topic, 0, 1, "C=1 K=2 L=3")]
    producer.send_offsets_to_transaction(progress, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
    (committed,) = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
    consumer.close()
    assert (committed.offset, committed.metadata) == (1, "C=1 K=2 L=3")


def test_a_misspelt_topic_is_not_made_by_the_way(kafka: Broker) -> None:
    if kafka.kind == "given":
        pytest.skip("a given broker is taken as it is")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert admin.list_topics("no-such-topic", PATIENCE_S).topics["no-such-topic"].error is not None
    assert "no-such-topic" not in admin.list_topics(timeout=PATIENCE_S).topics
