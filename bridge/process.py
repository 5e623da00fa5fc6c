"""`timer-bridge run`: settings -> topics -> ports -> turns, until a signal ends them. The system clock lives here.

SIGTERM or Ctrl-C: finish the open transaction, close the stores, exit 0; a wait for a broker then ends within `END_S`.
A second signal kills. After a commit with an unknown outcome the process builds a new bridge, which reads from Kafka
what is committed. It does the same after a timer topic has grown. SIGUSR1 and SIGUSR2 change the log level.
"""

import logging
import math
import os
import resource
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import NamedTuple

from bridge import extras
from bridge.config.data_directory import DataDir
from bridge.config.http_address import known_names, own_address
from bridge.config.settings import Settings
from bridge.config.topic_requirements import TopicState
from bridge.errors import (
    BridgeError,
    BrokerUnavailableError,
    FencedError,
    InstanceIdInUseError,
    MemberFencedError,
    MembershipLostError,
    OutcomeUnknownError,
    TopicGrownError,
)
from bridge.garbage_collection import QuietRelease, tune_gc, tune_malloc
from bridge.kafka import ConfluentControl, ConfluentHistory, ConfluentSink, ConfluentSource, ConfluentTopics, Retrier
from bridge.kafka.background_recovery import BackgroundRecoverer
from bridge.kafka.group import Takeover
from bridge.kafka.readers import LIMIT_S
from bridge.kafka.topics import OwnTopics
from bridge.loop.control_state import ControlState
from bridge.loop.loop import Bridge
from bridge.loop.standbys import Standbys
from bridge.observe.logs import configure, switch_by_signals, without_secrets
from bridge.observe.metrics import Metrics
from bridge.observe.status import Status
from bridge.partition.journal import JournalOwnerCheck
from bridge.partition.options import MAX_CLOCK_SKEW_MS, TurnOptions
from bridge.probes import metrics_text, serving_probes
from bridge.query.query_queue import QueryQueue
from bridge.watch_thread import BackgroundChecks, PartitionGrowth
from kafka_timer.origin import TimerPartition

log = logging.getLogger(__name__)

END_S = 5.0
_INIT = 1
"""Process id of a container's only process, for which signals without a handler are ignored."""

_REFRESH_LOOK_S = 0.02

_RETENTION_CHECK_S = 600.0
"""How often retention is checked again: it may have been shortened."""

_NAME_TRIES = 10
"""Number of failed tries to assume: the next wait is a long one."""

_FENCED_AGAIN_S = 15.0
"""A member that is fenced again within this time has a rival: two processes fence each other every few seconds."""

_TRANSACTION_CHECK_S = 15.0
"""How often open transactions are checked: one that is open at two checks hangs. Those of a dead bridge end sooner."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def cpu_ms(self) -> int:
        return time.thread_time_ns() // 1_000_000


class SharedState(NamedTuple):
    """State that stays the same when the process builds a new bridge. Other threads read it.

    worker: our number of `workers`; 0: the only one.
    """

    status: Status
    query_queue: QueryQueue
    metrics: Metrics
    worker: int


class Stop:
    """Set by SIGTERM and SIGINT, which also end all waits for a broker."""

    def __init__(self, retrier: Retrier) -> None:
        self.requested = False
        self.bridge: Bridge | None = None
        self._retrier = retrier
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def begin(self) -> None:
        """Wait for brokers without limit from now on."""
        self._retrier.go_on()
        if self.requested:
            self._retrier.give_up_in(END_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.requested = True
        self._retrier.give_up_in(0 if self.bridge is None else END_S)
        if self.bridge is not None:
            self.bridge.request_stop()
        die_at_next(number)


def die_at_next(number: int) -> None:
    """Let the next signal of this number end the process at once."""
    signal.signal(number, _die if os.getpid() == _INIT else signal.SIG_DFL)


def _die(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def open_many_files() -> None:
    """Raise the limit of open files: a store has one for each 64 MiB of bodies and of units."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    log.debug("open files: at most %d, %d before", hard, soft)


def check(settings: Settings) -> None:
    """Check everything else that `run` checks before it connects to a broker. Raises SettingsError."""
    extras.require_for(settings)
    if settings.http_port and (settings.page or settings.has_tokens):
        extras.page().access_of(settings)
    ConfluentTopics(settings.connection(), Retrier())


