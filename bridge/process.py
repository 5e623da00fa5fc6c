"""`timer-bridge run`: settings -> topics -> ports -> turns, until a signal ends them. The system clock lives here.

SIGTERM or Ctrl-C: the open transaction is ended, stores are closed, exit 0; whoever waits for a broker then waits no
longer than `END_S`. A second one kills. A commit whose fate is unknown ends one life of the bridge and begins the next
in the same process: Kafka knows what stands. So does a timer topic that has grown. SIGUSR1 and SIGUSR2 change the log
level.
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

from bridge.config.advertised_address import known_names, own_address
from bridge.config.data_directory import DataDir
from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.config.topic_setup import OwnTopics
from bridge.errors import (
    BrokerUnavailableError,
    MembershipLostError,
    NameTakenError,
    OutcomeUnknownError,
    TopicGrownError,
)
from bridge.garbage_collection import tune_gc
from bridge.kafka import ConfluentControl, ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics, Patience
from bridge.kafka.log_reader import LIMIT_S
from bridge.kafka.poll_pacing import PACES_S
from bridge.loop.control_state import ControlState
from bridge.loop.loop import Bridge
from bridge.observe.logs import switch_by_signals, without_secrets
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.query.query_queue import QueryQueue
from bridge.recovery.background_recovery import Preparer
from bridge.recovery.journal_owner import OwnJournals
from bridge.watch_thread import Growth, Watch

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


class SharedState(NamedTuple):
    """What others may ask while the loop turns; it stays the same through every life of the bridge."""

    status: Status
    desk: QueryQueue
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
    switch_by_signals(settings.log_level)
    tune_gc()
    _open_many_files()
    status = Status(time.monotonic, lambda text: without_secrets(text, settings.kafka))
    asked = SharedState(status, QueryQueue(), Metrics(time.monotonic, status.traffic))
    patience = Patience(status=asked.status)
    stop = Stop(patience)
    with ExitStack() as ends:
        folder = DataDir(settings.data_dir)
        ends.callback(folder.close)
        if settings.http_port:
            # only here: without a port, no web server is needed
            from starlette.middleware import Middleware

            from bridge.http.known_hosts import KnownHosts
            from bridge.http.server import application, serving
            from bridge.observe.metric_definitions import AlertLimits
            from bridge.observe.prometheus import Exposition

            others: list[BaseRoute] = []
            demand: Callable[[Request], None] = lambda _: None  # noqa: E731
            if settings.page or settings.has_tokens:  # without a page too: what asks for a token on one does on each
                from bridge.http.api.routes import demand_token
                from bridge.http.assembly import access_of, page_routes

                access = access_of(settings)
                demand = demand_token(access)
                if settings.page:
                    others = ends.enter_context(page_routes(settings, access, asked.status, asked.desk, SystemClock()))
            limits = AlertLimits(version("kafka-timer-bridge"), settings.min_free_bytes, settings.max_clock_skew)
            exposition = Exposition(asked.metrics, asked.status, limits)
            hosts = Middleware(KnownHosts, known_names(settings), any_address=settings.has_tokens or not settings.page)
            answers = application(
                asked.status,
                asked.desk,
                SystemClock(),
                exposition,
                others=others,
                demand=demand,
                hosts=hosts,
            )
            ends.enter_context(serving(settings.http_host, settings.http_port, answers))
        try:
            _run(settings, folder, stop, patience, asked)
        except BrokerUnavailableError:
            if not stop.asked or stop.bridge is not None:
                raise


def _run(settings: Settings, folder: DataDir, stop: Stop, patience: Patience, asked: SharedState) -> None:
    topics = OwnTopics(settings, ConfluentTopics(settings.connection(), patience), asked.metrics)
    patience.give_up_in(settings.startup_timeout / 1000)
    began_ms = SystemClock().now_ms()
    found = topics.prepare()
    options = settings.turn_options(found, began_ms)
    connection = replace(settings.connection(folder.instance_id()), fetched=settings.fetched(found))
    others_patience = Patience()
    looking = OwnTopics(settings, ConfluentTopics(settings.connection(), others_patience), asked.metrics)
    growth = Growth(looking, lambda found: settings.turn_options(found, began_ms), options)
    history = ConfluentHistory(settings.connection(), journals_of(settings), others_patience, LIMIT_S)
    owned = OwnJournals(history, journals_of(settings), lambda: list(asked.status.shards()))
    watch = Watch(growth.look, owned.look)
    try:
        while not stop.asked:
            stop.begin()
            try:
                _live(settings, connection, folder, stop, patience, asked, topics, growth, watch)
            except (OutcomeUnknownError, MembershipLostError) as over:
                log.warning("%s", over)
            except TopicGrownError as grown:
                log.warning("%s", grown)
                growth.options = settings.turn_options(topics.prepare(is_running=True), began_ms)
            except NameTakenError as taken:
                patience.wait("joining the group", str(taken), _NAME_TRIES)
    finally:
        others_patience.give_up_in(0)
        watch.close()
        history.close()


def journals_of(settings: Settings) -> dict[str, str]:
    """Return the journal topic of each timer topic."""
    return {name: topic.journal_topic for name, topic in settings.timer_topics().items()}


def _live(
    settings: Settings,
    connection: Connection,
    folder: DataDir,
    stop: Stop,
    patience: Patience,
    asked: SharedState,
    topics: OwnTopics,
    growth: Growth,
    watch: Watch,
) -> None:
    """Builds a bridge and turns it until the end."""
    options = growth.options
    journals = journals_of(settings)
    announced = replace(connection, address=own_address(settings))
    with ExitStack() as ends:
        own_topics = settings.own_topics() if settings.delivery == "at-least-once" else None
        sink = ConfluentSink(connection, journals, patience, own_topics)
        ends.callback(sink.close)
        history = ConfluentHistory(connection, journals, patience, LIMIT_S)
        ends.callback(history.close)
        operators = ConfluentControl(connection, settings.control_topic, patience)
        ends.callback(operators.close)
        control = ControlState(operators, settings.timer_topics())
        preparer = Preparer(connection, journals, folder, options, (settings.log_format, settings.log_level))
        stop.bridge = bridge = Bridge(
            clock=SystemClock(),
            source=ConfluentSource(announced, list(journals), patience, PACES_S[settings.delivery]),
            history=history,
            sink=sink,
            disk_for=folder.disk_for,
            options=options,
            prepare=preparer.prepare,
            control=control,
            status=asked.status,
            metrics=asked.metrics,
        )
        ends.callback(bridge.stop)
        _turn(bridge, stop, asked, topics.complain, growth, watch)


def _turn(
    bridge: Bridge, stop: Stop, asked: SharedState, check: Callable[[], None], growth: Growth, watch: Watch
) -> None:
    is_said = False
    checked_s = looked_s = time.monotonic()
    while not stop.asked:
        bridge.turn()
        asked.status.turned()
        asked.desk.serve(bridge)
        if bridge.options is not growth.options:
            bridge.use(growth.options)
        if watch.wrong is not None:
            raise watch.wrong
        if bridge.ready and not is_said:
            print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
            is_said = True
            bridge.monitors.check_retention()
        if time.monotonic() - checked_s >= _CHECK_EACH_S:
            checked_s = time.monotonic()
            check()
            bridge.monitors.check_retention()
        if time.monotonic() - looked_s >= _LOOK_EACH_S:
            looked_s = time.monotonic()
            bridge.monitors.check_open_transactions()
            bridge.monitors.check_clocks()
    bridge.finish()
