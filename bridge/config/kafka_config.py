"""Connection to Kafka, and the librdkafka settings that the operator may not set."""

from collections.abc import Mapping
from dataclasses import dataclass, field

RESERVED = {
    "bootstrap.servers": "it is the setting bootstrap_servers",
    "metadata.broker.list": "it is the setting bootstrap_servers",
    "group.id": "it is the setting group",
    "transactional.id": "it is made of group and the data directory's instance id",
    "isolation.level": "uncommitted records must not be read",
    "enable.auto.commit": "progress is committed with what was delivered",
    "enable.auto.offset.store": "progress is committed with what was delivered",
    "auto.offset.reset": "deleted requests must not be passed over silently",
    "partition.assignment.strategy": "partitions are handed over one by one",
    "enable.idempotence": "exactly-once delivery needs it",
    "transaction.timeout.ms": "a dead instance's open transaction must not block readers",
    "message.timeout.ms": "records that time out are sent again with their transaction",
    "delivery.timeout.ms": "records that time out are sent again with their transaction",
    "delivery.report.only.error": "the bridge asks for what it needs",
    "partitioner": "keys go where Kafka's own clients send them",
    "allow.auto.create.topics": "a look-up must not create a misspelt topic",
    "topic.metadata.propagation.max.ms": "an unknown topic must not delay the others",
}
"""librdkafka settings that the operator may not set, with the reason."""


@dataclass(frozen=True)
class Connection:
    """How to connect to Kafka.

    instance: tells this process from the others of its group. kafka: librdkafka settings, passed through; never shown,
    as they may be secrets. address: host:port of our HTTP server for other instances, or empty.
    """

    bootstrap_servers: str
    group: str = "timer-bridge"
    instance: str = ""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    published: Mapping[str, str] = field(default_factory=dict)
    """librdkafka settings of producers; `kafka` overrides them."""
    address: str = ""
    fetched: Mapping[str, str] = field(default_factory=dict)
    """librdkafka settings of consumers of timer topics; `kafka` overrides them."""
