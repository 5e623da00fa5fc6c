"""A test's own access to a broker: topics, requests, and read_committed readers."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from integration_tests.support.patience import PATIENCE_S, until
from scripts.common.kafka_io import Admin

_UNDECIDED_S = PATIENCE_S
"""After a kill, a broker writes the markers of committed transactions some time after its restart."""


class Cluster:
    """A broker that tests share: topics get unique names. `security`: the user, in librdkafka's settings."""

    def __init__(self, bootstrap_servers: str, security: Mapping[str, str] = {}) -> None:
        self.bootstrap_servers, self._security = bootstrap_servers, security
        self._address: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "log_level": 0, **security}
        self.admin: Any = AdminClient(self._address)
        self._producer: Any = Producer({**self._address, "linger.ms": 1, "enable.idempotence": True})

    def topic(self, prefix: str = "t", partitions: int = 1, **config: str) -> str:
        """Create a topic and return its name. `max_message_bytes="1000"` is max.message.bytes=1000."""
        name = f"{prefix}-{uuid4().hex[:8]}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, and wait until the broker serves it: the controller's answer may come before."""
        # Tests write old timestamps, which retention would delete half a minute after the broker's start.
        settings = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, config=settings)
        try:
            self.admin.create_topics([topic], operation_timeout=PATIENCE_S)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001 - its name there
                raise
            # A client that connects while its only broker starts may never find it (docs/design/reads-and-bounds.md).
            self.admin = AdminClient(self._address)
            self.admin.create_topics([topic], operation_timeout=PATIENCE_S)[name].result()
        self._await_partitions(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=PATIENCE_S)[name].result()
        self._await_partitions(name, partitions)

    def _await_partitions(self, name: str, partitions: int) -> None:
        def found() -> int:
            return len(self.admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions)

        until(lambda: found() >= partitions, f"{name} with {partitions} partitions")

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the broker knows: until then it still takes records."""
        self.admin.delete_topics([name], operation_timeout=PATIENCE_S)[name].result()
        until(lambda: name not in self.admin.list_topics(timeout=PATIENCE_S).topics)

    def deny(self, topic: str, *, may_describe: bool) -> None:
        """Deny all writes. may_describe: the test's user may read it, and so see that it exists."""
        user = "User:ANONYMOUS" if may_describe else "User:somebody-else"
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        acl = AclBinding(ResourceType.TOPIC, topic, literal, user, "*", AclOperation.READ, allow)
        self.admin.create_acls([acl])[acl].result()

    def hide_settings(self, topic: str) -> None:
        """Allow everything but to read its configuration."""
        literal, allow, deny = ResourcePatternType.LITERAL, AclPermissionType.ALLOW, AclPermissionType.DENY
        for operation, permission in ((AclOperation.ALL, allow), (AclOperation.DESCRIBE_CONFIGS, deny)):
            acl = AclBinding(ResourceType.TOPIC, topic, literal, "User:*", "*", operation, permission)
            self.admin.create_acls([acl])[acl].result()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
        partition: int = 0,
    ) -> None:
        """Send a record, to the key's partition if that is -1; `flush` waits for its acknowledgement."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=list(headers))
            except BufferError:
                self._producer.flush(0.1)
                continue
            return

    def flush(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def transactional(self) -> Any:
        producer: Any = Producer({**self._address, "transactional.id": uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        return producer

    def read(self, *topics: str) -> list[Any]:
        """Return the committed records up to the present end, after open transactions before it have ended."""
        admin, uncommitted = Admin(self.bootstrap_servers, self._security), IsolationLevel.READ_UNCOMMITTED
        found = {(topic, number): end for topic in topics for number, end in admin.ends(topic, uncommitted).items()}
        ends = {place: end for place, end in found.items() if end > 0}
        consumer: Any = Consumer(
            {
                **self._address,
                "group.id": uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 10,
            }
        )
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in ends])
        messages = []
        while ends:
            message = consumer.poll(_UNDECIDED_S)
            assert message is not None, f"undecided: {ends}"
            error = message.error()
            assert error is None or error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001
            place, reached = (message.topic(), message.partition()), message.offset()
            if error is None:
                messages.append(message)
                reached += 1
            if reached >= ends.get(place, reached + 1):
                del ends[place]
        consumer.close()
        return sorted(messages, key=lambda m: (m.topic(), m.partition(), m.offset()))

    def values(self, *topics: str) -> list[bytes | None]:
        return [message.value() for message in self.read(*topics)]
