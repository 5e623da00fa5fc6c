"""Create the bridge's own topics if they are missing, and check them, at start and while it runs."""

import logging
from collections.abc import Mapping

from bridge.config.settings import Settings
from bridge.config.topic_requirements import (
    FILLED,
    FOLLOWED,
    LOGGED,
    RETENTION_WINDOWS,
    TopicState,
    clock_faults,
    compression_fault,
    control_topic,
    faults,
    journal_bytes,
    journal_faults,
    journal_topic,
    missing_right,
    receipts_topic,
    rejected_faults,
    rejected_topic,
    timer_topic,
)
from bridge.errors import BridgeError, SettingsError
from bridge.intake.quota import MOST_LIMITED, MOST_PAUSED
from bridge.kafka import ConfluentTopics
from bridge.observe.metrics import Metrics

log = logging.getLogger(__name__)


class OwnTopics:
    """Creates and checks the topics; sets `metrics` to the partitions and retention found."""

    def __init__(self, settings: Settings, topics: ConfluentTopics, metrics: Metrics) -> None:
        self._settings = settings
        self._topics = topics
        self._metrics = metrics
        self._journals = settings.journal_topics()
        self._window_ms = settings.roll_window
        self._write_only = [settings.rejected_topic] + [settings.receipts_topic] * (settings.receipts != "none")
        allows_compressed = settings.compressed_requests == "allow"
        self._demands_uncompressed_of = None if allows_compressed else settings.bootstrap_servers
        """Bootstrap servers for the command in a refusal; None if timer topics may be compressed."""
        self._journal_bytes = journal_bytes(
            settings.max_poll_records, settings.max_due_records, MOST_PAUSED + MOST_LIMITED * bool(settings.targets)
        )

    def prepare(self, *, is_running: bool = False) -> dict[str, TopicState]:
        """Create missing topics; return the state of each timer topic.

        Raises SettingsError if a topic would lose timers (a running bridge only logs that), BridgeError if an ACL is
        missing.
        """
        settings = self._settings
        found: dict[str, TopicState] = {}
        journals: dict[str, int] = {}
        for name, journal in self._journals.items():
            wanted = timer_topic(self._window_ms, is_compressed=self._demands_uncompressed_of is None)
            partitions = self._made(name, settings.partitions, wanted)
            if settings.fix_topics and not is_running:
                self._fix(name)
            found[name] = TopicState(partitions, int(self._topics.config(name)["max.message.bytes"]))
            journals[name] = self._made(journal, partitions, journal_topic(self._window_ms, self._journal_bytes))
        largest = max(each.max_message_bytes for each in found.values())
        partitions = found[settings.timer_topic].partitions
        self._made(settings.rejected_topic, partitions, rejected_topic(largest))
        if settings.receipts_topic in self._write_only:
            self._made(settings.receipts_topic, partitions, receipts_topic())
        if (count := self._made(settings.control_topic, 1, control_topic())) != 1:
            raise SettingsError(f"{settings.control_topic}: {count} partitions, control_topic needs 1; name another")
        self._metrics.topics_checked({name: each.partitions for name, each in found.items()})
        if is_running:
            self.complain()
        else:
            self._check_retention()
            self._warn_of_open_policies()
        self._check_filled(self._checked_rights(), largest)
        for name, each in found.items():
            if journals[name] < each.partitions:
                self._grow(name, journals[name], each.partitions)
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

    def _fix(self, name: str) -> None:
        """Set compression.type=uncompressed: brokers then decompress each record that is sent to the timer topic."""
        servers = self._demands_uncompressed_of
        if servers is not None and compression_fault(name, self._topics.config(name), servers):
            self._topics.set_config(name, "compression.type", "uncompressed")
            log.warning("%s: compression.type is uncompressed now, by --fix-topics", name)

    def _made(self, name: str, partitions: int, config: dict[str, str]) -> int:
        """Create the topic if it is missing; return its number of partitions."""
        found = self._topics.partitions(name)
        if found is None:
            self._topics.create(name, partitions, self._settings.replication_factor, config)
            found = self._topics.partitions(name)
        return partitions if found is None else found

    def _check_retention(self, *, once: bool = False) -> None:
        """Raise SettingsError if retention or compaction would delete requests of pending timers."""
        wrong: list[str] = []
        retention_ms: dict[str, int] = {}
        for name, journal in self._journals.items():
            of_topic, of_journal = (self._topics.config(each, once=once) for each in (name, journal))
            wrong += faults(name, of_topic, self._window_ms, self._demands_uncompressed_of)
            wrong += journal_faults(journal, of_journal, self._window_ms, self._journal_bytes)
            retention_ms |= {name: int(of_topic["retention.ms"]), journal: int(of_journal["retention.ms"])}
        self._metrics.retention_checked(retention_ms, RETENTION_WINDOWS * self._window_ms)
        if wrong:
            raise SettingsError("; ".join(wrong))

    def _checked_rights(self) -> dict[str, frozenset[str] | None]:
        """Return the operations allowed on each topic; None if the cluster does not tell.

        Raises BridgeError if the bridge's user lacks an operation that will be needed later.
        """
        needed = dict.fromkeys(self._write_only, FILLED) | {self._settings.control_topic: FOLLOWED}
        for name, journal in self._journals.items():
            needed |= {name: LOGGED, journal: LOGGED}
        found = {topic: self._topics.allowed(topic) for topic in needed}
        missing = [missing_right(topic, needed[topic], may) for topic, may in found.items() if may is not None]
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
            room = rejected_faults(name, config, largest) if name == self._settings.rejected_topic else []
            for each in clock_faults(name, config) + room:
                log.warning("%s", each)

    def _grow(self, name: str, before: int, partitions: int) -> None:
        text = (
            "%s grew from %d to %d partitions: keys and ids may map to other partitions now; a cancel of a timer that"
            " was sent before may not find it"
        )
        log.warning(text, name, before, partitions)
        self._topics.grow(self._journals[name], partitions)
