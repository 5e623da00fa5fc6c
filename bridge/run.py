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
from typing import NamedTuple

from bridge.confluent import ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics, Patience
from bridge.connection import Connection
from bridge.datadir import DataDir
from bridge.desk import Desk
from bridge.errors import BridgeError, BrokerUnavailableError, OutcomeUnknownError, SettingsError
from bridge.garbage import expect_batches
from bridge.logs import without_secrets
from bridge.settings import Settings
from bridge.status import Status
from bridge.topics import faults, receipts_topic, rejected_topic, timer_topic
from bridge.turn import Bridge

log = logging.getLogger(__name__)

END_S = 5.0

_CHECK_EACH_S = 600.0
"""How often retention is looked at again: somebody may have shortened it."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Asked(NamedTuple):
    """What others may ask while the loop turns; it stays the same through every life of the bridge."""

    status: Status
    desk: Desk


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
    asked = Asked(Status(time.monotonic, lambda text: without_secrets(text, settings.kafka)), Desk())
    patience = Patience(status=asked.status)
    stop = Stop(patience)
    with ExitStack() as ends:
        folder = DataDir(settings.data_dir)
        ends.callback(folder.close)
        if settings.http_port:
            from bridge.web import application, serving  # only here: without a port, no web server is needed

            answers = application(asked.status, asked.desk, SystemClock())
            ends.enter_context(serving(settings.http_host, settings.http_port, answers))
        try:
            _run(settings, folder, stop, patience, asked)
        except BrokerUnavailableError:
            if not stop.asked or stop.bridge is not None:
                raise


def _run(settings: Settings, folder: DataDir, stop: Stop, patience: Patience, asked: Asked) -> None:
    topics = ConfluentTopics(settings.connection(), patience)
    patience.give_up_in(settings.startup_timeout / 1000)
    max_message_bytes = prepare_topics(settings, topics)
    connection = settings.connection(folder.instance_id())
    while not stop.asked:
        stop.begin()
        try:
            _live(settings, connection, folder, stop, patience, asked, topics, max_message_bytes)
        except OutcomeUnknownError as unknown:
            log.warning("%s", unknown)


def prepare_topics(settings: Settings, topics: ConfluentTopics) -> int:
    """Makes what is missing; returns the bytes of a message that the timer topic takes.

    Raises SettingsError where a topic would lose timers.
    """
    window_ms = settings.roll_window
    partitions = _made(settings, topics, settings.timer_topic, settings.partitions, timer_topic(window_ms))
    max_message_bytes = int(topics.config(settings.timer_topic)["max.message.bytes"])
    journals = _made(settings, topics, settings.journal_topic, partitions, timer_topic(window_ms))
    _made(settings, topics, settings.rejected_topic, partitions, rejected_topic(max_message_bytes))
    if settings.receipts != "none":
        _made(settings, topics, settings.receipts_topic, partitions, receipts_topic())
    check_topics(settings, topics)
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


def _live(
    settings: Settings,
    connection: Connection,
    folder: DataDir,
    stop: Stop,
    patience: Patience,
    asked: Asked,
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
            status=asked.status,
        )
        ends.callback(bridge.stop)
        _turn(bridge, stop, asked, lambda: _complain_about_topics(settings, topics))


def _turn(bridge: Bridge, stop: Stop, asked: Asked, check: Callable[[], None]) -> None:
    is_said = False
    checked_s = time.monotonic()
    while not stop.asked:
        bridge.turn()
        asked.status.turned()
        asked.desk.serve(bridge)
        if bridge.ready and not is_said:
            print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
            is_said = True
        if time.monotonic() - checked_s >= _CHECK_EACH_S:
            checked_s = time.monotonic()
            check()
            bridge.look_at_retention()
