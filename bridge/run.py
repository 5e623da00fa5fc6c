"""`timer-bridge run`: settings -> topics -> ports -> turns, until a signal ends them. The system clock lives here.

SIGTERM or Ctrl-C: the open transaction is ended, stores are closed, exit 0; whoever waits for a broker then waits no
longer than `END_S`. A second one kills. A commit whose fate is unknown ends one life of the bridge and begins the next
in the same process: Kafka knows what stands.
"""

import logging
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

from bridge.confluent import ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics, Patience
from bridge.connection import Connection
from bridge.datadir import DataDir
from bridge.errors import BridgeError, BrokerUnavailableError, OutcomeUnknownError, SettingsError
from bridge.garbage import expect_batches
from bridge.settings import Settings
from bridge.topics import (
    FILLED,
    LOGGED,
    faults,
    journal_bytes,
    journal_faults,
    journal_topic,
    missing_right,
    receipts_topic,
    rejected_topic,
    timer_topic,
)
from bridge.turn import Bridge

log = logging.getLogger(__name__)

END_S = 5.0

_CHECK_EACH_S = 600.0
"""How often retention is looked at again: somebody may have shortened it."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Stop:
    """Set by SIGTERM and SIGINT, which also ends whatever waits."""

    def __init__(self, patience: Patience) -> None:
        self.asked = False
        self.bridge: Bridge | None = None
        self._patience = patience
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def begin(self) -> None:
        """From now on a broker is waited for as long as it takes."""
        self._patience.go_on()
        if self.asked:
            self._patience.give_up_in(END_S)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._patience.give_up_in(0 if self.bridge is None else END_S)
        if self.bridge is not None:
            self.bridge.request_stop()
        signal.signal(number, signal.SIG_DFL)


def run(settings: Settings) -> None:
    """Returns after a clean end. Raises BridgeError."""
    expect_batches()
    patience = Patience()
    stop = Stop(patience)
    folder = DataDir(settings.data_dir)
    try:
        _run(settings, folder, stop, patience)
    except BrokerUnavailableError:
        if not stop.asked or stop.bridge is not None:
            raise
    finally:
        folder.close()


def _run(settings: Settings, folder: DataDir, stop: Stop, patience: Patience) -> None:
    topics = ConfluentTopics(settings.connection(), patience)
    patience.give_up_in(settings.startup_timeout / 1000)
    max_message_bytes = prepare_topics(settings, topics)
    connection = settings.connection(folder.instance_id())
    while not stop.asked:
        stop.begin()
        try:
            _live(settings, connection, folder, stop, patience, topics, max_message_bytes)
        except OutcomeUnknownError as unknown:
            log.warning("%s", unknown)


def prepare_topics(settings: Settings, topics: ConfluentTopics) -> int:
    """Makes what is missing; returns the bytes of a message that the timer topic takes.

    Raises SettingsError where a topic would lose timers.
    """
    window_ms = settings.roll_window
    partitions = _made(settings, topics, settings.timer_topic, settings.partitions, timer_topic(window_ms))
    max_message_bytes = int(topics.config(settings.timer_topic)["max.message.bytes"])
    for_journal = journal_topic(window_ms, _journal_bytes(settings))
    journals = _made(settings, topics, settings.journal_topic, partitions, for_journal)
    _made(settings, topics, settings.rejected_topic, partitions, rejected_topic(max_message_bytes))
    if settings.receipts != "none":
        _made(settings, topics, settings.receipts_topic, partitions, receipts_topic())
    check_topics(settings, topics)
    check_rights(settings, topics)
    if journals < partitions:
        log.warning(
            "%s grew from %d to %d partitions: keys, and with them ids, may be in another one now; a cancel of what was"
            " sent before may not meet it",
            *(settings.timer_topic, journals, partitions),
        )
        topics.grow(settings.journal_topic, partitions)
    return max_message_bytes


def _made(settings: Settings, topics: ConfluentTopics, name: str, partitions: int, config: dict[str, str]) -> int:
    """How many partitions the topic has, which is made where it is missing."""
    found = topics.partitions(name)
    if found is None:
        topics.create(name, partitions, settings.replication_factor, config)
        found = topics.partitions(name)
    return partitions if found is None else found


def check_topics(settings: Settings, topics: ConfluentTopics) -> None:
    """Raises SettingsError where retention or clean-up would take a timer that lives."""
    timers, journal, window_ms = settings.timer_topic, settings.journal_topic, settings.roll_window
    wrong = faults(timers, topics.config(timers), window_ms)
    wrong += journal_faults(journal, topics.config(journal), window_ms, _journal_bytes(settings))
    if wrong:
        raise SettingsError("; ".join(wrong))


def _journal_bytes(settings: Settings) -> int:
    return journal_bytes(settings.max_poll_records, settings.max_due_records)


def check_rights(settings: Settings, topics: ConfluentTopics) -> None:
    """Raises BridgeError where the bridge's user may not do what will have to be done some day."""
    needed = {settings.timer_topic: LOGGED, settings.journal_topic: LOGGED, settings.rejected_topic: FILLED}
    if settings.receipts != "none":
        needed[settings.receipts_topic] = FILLED
    found = {topic: topics.allowed(topic) for topic in needed}
    told = [missing_right(topic, needed[topic], may) for topic, may in found.items() if may is not None]
    if any(told):
        raise BridgeError("; ".join(filter(None, told)))


def _complain_about_topics(settings: Settings, topics: ConfluentTopics) -> None:
    """A running bridge goes on, as stopping it would not bring anything back, but says it loudly."""
    try:
        check_topics(settings, topics)
    except SettingsError as wrong:
        log.error("timers may be lost: %s", wrong)
    except BridgeError as unknown:
        log.warning("topics could not be checked: %s", unknown)


def _live(
    settings: Settings,
    connection: Connection,
    folder: DataDir,
    stop: Stop,
    patience: Patience,
    topics: ConfluentTopics,
    max_message_bytes: int,
) -> None:
    """Builds a bridge and turns it until the end."""
    journals = {settings.timer_topic: settings.journal_topic}
    with ExitStack() as ends:
        sink = ConfluentSink(connection, journals, patience)
        ends.callback(sink.close)
        history = ConfluentHistory(connection, journals, patience)
        ends.callback(history.close)
        stop.bridge = bridge = Bridge(
            clock=SystemClock(),
            source=ConfluentSource(connection, [settings.timer_topic], patience),
            history=history,
            sink=sink,
            disk_for=folder.disk_for,
            options=settings.turn_options(max_message_bytes),
        )
        ends.callback(bridge.stop)
        _turn(bridge, stop, lambda: _complain_about_topics(settings, topics))


def _turn(bridge: Bridge, stop: Stop, check: Callable[[], None]) -> None:
    is_said = False
    checked_s = time.monotonic()
    while not stop.asked:
        bridge.turn()
        if bridge.ready and not is_said:
            print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
            is_said = True
        if time.monotonic() - checked_s >= _CHECK_EACH_S:
            checked_s = time.monotonic()
            check()
            bridge.look_at_retention()
