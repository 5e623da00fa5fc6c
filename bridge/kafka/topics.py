"""Describe, create and change topics with an admin client.

OwnTopics creates the bridge's own topics if they are missing, and checks them, at start and while it runs.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Any, ClassVar, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bridge.config import topic_requirements as requirements
from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.config.topic_requirements import FILLED, FOLLOWED, LOGGED, RETENTION_WINDOWS, TopicState, missing_right
from bridge.errors import BridgeError, SettingsError
from bridge.kafka import client_config as clients
from bridge.kafka.client_config import make
from bridge.kafka.errors import answered, error_of, explained, is_denied, is_passing
from bridge.kafka.retry import CALL_S, Retrier, serve, serve_idle
from bridge.observe.metrics import Metrics
from bridge.partition.limits import MOST_LIMITED, MOST_PAUSED

log = logging.getLogger(__name__)

T = TypeVar("T")
_ANSWERS = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_TRANSACTION_TIMEOUT
_REFUSED_TIMEOUT_MS = 2**31 - 1
"""A transaction timeout above transaction.max.timeout.ms. A broker that allows it notes an id that no bridge uses."""
_NOT_SEEN = "created, but not visible yet, or not to us: give the bridge's user the right (an ACL) to describe it"


class ConfluentTopics:
    """Every call waits for a broker, as long as `retrier` does, unless its docstring differs."""

    _options: ClassVar[dict[str, Any]] = {}
    """Options of requests that create topics or partitions."""

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        self._connection = connection
        self._retrier = retrier
        self._make_admin()

    def _make_admin(self) -> None:
        """Make a client. Repeated if no broker answers for long: a client may lose all brokers for good."""
        self._admin: Any = make(AdminClient, clients.admin(self._connection), self._retrier)
        self._asked_s = time.monotonic()

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions, or None if the topic does not exist."""

        def ask() -> int | None:
            topics = self._admin.list_topics(timeout=CALL_S).topics
            return len(topics[name].partitions) if name in topics else None

        return self._retry(f"waiting for a broker ({name})", ask)

    def counts(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic. Asks once; leaves out topics without an answer."""
        serve_idle(self._admin)
        found: dict[str, int] = {}
        answers = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=CALL_S)
        for name, answer in answers.items():
            with suppress(KafkaException):
                found[name] = len(answered(answer).partitions)
        serve(self._admin)
        if not found:
            self._make_admin()
        return found

    def config(self, name: str, *, once: bool = False) -> dict[str, str]:
        """Return a topic's configuration. once: True to raise BridgeError if no broker answers in time."""

        def ask() -> dict[str, str]:
            return {key: entry.value for key, entry in answered(self._configured(name)).items()}

        return self._retry(f"looking at topic {name}", ask, once=once)

    def _configured(self, name: str) -> Any:
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        return self._admin.describe_configs([resource], request_timeout=CALL_S)[resource]

    def allowed(self, name: str) -> frozenset[str] | None:
        """Return the operations on an existing topic that our user is allowed, or None if the broker does not tell."""
        return self._retry(f"looking at topic {name}", lambda: operations_of(answered(self._described(name))))

    def _described(self, name: str) -> Any:
        topics = TopicCollection([name])
        return self._admin.describe_topics(topics, include_authorized_operations=True, request_timeout=CALL_S)[name]

    def create(self, name: str, partitions: int, replication_factor: int, config: dict[str, str]) -> None:
        """Create a topic, unless another instance was faster. Returns when the cluster knows it."""
        topic = NewTopic(name, partitions, replication_factor, config=config)
        self._make(f"making topic {name}", lambda: self._created(topic), KafkaError.TOPIC_ALREADY_EXISTS)
        self._until(name, 1)

    def _created(self, topic: NewTopic) -> Any:
        return self._admin.create_topics([topic], request_timeout=CALL_S, **self._options)[topic.topic]

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions, up to `partitions` in all."""
        new = NewPartitions(name, partitions)

        def ask() -> Any:
            return self._admin.create_partitions([new], request_timeout=CALL_S, **self._options)[name]

        self._make(f"adding partitions to topic {name}", ask, KafkaError.INVALID_PARTITIONS)
        self._until(name, partitions)

    def _make(self, what: str, ask: Callable[[], Any], done_already: int) -> None:
        def unless_done() -> None:
            try:
                answered(ask())
            except KafkaException as failure:
                if error_of(failure).code() != done_already:
                    raise

        self._retry(what, unless_done)

    def _until(self, name: str, partitions: int) -> None:
        tries = 0
        while (self.partitions(name) or 0) < partitions:
            self._retrier.wait(f"topic {name}", _NOT_SEEN, tries, quietly=True)
            tries += 1

    def _retry(self, what: str, call: Callable[[], T], *, once: bool = False) -> T:
        serve_idle(self._admin)
        self._asked_s = time.monotonic()

        def is_asked_again(error: KafkaError) -> bool:
            if time.monotonic() - self._asked_s >= clients.REPLACED_AFTER_S:
                self._make_admin()
            return not once and is_passing(error) and not is_refusal(error)

        def served() -> T:
            try:
                return call()
            finally:
                serve(self._admin)  # error_cb gets the reason why no broker answers

        try:
            return self._retrier.retry_until_success(what, served, is_asked_again)
        except KafkaException as failure:
            raise explained(what, error_of(failure)) from failure


def operations_of(described: Any) -> frozenset[str] | None:
    """Return the operations that our user is allowed, or None if the broker does not tell them."""
    operations = getattr(described, "authorized_operations", None)
    return None if operations is None else frozenset(operation.name for operation in operations)


def is_refusal(error: KafkaError) -> bool:
    """Return True if a retry would not help."""
    return error.code() in (
        *(KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_CONFIG),
        *(KafkaError.TOPIC_EXCEPTION, KafkaError.POLICY_VIOLATION),
    )


class OwnTopics:
    """Creates and checks the topics; sets `metrics` to the partitions and retention found."""

    def __init__(self, settings: Settings, topics: ConfluentTopics, metrics: Metrics) -> None:
        self._settings = settings
        self._topics = topics
        self._metrics = metrics
        self._journals = settings.journal_topics()
        self._window_ms = settings.roll_window
        self._write_only = [settings.rejected_topic] + [settings.receipts_topic] * (settings.receipts != "none")
        self.needed = dict.fromkeys(self._write_only, FILLED) | {settings.control_topic: FOLLOWED}
        """Operations needed on each topic once it exists."""
        self.needed |= dict.fromkeys((*self._journals, *self._journals.values()), LOGGED)
        allows_compressed = settings.compressed_requests == "allow"
        self._demands_uncompressed_of = None if allows_compressed else settings.bootstrap_servers
        """Bootstrap servers for the command in a refusal; None if timer topics may be compressed."""
        self._journal_bytes = requirements.journal_bytes(MOST_PAUSED + MOST_LIMITED * bool(settings.targets))

    def prepare(self, *, is_running: bool = False) -> dict[str, TopicState]:
        """Create missing topics; return the state of each timer topic.

        Raises SettingsError if a topic would lose timers (a running bridge only logs that), BridgeError if an ACL is
        missing.
        """
        settings = self._settings
        found: dict[str, TopicState] = {}
        journals: dict[str, int] = {}
        for name, journal in self._journals.items():
            wanted = requirements.timer_topic(self._window_ms, is_compressed=self._demands_uncompressed_of is None)
            partitions = self._made(name, settings.partitions, wanted)
            config = self._topics.config(name)
            found[name] = TopicState(partitions, int(config["max.message.bytes"]))
            wanted = requirements.journal_topic(self._window_ms, self._journal_bytes, config["retention.ms"])
            journals[name] = self._made(journal, partitions, wanted)
        largest = max(each.max_message_bytes for each in found.values())
        partitions = found[settings.timer_topic].partitions
        self._made(settings.rejected_topic, partitions, requirements.rejected_topic(largest))
        if settings.receipts_topic in self._write_only:
            self._made(settings.receipts_topic, partitions, requirements.RECEIPTS_TOPIC)
        if (count := self._made(settings.control_topic, 1, requirements.CONTROL_TOPIC)) != 1:
            raise SettingsError(f"{settings.control_topic}: {count} partitions, control_topic needs 1; name another")
        for name, each in found.items():
            self._metrics.topic_partitions.labels(name).set(each.partitions)
        if is_running:
            self.complain()
        else:
            self._check_retention()
            self._warn_of_open_policies()
        self._check_filled(self._checked_rights(), largest)
        for name, each in found.items():
            if journals[name] < each.partitions:
                text = "keys and ids may map to other partitions now; a cancel of an earlier timer may not find it"
                log.warning("%s grew from %d to %d partitions: %s", name, journals[name], each.partitions, text)
                self._topics.grow(self._journals[name], each.partitions)
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of partitions of each timer topic that a broker answers for. Asks once."""
        return self._topics.counts(self._journals)

    def _warn_of_open_policies(self) -> None:
        for name, topic in self._settings.timer_topics().items():
            if topic.policy.is_open:
                setting = "allow_targets" if name == self._settings.timer_topic else f'topics."{name}".allow'
                text = "%s: its senders may send to every topic that the bridge may write to; set %s to their targets"
                log.warning(text, name, setting)

    def complain(self) -> None:
        """Log faults of the topics. A running bridge goes on, as a stop would not bring timers back.

        Does not wait for brokers, because the loop's thread calls it.
        """
        try:
            self._check_retention(once=True)
        except SettingsError as wrong:
            log.error("timers may be lost: %s", wrong)
        except BridgeError as unknown:
            log.warning("topics could not be checked: %s", unknown)

    def _made(self, name: str, partitions: int, config: dict[str, str]) -> int:
        found = self._topics.partitions(name)
        if found is None:
            self._topics.create(name, partitions, self._settings.replication_factor, config)
            found = self._topics.partitions(name) or partitions
        return found

    def _check_retention(self, *, once: bool = False) -> None:
        """Raise SettingsError if retention or compaction would delete requests of pending timers."""
        wrong: list[str] = []
        retention_ms: dict[str, int] = {}
        for name, journal in self._journals.items():
            of_topic, of_journal = (self._topics.config(each, once=once) for each in (name, journal))
            wrong += requirements.faults(name, of_topic, self._window_ms, self._demands_uncompressed_of)
            wrong += requirements.journal_faults(journal, of_journal, self._window_ms, self._journal_bytes)
            retention_ms |= {name: int(of_topic["retention.ms"]), journal: int(of_journal["retention.ms"])}
        self._metrics.retention_checked(retention_ms, RETENTION_WINDOWS * self._window_ms)
        if wrong:
            raise SettingsError("; ".join(wrong))

    def _checked_rights(self) -> dict[str, frozenset[str] | None]:
        """Return the operations allowed on each topic; None if the cluster does not tell.

        Raises BridgeError if the bridge's user lacks an operation that will be needed later.
        """
        found = {topic: self._topics.allowed(topic) for topic in self.needed}
        missing = [missing_right(topic, self.needed[topic], may) for topic, may in found.items() if may is not None]
        if any(missing):
            raise BridgeError("; ".join(filter(None, missing)))
        return found

    def _check_filled(self, allowed: Mapping[str, frozenset[str] | None], largest: int) -> None:
        """Warn of faults in write-only topics if our user may read their configuration. These faults lose no timer."""
        for name in self._write_only:
            may = allowed[name]
            if may is not None and "DESCRIBE_CONFIGS" not in may:
                continue
            config = self._topics.config(name)
            room = requirements.rejected_faults(name, config, largest) if name == self._settings.rejected_topic else []
            for each in requirements.clock_faults(name, config) + room:
                log.warning("%s", each)


def findings(settings: Settings, targets: Collection[str], user: str) -> Iterator[str]:
    """Try the rights of the bridge's user, and what else a start checks, for `check-config --connect`. Nothing changes.

    topic, group        the broker lists what our user may do
    missing topic       its creation is validated, its configuration is asked for; Read and Write cannot be tried
    transactional ids   a producer starts with a timeout that brokers refuse, after they have checked the right

    Yield a kafka-acls.sh command for each missing right, then what was not tried. Then raises as a start would.
    targets: more target topics than the settings name. user: the bridge's, for the commands.
    """
    retrier = Retrier()
    retrier.give_up_in(settings.startup_timeout / 1000)
    topics = UnchangedTopics(settings.connection(), retrier)
    own = OwnTopics(settings, topics, Metrics())
    named = {each for topic in settings.timer_topics().values() for each in topic.allow} | {*settings.targets, *targets}
    patterns = sorted(each for each in named if "*" in each or "?" in each)
    needed = dict.fromkeys(sorted(named.difference(patterns)), requirements.DELIVERED)
    needed |= {name: operations | requirements.MADE for name, operations in own.needed.items()}
    for name, journal in settings.journal_topics().items():
        if (topics.partitions(journal) or 0) < (topics.partitions(name) or 1):
            needed[journal] |= requirements.GROWN
    missing = {f"--topic {name}": topics.missing(name, operations) for name, operations in needed.items()}
    missing |= topics.missing_in_group(settings.group)
    for resource, operations in missing.items():
        if operations:
            yield requirements.acl_command(resource, operations, settings.bootstrap_servers, user)
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

    _options: ClassVar[dict[str, Any]] = {"validate_only": True}

    def __init__(self, connection: Connection, retrier: Retrier) -> None:
        super().__init__(connection, retrier)
        self.absent: dict[str, dict[str, str]] = {}
        """Topics that do not exist, with the configuration that they would get."""

    def missing(self, name: str, needed: frozenset[str]) -> frozenset[str]:
        """Return the operations on a topic that our user lacks. If it may not describe the topic, Create is one too."""
        answer = self._answer(name, lambda: answered(self._described(name)))
        if not isinstance(answer, KafkaError):
            return _lacked(answer, needed - requirements.MADE)
        made = self._answer(name, lambda: answered(self._created(NewTopic(name, 1, -1))))
        shown = self._answer(name, lambda: answered(self._configured(name)))
        lacked = _lacked(made, requirements.MADE) | _lacked(shown, frozenset({"DESCRIBE_CONFIGS"}))
        if is_denied(answer):
            lacked |= needed - requirements.MADE - {"DESCRIBE_CONFIGS"}  # each of these includes Describe
        else:
            self.absent[name] = {}
        return needed & lacked

    def missing_in_group(self, group: str) -> dict[str, frozenset[str]]:
        """Return the operations that our user lacks on the group, and on the transactional ids of its instances."""
        options = {"include_authorized_operations": True}
        described = self._answer(
            group,
            lambda: answered(self._admin.describe_consumer_groups([group], request_timeout=CALL_S, **options)[group]),
        )
        config = {**clients.producer(self._connection, 0), "transaction.timeout.ms": _REFUSED_TIMEOUT_MS}
        producer: Any = clients.make(Producer, config, self._retrier)
        started = self._answer("transactional ids", lambda: producer.init_transactions(CALL_S))
        ids = f"--transactional-id {quote(f'{group}-')} --resource-pattern-type prefixed"
        return {
            f"--group {quote(group)}": _lacked(described, requirements.JOINED),
            ids: _lacked(started, requirements.PUBLISHED),
        }

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