def run(settings: Settings, worker: int = 0) -> None:
    """Run the bridge until a signal ends it. Raises BridgeError.

    worker: our number of `workers`; 0: the only one. A worker's HTTP server is a socket in its data directory.
    """
    extras.require_for(settings)
    switch_by_signals(settings.log_level)
    tune_gc()
    tune_malloc()
    open_many_files()
    status = Status(time.monotonic, lambda text: without_secrets(text, settings.kafka))
    shared = SharedState(status, QueryQueue(), Metrics(time.monotonic, status.traffic), worker)
    retrier = Retrier(status=status)
    stop = Stop(retrier)
    with ExitStack() as ends:
        folder = ends.enter_context(closing(DataDir(settings.data_dir)))
        if settings.tracing:
            from bridge.observe.tracing import exported_spans  # only here: it needs the extra

            shared.metrics.spans = ends.enter_context(exported_spans())
        if settings.http_port or worker:
            ends.enter_context(_http_server(settings, shared))
        try:
            BridgeRunner(settings, folder, stop, retrier, shared).run()
        except BrokerUnavailableError:
            if not stop.requested or stop.bridge is not None:
                raise


def _http_server(settings: Settings, shared: SharedState) -> AbstractContextManager[None]:
    """Serve probes and metrics; with the extra `page` also pending timers, and the page if it is switched on."""
    # only here: without a port, no web server is needed
    from bridge.observe.prometheus import AlertLimits, Exposition

    (status, queries, metrics, worker), clock = shared, SystemClock()
    limits = AlertLimits(version("kafka-timer-bridge"), settings.min_free_bytes, MAX_CLOCK_SKEW_MS)
    text = metrics_text(Exposition(metrics, status, limits), queries, clock)
    if extras.missing("page"):
        return serving_probes(settings.http_host, settings.http_port, status, text, known_names(settings))
    page: AbstractContextManager[None] = extras.page().serving_bridge(settings, status, queries, clock, text, worker)
    return page


