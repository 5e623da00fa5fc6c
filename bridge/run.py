"""`timer-bridge run`: settings -> topics -> ports -> turns, until a signal ends them. The system clock lives here."""

import logging
import signal
import sys
import time
from types import FrameType

from bridge.confluent import ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics
from bridge.datadir import DataDir
from bridge.errors import BridgeError, SettingsError
from bridge.settings import Settings
from bridge.topics import faults, receipts_topic, rejected_topic, timer_topic
from bridge.turn import Bridge

log = logging.getLogger(__name__)

_CHECK_EACH_S = 600.0
"""How often retention is looked at again: somebody may have shortened it."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def is_asked(self) -> bool:
        return self.asked


def run(settings: Settings) -> None:
    """Returns after a clean end. Raises BridgeError."""
    stop = Stop()
    folder = DataDir(settings.data_dir)
    try:
        topics = ConfluentTopics(settings.connection(), settings.startup_timeout / 1000)
        max_message_bytes = prepare_topics(settings, topics)
        _turns(settings, folder, stop, topics, max_message_bytes)
    finally:
        folder.close()


def prepare_topics(settings: Settings, topics: ConfluentTopics) -> int:
    """Makes what is missing; returns the bytes of a message that the timer topic takes.

    Raises SettingsError where a topic would lose timers.
    """
    found = topics.partitions()
    window_ms, replicas = settings.roll_window, settings.replication_factor
    if settings.timer_topic not in found:
        topics.create(settings.timer_topic, settings.partitions, replicas, timer_topic(window_ms))
        found = topics.partitions()
    partitions = found.get(settings.timer_topic, settings.partitions)
    config = topics.config(settings.timer_topic)
    if settings.journal_topic not in found:
        topics.create(settings.journal_topic, partitions, replicas, timer_topic(window_ms))
    elif found[settings.journal_topic] < partitions:
        raise SettingsError(
            f"{settings.journal_topic} has {found[settings.journal_topic]} partitions, {settings.timer_topic}"
            f" {partitions}: give the journal as many"
        )
    max_message_bytes = int(config["max.message.bytes"])
    if settings.rejected_topic not in found:
        topics.create(settings.rejected_topic, partitions, replicas, rejected_topic(max_message_bytes))
    if settings.receipts_topic not in found and settings.receipts != "none":
        topics.create(settings.receipts_topic, partitions, replicas, receipts_topic())
    check_topics(settings, topics)
    return max_message_bytes


def check_topics(settings: Settings, topics: ConfluentTopics) -> None:
    """Raises SettingsError where retention or clean-up would take a timer that lives."""
    wrong = [
        fault
        for topic in (settings.timer_topic, settings.journal_topic)
        for fault in faults(topic, topics.config(topic), settings.roll_window)
    ]
    if wrong:
        raise SettingsError("; ".join(wrong))


def _complain_about_topics(settings: Settings, topics: ConfluentTopics) -> None:
    """A running bridge goes on, as stopping it would not bring anything back, but says it loudly."""
    try:
        check_topics(settings, topics)
    except SettingsError as wrong:
        log.error("timers may be lost: %s", wrong)
    except BridgeError as unknown:
        log.warning("topics could not be checked: %s", unknown)


def _turns(settings: Settings, folder: DataDir, stop: Stop, topics: ConfluentTopics, max_message_bytes: int) -> None:
    connection = settings.connection()
    journal_topics = {settings.timer_topic: settings.journal_topic}
    instance = f"{settings.group}-{folder.instance_id()}"
    sink = ConfluentSink(connection, instance, journal_topics, stop.is_asked)
    group = {**connection, "group.id": settings.group}
    history = ConfluentHistory(group, journal_topics, stop.is_asked)
    bridge = Bridge(
        clock=SystemClock(),
        source=ConfluentSource(group, [settings.timer_topic]),
        history=history,
        sink=sink,
        disk_for=folder.disk_for,
        options=settings.turn_options(max_message_bytes),
    )
    said = False
    checked_s = time.monotonic()
    try:
        while not stop.asked:
            bridge.turn()
            if time.monotonic() - checked_s >= _CHECK_EACH_S:
                checked_s = time.monotonic()
                _complain_about_topics(settings, topics)
            if bridge.ready and not said:
                print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
                said = True
    finally:
        bridge.stop()
        sink.close()
        history.close()
        sys.stdout.flush()
