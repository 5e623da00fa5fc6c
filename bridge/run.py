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
from dataclasses import replace
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from bridge.address import own_address
from bridge.confluent import ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics, Patience
from bridge.connection import Connection
from bridge.datadir import DataDir
from bridge.desk import Desk
from bridge.errors import BridgeError, BrokerUnavailableError, NameTakenError, OutcomeUnknownError, SettingsError
from bridge.garbage import expect_batches
from bridge.logs import without_secrets
from bridge.metrics import Metrics
from bridge.options import TurnOptions
from bridge.preparing import Preparer
from bridge.settings import Settings
from bridge.status import Status
from bridge.topics import (
    FILLED,
    LOGGED,
    RETENTION_WINDOWS,
    Found,
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
from bridge.turn import Bridge

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = logging.getLogger(__name__)

END_S = 5.0

_CHECK_EACH_S = 600.0
"""How often retention is looked at again: somebody may have shortened it."""

_NAME_TRIES = 10
"""As many waits were in vain: the next is a long one."""

_LOOK_EACH_S = 15.0
"""How often open transactions are looked at: one that is open at two looks hangs. A dead bridge's own end sooner."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Asked(NamedTuple):
    """What others may ask while the loop turns; it stays the same through every life of the bridge."""

    status: Status
    desk: Desk
    metrics: Metrics


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
    status = Status(time.monotonic, lambda text: without_secrets(text, settings.kafka))
    asked = Asked(status, Desk(), Metrics(time.monotonic))
    patience = Patience(status=asked.status)
    stop = Stop(patience)
    with ExitStack() as ends:
        folder = DataDir(settings.data_dir)
        ends.callback(folder.close)
        if settings.http_port:
            # only here: without a port, no web server is needed
            from bridge.exposition import Exposition
            from bridge.metric_table import Limits
            from bridge.web import application, serving

            others: list[BaseRoute] = []
            if settings.page:
                from bridge.page.wiring import page_routes

                others = ends.enter_context(page_routes(settings, asked.status, asked.desk, SystemClock()))
            limits = Limits(version("kafka-timer-bridge"), settings.min_free_bytes, settings.max_clock_skew)
            exposition = Exposition(asked.metrics, asked.status, limits)
            answers = application(asked.status, asked.desk, SystemClock(), exposition, others=others)
            ends.enter_context(serving(settings.http_host, settings.http_port, answers))
        try:
            _run(settings, folder, stop, patience, asked)
        except BrokerUnavailableError:
            if not stop.asked or stop.bridge is not None:
                raise


def _run(settings: Settings, folder: DataDir, stop: Stop, patience: Patience, asked: Asked) -> None:
    topics = ConfluentTopics(settings.connection(), patience)
    patience.give_up_in(settings.startup_timeout / 1000)
    options = settings.turn_options(prepare_topics(settings, topics, asked.metrics))
    connection = settings.connection(folder.instance_id())
    while not stop.asked:
        stop.begin()
        try:
            _live(settings, connection, folder, stop, patience, asked, topics, options)
        except OutcomeUnknownError as unknown:
            log.warning("%s", unknown)
        except NameTakenError as taken:
            patience.wait("joining the group", str(taken), _NAME_TRIES)


def prepare_topics(settings: Settings, topics: ConfluentTopics, metrics: Metrics) -> dict[str, Found]:
    """Makes what is missing; returns what each timer topic is.

    Raises SettingsError where a topic would lose timers.
    """
    found: dict[str, Found] = {}
    journals: dict[str, int] = {}
    config = timer_topic(settings.roll_window)
    for_journal = journal_topic(settings.roll_window, _journal_bytes(settings))
    for name, topic in settings.timer_topics().items():
        partitions = _made(settings, topics, name, settings.partitions, config)
        found[name] = Found(partitions, int(topics.config(name)["max.message.bytes"]))
        journals[name] = _made(settings, topics, topic.journal_topic, partitions, for_journal)
    largest = max(each.max_message_bytes for each in found.values())
    partitions = found[settings.timer_topic].partitions
    _made(settings, topics, settings.rejected_topic, partitions, rejected_topic(largest))
    if settings.receipts != "none":
        _made(settings, topics, settings.receipts_topic, partitions, receipts_topic())
    metrics.partitions = {name: each.partitions for name, each in found.items()}
    check_topics(settings, topics, metrics)
    check_rights(settings, topics)
    for fault in _rejected_faults(settings, topics, largest):
        log.warning("%s; what does not fit there is told without its key, value and headers", fault)
    for name, topic in settings.timer_topics().items():
        if journals[name] < found[name].partitions:
            _grow(topics, name, topic.journal_topic, journals[name], found[name].partitions)
    return found


def _rejected_faults(settings: Settings, topics: ConfluentTopics, largest: int) -> list[str]:
    """Where the bridge's user may look: it needs no such right, as nothing is lost by it."""
    allowed = topics.allowed(settings.rejected_topic)
    if allowed is not None and "DESCRIBE_CONFIGS" not in allowed:
        return []
    return rejected_faults(settings.rejected_topic, topics.config(settings.rejected_topic), largest)


def _grow(topics: ConfluentTopics, name: str, journal_topic: str, before: int, partitions: int) -> None:
    log.warning(
        "%s grew from %d to %d partitions: keys, and with them ids, may be in another one now; a cancel of what was"
        " sent before may not meet it",
        *(name, before, partitions),
    )
    topics.grow(journal_topic, partitions)


def _made(settings: Settings, topics: ConfluentTopics, name: str, partitions: int, config: dict[str, str]) -> int:
    """How many partitions the topic has, which is made where it is missing."""
    found = topics.partitions(name)
    if found is None:
        topics.create(name, partitions, settings.replication_factor, config)
        found = topics.partitions(name)
    return partitions if found is None else found


def check_topics(settings: Settings, topics: ConfluentTopics, metrics: Metrics) -> None:
    """Raises SettingsError where retention or clean-up would take a timer that lives."""
    wrong: list[str] = []
    retention_ms: dict[str, int] = {}
    window_ms, journal_bytes_ = settings.roll_window, _journal_bytes(settings)
    for name, topic in settings.timer_topics().items():
        of_topic, of_journal = topics.config(name), topics.config(topic.journal_topic)
        wrong += faults(name, of_topic, window_ms)
        wrong += journal_faults(topic.journal_topic, of_journal, window_ms, journal_bytes_)
        retention_ms |= {name: int(of_topic["retention.ms"]), topic.journal_topic: int(of_journal["retention.ms"])}
    metrics.retention_ms = retention_ms
    metrics.needed_retention_ms = RETENTION_WINDOWS * window_ms
    if wrong:
        raise SettingsError("; ".join(wrong))


def _journal_bytes(settings: Settings) -> int:
    return journal_bytes(settings.max_poll_records, settings.max_due_records)


def check_rights(settings: Settings, topics: ConfluentTopics) -> None:
    """Raises BridgeError where the bridge's user may not do what will have to be done some day."""
    needed = {settings.rejected_topic: FILLED}
    for name, topic in settings.timer_topics().items():
        needed |= {name: LOGGED, topic.journal_topic: LOGGED}
    if settings.receipts != "none":
        needed[settings.receipts_topic] = FILLED
    found = {topic: topics.allowed(topic) for topic in needed}
    told = [missing_right(topic, needed[topic], may) for topic, may in found.items() if may is not None]
    if any(told):
        raise BridgeError("; ".join(filter(None, told)))


def _complain_about_topics(settings: Settings, topics: ConfluentTopics, metrics: Metrics) -> None:
    """A running bridge goes on, as stopping it would not bring anything back, but says it loudly."""
    try:
        check_topics(settings, topics, metrics)
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
    options: TurnOptions,
) -> None:
    """Builds a bridge and turns it until the end."""
    journals = {name: topic.journal_topic for name, topic in settings.timer_topics().items()}
    with ExitStack() as ends:
        own_topics = settings.own_topics() if settings.delivery == "at-least-once" else None
        sink = ConfluentSink(connection, journals, patience, own_topics)
        ends.callback(sink.close)
        history = ConfluentHistory(connection, journals, patience)
        ends.callback(history.close)
        preparer = Preparer(connection, journals, folder, options, (settings.log_format, settings.log_level))
        stop.bridge = bridge = Bridge(
            clock=SystemClock(),
            source=ConfluentSource(replace(connection, address=own_address(settings)), list(journals), patience),
            history=history,
            sink=sink,
            disk_for=folder.disk_for,
            options=options,
            prepare=preparer.prepare,
            status=asked.status,
            metrics=asked.metrics,
        )
        ends.callback(bridge.stop)
        _turn(bridge, stop, asked, lambda: _complain_about_topics(settings, topics, asked.metrics))


def _turn(bridge: Bridge, stop: Stop, asked: Asked, check: Callable[[], None]) -> None:
    is_said = False
    checked_s = looked_s = time.monotonic()
    while not stop.asked:
        bridge.turn()
        asked.status.turned()
        asked.desk.serve(bridge)
        if bridge.ready and not is_said:
            print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
            is_said = True
            bridge.look_at_retention()
        if time.monotonic() - checked_s >= _CHECK_EACH_S:
            checked_s = time.monotonic()
            check()
            bridge.look_at_retention()
        if time.monotonic() - looked_s >= _LOOK_EACH_S:
            looked_s = time.monotonic()
            bridge.look_at_open_transactions()
            bridge.look_at_clocks()
