"""`timer-bridge run`: settings -> topics -> ports -> turns, until a signal ends them. The system clock lives here.

SIGTERM or Ctrl-C: the open transaction is ended, stores are closed, exit 0; whoever waits for a broker then waits no
longer than `END_S`. A second one kills. A commit whose fate is unknown ends one life of the bridge and begins the next
in the same process: Kafka knows what stands. So does a timer topic that has grown.
"""

import logging
import os
import resource
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
from bridge.confluent.pace import PACES_S
from bridge.connection import Connection
from bridge.datadir import DataDir
from bridge.desk import Desk
from bridge.errors import (
    BrokerUnavailableError,
    NameTakenError,
    OutcomeUnknownError,
    PutOutError,
    TopicGrownError,
)
from bridge.garbage import expect_batches
from bridge.logs import without_secrets
from bridge.metrics import Metrics
from bridge.options import TurnOptions
from bridge.own_topics import OwnTopics
from bridge.preparing import Preparer
from bridge.settings import Settings
from bridge.status import Status
from bridge.turn import Bridge

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

log = logging.getLogger(__name__)

END_S = 5.0
_INIT = 1
"""The process of a container that has no other: signals do nothing there unless it says what."""

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
        signal.signal(number, _die if os.getpid() == _INIT else signal.SIG_DFL)


def _die(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _open_many_files() -> None:
    """A store has a file open for each 64 MiB of bodies and of units."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log.debug("open files: at most %d, %d before", hard, soft)


def run(settings: Settings) -> None:
    """Returns after a clean end. Raises BridgeError."""
    expect_batches()
    _open_many_files()
    status = Status(time.monotonic, lambda text: without_secrets(text, settings.kafka))
    asked = Asked(status, Desk(), Metrics(time.monotonic, status.traffic))
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
            answers = application(
                asked.status, asked.desk, SystemClock(), exposition, others=others, demand=_demand_of(settings)
            )
            ends.enter_context(serving(settings.http_host, settings.http_port, answers))
        try:
            _run(settings, folder, stop, patience, asked)
        except BrokerUnavailableError:
            if not stop.asked or stop.bridge is not None:
                raise


def _demand_of(settings: Settings) -> "Callable[[Request], None]":
    """Also of an instance without a page: what asks for a token on one does on each."""
    if settings.page_read_tokens is None and settings.page_operator_tokens is None:
        return lambda _: None
    from bridge.page.service import demand_token
    from bridge.page.wiring import access_of

    return demand_token(access_of(settings))


def _run(settings: Settings, folder: DataDir, stop: Stop, patience: Patience, asked: Asked) -> None:
    topics = OwnTopics(settings, ConfluentTopics(settings.connection(), patience), asked.metrics)
    patience.give_up_in(settings.startup_timeout / 1000)
    began_ms = SystemClock().now_ms()
    options = settings.turn_options(topics.prepare(), began_ms)
    connection = settings.connection(folder.instance_id())
    while not stop.asked:
        stop.begin()
        try:
            _live(settings, connection, folder, stop, patience, asked, topics, options)
        except (OutcomeUnknownError, PutOutError) as over:
            log.warning("%s", over)
        except TopicGrownError as grown:
            log.warning("%s", grown)
            options = settings.turn_options(topics.prepare(is_running=True), began_ms)
        except NameTakenError as taken:
            patience.wait("joining the group", str(taken), _NAME_TRIES)


def _live(
    settings: Settings,
    connection: Connection,
    folder: DataDir,
    stop: Stop,
    patience: Patience,
    asked: Asked,
    topics: OwnTopics,
    options: TurnOptions,
) -> None:
    """Builds a bridge and turns it until the end."""
    journals = {name: topic.journal_topic for name, topic in settings.timer_topics().items()}
    announced = replace(connection, address=own_address(settings))
    with ExitStack() as ends:
        own_topics = settings.own_topics() if settings.delivery == "at-least-once" else None
        sink = ConfluentSink(connection, journals, patience, own_topics)
        ends.callback(sink.close)
        history = ConfluentHistory(connection, journals, patience)
        ends.callback(history.close)
        preparer = Preparer(connection, journals, folder, options, (settings.log_format, settings.log_level))
        stop.bridge = bridge = Bridge(
            clock=SystemClock(),
            source=ConfluentSource(announced, list(journals), patience, PACES_S[settings.delivery]),
            history=history,
            sink=sink,
            disk_for=folder.disk_for,
            options=options,
            prepare=preparer.prepare,
            status=asked.status,
            metrics=asked.metrics,
        )
        ends.callback(bridge.stop)
        _turn(bridge, stop, asked, topics.complain)


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
    bridge.finish()