class BridgeRunner:
    """Builds a bridge and runs its loop, again and again, until `stop` is requested."""

    def __init__(self, settings: Settings, folder: DataDir, stop: Stop, retrier: Retrier, shared: SharedState) -> None:
        """Prepare the topics. Raises BridgeError."""
        self._settings = settings
        self._folder = folder
        self._stop = stop
        self._retrier = retrier
        self._shared = shared
        self._journals = settings.journal_topics()
        self._began_ms = SystemClock().now_ms()
        self._topics = self._own_topics(retrier)
        retrier.give_up_in(settings.startup_timeout / 1000)
        found = self._topics.prepare()
        self._connection = replace(settings.connection(folder.instance_id()), fetched=settings.fetched(found))
        self._check_retrier = Retrier()
        self._takeover = Takeover(self._connection, self._check_retrier) if settings.standby else None
        self._growth = PartitionGrowth(self._own_topics(self._check_retrier), self._options, self._options(found))

    def run(self) -> None:
        """Run until the end. A bridge that cannot go on is replaced by a new one. Raises BridgeError."""
        history = ConfluentHistory(self._settings.connection(), self._journals, self._check_retrier, LIMIT_S)
        owner_check = JournalOwnerCheck(history, self._journals, lambda: list(self._shared.status.partitions()))
        looks = [self._takeover.look] if self._takeover else []
        checks = BackgroundChecks(self._growth.check, owner_check.check, *looks)
        fenced_s = -math.inf
        try:
            if self._takeover:
                self._warm_up(self._takeover)
            while not self._stop.requested:
                self._stop.begin()
                try:
                    self._run_once(checks)
                except (OutcomeUnknownError, MembershipLostError) as error:
                    log.warning("%s", error)
                except FencedError as error:
                    may_join = isinstance(error, MemberFencedError) or self._settings.standby
                    if not may_join or time.monotonic() - fenced_s < _FENCED_AGAIN_S:
                        raise
                    fenced_s = time.monotonic()
                    log.warning(
                        "another member has our instance id, perhaps by a late request, or has taken over from us:"
                        " joining again"
                    )
                except TopicGrownError as grown:
                    log.warning("%s", grown)
                    self._growth.options = self._options(self._topics.prepare(is_running=True))
                except InstanceIdInUseError as taken:
                    self._retrier.wait("joining the group", str(taken), _NAME_TRIES)
        finally:
            self._check_retrier.give_up_in(0)
            checks.close()
            history.close()

    def _own_topics(self, retrier: Retrier) -> OwnTopics:
        return OwnTopics(self._settings, ConfluentTopics(self._settings.connection(), retrier), self._shared.metrics)

    def _options(self, found: Mapping[str, TopicState]) -> TurnOptions:
        return self._settings.turn_options(found, self._began_ms)

    def _run_once(self, checks: BackgroundChecks) -> None:
        """Build a bridge and run its loop until the end."""
        settings, connection, retrier, journals = self._settings, self._connection, self._retrier, self._journals
        options = self._growth.options
        announced = replace(connection, address=own_address(settings))
        with ExitStack() as ends:
            sink = ends.enter_context(closing(ConfluentSink(connection, journals, retrier)))
            take_over = self._takeover.start if self._takeover else None
            history = ends.enter_context(closing(ConfluentHistory(connection, journals, retrier, LIMIT_S, take_over)))
            operators = ends.enter_context(closing(ConfluentControl(connection, settings.control_topic, retrier)))
            recoverer = ends.enter_context(closing(self._recoverer(options)))
            cpu_share = settings.standby_cpu_percent / 100 / settings.workers
            self._stop.bridge = bridge = Bridge(
                clock=SystemClock(),
                source=ConfluentSource(announced, list(journals), retrier, pace_s=settings.pace_s),
                history=history,
                sink=sink,
                disk_for=self._folder.disk_for,
                options=options,
                prepare=recoverer.start,
                control=ControlState(operators, settings.timer_topics()),
                status=self._shared.status,
                metrics=self._shared.metrics,
                standbys=self._standbys(recoverer, cpu_share) if settings.standby else None,
            )
            ends.callback(bridge.stop)
            self._turn_until_stopped(bridge, checks)

    def _recoverer(self, options: TurnOptions) -> BackgroundRecoverer:
        settings = self._settings
        set_up_logs = partial(configure, settings.log_format, settings.log_level, worker=self._shared.worker)
        return BackgroundRecoverer(
            self._connection, self._journals, self._folder, options, set_up_logs, settings.workers
        )

    def _standbys(self, recoverer: BackgroundRecoverer, cpu_share: float) -> Standbys:
        partitions = [
            TimerPartition(topic, number)
            for topic in self._settings.timer_topics()
            for number in range(self._growth.options.of(topic).partitions or 0)
        ]
        refresh = partial(recoverer.refresh, cpu_share=cpu_share)
        return Standbys(SystemClock(), self._shared.status, refresh, partitions)

    def _warm_up(self, takeover: Takeover) -> None:
        """Bring the stores up to date before we join, while others serve their partitions."""

        def is_served() -> bool:
            try:
                return not self._stop.requested and takeover.has_owner()
            except BridgeError as error:
                log.warning("joining without refreshed standbys: %s", error)
                return False

        def rest() -> None:
            self._shared.status.turn_ended()
            time.sleep(_REFRESH_LOOK_S)

        with closing(self._recoverer(self._growth.options)) as recoverer:
            self._standbys(recoverer, 1.0).warm_up(is_served, rest)

    def _turn_until_stopped(self, bridge: Bridge, checks: BackgroundChecks) -> None:
        is_announced = False
        memory = QuietRelease(bridge.release_memory, time.monotonic)
        retention_checked_s = transactions_checked_s = time.monotonic()
        while not self._stop.requested:
            bridge.turn()
            bridge.monitors.check_jump(time.monotonic_ns() // 1_000_000)
            self._shared.status.turn_ended()
            self._shared.status.traffic.sample_pending(lambda: sum(bridge.pending.values()), SystemClock().now_ms())
            memory.turn_ended(is_idle=bridge.is_idle)
            self._shared.query_queue.run_next(bridge)
            if bridge.options is not self._growth.options:
                bridge.use(self._growth.options)
            if checks.error is not None:
                raise checks.error
            if not is_announced and bridge.ready:
                print("timer-bridge is ready:", ", ".join(map(str, sorted(bridge.pending))), flush=True)  # noqa: T201
                is_announced = True
                bridge.monitors.check_retention()
            if time.monotonic() - retention_checked_s >= _RETENTION_CHECK_S:
                retention_checked_s = time.monotonic()
                self._topics.complain()
                bridge.monitors.check_retention()
            if time.monotonic() - transactions_checked_s >= _TRANSACTION_CHECK_S:
                transactions_checked_s = time.monotonic()
                bridge.monitors.check_open_transactions()
                bridge.monitors.check_clocks()
        bridge.finish()
        pending = bridge.pending
        log.info("stopped: %d timers are pending in %d partitions", sum(pending.values()), len(pending))
