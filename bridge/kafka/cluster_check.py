"""`check-config --connect`: try the rights of the bridge's user, and what else a start checks. Nothing changes.

topic, group        the broker lists what our user may do
missing topic       its creation is validated, its configuration is asked for; Read and Write cannot be tried
transactional ids   a producer starts with a timeout that brokers refuse, after they have checked the right
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from shlex import quote
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.config.topic_requirements import DELIVERED, GROWN, JOINED, MADE, PUBLISHED, acl_command
from bridge.errors import BridgeError, SettingsError
from bridge.kafka import client_config as clients
from bridge.kafka.errors import answered, error_of, is_denied
from bridge.kafka.retry import CALL_S, Retrier
from bridge.kafka.topics import ConfluentTopics, OwnTopics, is_refusal, operations_of
from bridge.observe.metrics import Metrics

_ANSWERS = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_TRANSACTION_TIMEOUT
_REFUSED_TIMEOUT_MS = 2**31 - 1
"""A transaction timeout above transaction.max.timeout.ms. A broker that allows it notes an id that no bridge uses."""


def findings(settings: Settings, targets: Collection[str], user: str) -> Iterator[str]:
    """Yield a kafka-acls.sh command for each missing right, then what was not tried. Then raises as a start would.

    targets: more target topics than the settings name. user: the bridge's, for the commands.
    """
    retrier = Retrier()
    retrier.give_up_in(settings.startup_timeout / 1000)
    topics = UnchangedTopics(settings.connection(), retrier)
    own = OwnTopics(settings, topics, Metrics())
    named = {each for topic in settings.timer_topics().values() for each in topic.allow} | {*settings.targets, *targets}
    patterns = sorted(each for each in named if "*" in each or "?" in each)
    needed = dict.fromkeys(sorted(named.difference(patterns)), DELIVERED)
    needed |= {name: operations | MADE for name, operations in own.needed.items()}
    for name, journal in settings.journal_topics().items():
        if (topics.partitions(journal) or 0) < (topics.partitions(name) or 1):
            needed[journal] |= GROWN
    missing = {f"--topic {name}": topics.missing(name, operations) for name, operations in needed.items()}
    missing |= topics.missing_in_group(settings.group)
    for resource, operations in missing.items():
        if operations:
            yield acl_command(resource, operations, settings.bootstrap_servers, user)
    if topics.absent:
        yield f"not tried: Read and Write on topics that do not exist: {', '.join(topics.absent)}"
    for each in patterns:
        yield f"not tried: rights on target topics that match {each}; name topics by --target"
    yield "not tried: transaction.max.timeout.ms, progress, owners of journals, the data directory, actions of the page"
    try:
        settings.turn_options(own.prepare())
    except BridgeError as error:
        if isinstance(error, SettingsError) or not any(missing.values()):  # otherwise the missing rights explain it
            raise
    if any(missing.values()):
        raise BridgeError("rights are missing: grant them by the kafka-acls.sh commands above")


class UnchangedTopics(ConfluentTopics):
    """Has brokers validate changes instead of making them. A topic that would be created counts as created."""

    _changing: Mapping[str, Any] = {"validate_only": True, "request_timeout": CALL_S}

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        super().__init__(connection, retrier)
        self.absent: dict[str, dict[str, str]] = {}
        """Topics that do not exist, with the configuration that they would get."""

    def missing(self, name: str, needed: frozenset[str]) -> frozenset[str]:
        """Return the operations on a topic that our user lacks. If it may not describe the topic, Create is one too."""
        answer = self._answer(name, lambda: answered(self._described(name)))
        if not isinstance(answer, KafkaError):
            return _lacked(answer, needed - MADE)
        topic, resource = NewTopic(name, 1, -1), ConfigResource(ConfigResource.Type.TOPIC, name)
        create = partial(self._admin.create_topics, [topic], **self._changing)
        show = partial(self._admin.describe_configs, [resource], request_timeout=CALL_S)
        made = self._answer(name, lambda: answered(create()[name]))
        shown = self._answer(name, lambda: answered(show()[resource]))
        lacked = _lacked(made, MADE) | _lacked(shown, frozenset({"DESCRIBE_CONFIGS"}))
        if is_denied(answer):
            lacked |= needed - MADE - {"DESCRIBE_CONFIGS"}  # each of these includes Describe
        else:
            self.absent[name] = {}
        return needed & lacked

    def missing_in_group(self, group: str) -> dict[str, frozenset[str]]:
        """Return the operations that our user lacks on the group, and on the transactional ids of its instances."""
        options = {"include_authorized_operations": True, "request_timeout": CALL_S}
        describe = partial(self._admin.describe_consumer_groups, [group], **options)
        described = self._answer(group, lambda: answered(describe()[group]))
        config = {**clients.producer(self._connection, 0), "transaction.timeout.ms": _REFUSED_TIMEOUT_MS}
        producer: Any = clients.make(Producer, config, self._retrier)
        started = self._answer("transactional ids", lambda: producer.init_transactions(CALL_S))
        ids = f"--transactional-id {quote(f'{group}-')} --resource-pattern-type prefixed"
        return {f"--group {quote(group)}": _lacked(described, JOINED), ids: _lacked(started, PUBLISHED)}

    def _answer(self, name: str, ask: Callable[[], Any]) -> Any:
        """Return a broker's answer, or its error if that is an answer too."""

        def call() -> Any:
            try:
                return ask()
            except KafkaException as failure:
                error = error_of(failure)
                if is_denied(error) or is_refusal(error) or error.code() in _ANSWERS:
                    return error
                raise

        return self._retry(f"looking at {name}", call)

    # -- as if changes were made

    def config(self, name: str, *, once: bool = False) -> dict[str, str]:
        return self.absent.get(name) or super().config(name, once=once)

    def allowed(self, name: str) -> frozenset[str] | None:
        return None if name in self.absent else super().allowed(name)

    def create(self, name: str, partitions: int, replication_factor: int, config: dict[str, str]) -> None:
        super().create(name, partitions, replication_factor, config)
        self.absent[name] = {"max.message.bytes": "1048588", **config}  # Kafka's default

    def _until(self, name: str, partitions: int) -> None:
        """Do not wait: nothing was made."""


def _lacked(answer: Any, needed: frozenset[str]) -> frozenset[str]:
    if isinstance(answer, KafkaError):
        return needed if is_denied(answer) else frozenset()
    may = operations_of(answer)
    return frozenset() if may is None else needed - may
