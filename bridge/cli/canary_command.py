"""`timer-bridge canary`: send timers end to end, measure when each arrives, and say when one is lost.

send ---> waiting ---> arrived: lateness              a second time: a duplicate
                  ---> lost: not there in time        later: arrived too
"""

import json
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, start_http_server
from typer import Option

from bridge.cli.client_commands import client_of, config_of
from bridge.cli.shared_options import ClusterOptions, command_with, duration_ms
from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.errors import BridgeError, SettingsError
from kafka_timer import Sent, TimerProducer
from kafka_timer.headers import TRACE_ID, Headers, decoded_headers, legal_topic

LOST_EXIT_CODE = 3
_POLL_S = 0.1
_START_S = 30.0
_TOPIC_CONFIG = {"retention.ms": "3600000", "cleanup.policy": "delete"}
_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_MOST_KNOWN = 10_000  # timers that are kept to recognise a duplicate, or a lost one that arrives later

commands = typer.Typer()


@dataclass
class CanaryTimer:
    trace: str
    due_ms: int
    sent: "Future[Sent]"
    state: Literal["waiting", "arrived", "lost"] = "waiting"

    @property
    def request(self) -> str:
        """Return where its request is, or why there is none."""
        if not self.sent.done():
            return "not acknowledged"
        failure = self.sent.exception()
        return f"refused: {failure}" if failure is not None else "/".join(map(str, self.sent.result()))


class Canary:
    """Sends to `topic`, `delay_ms` ahead. A timer is lost `timeout_ms` after its due time. Times are epoch ms.

    registry: its metrics, for Prometheus: docs/operations.md has the list.
    """

    def __init__(self, timers: TimerProducer, topic: str, delay_ms: int, timeout_ms: int) -> None:
        self._timers, self._topic, self._delay_ms, self._timeout_ms = timers, topic, delay_ms, timeout_ms
        self._known: dict[str, CanaryTimer] = {}
        """By trace id, oldest first."""
        self.last_lateness_ms: int | None = None
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        made: Any = {"namespace": "timer_canary", "registry": self.registry}
        self._sent = Counter("sent", "Timers that were sent.", **made)
        self._received = Counter("received", "Timers that arrived, including lost ones that arrived later.", **made)
        self._lost = Counter("lost", "Timers that did not arrive in time, or were not accepted by the broker.", **made)
        self._duplicates = Counter("duplicates", "Timers that arrived again.", **made)
        meaning = "From the due time until the record was read, by the canary's clock. Early ones count as 0."
        self._lateness = Histogram("lateness_seconds", meaning, buckets=_BUCKETS_S, **made)
        meaning = "The same of the last timer; negative: early."
        self._last_lateness = Gauge("last_lateness_seconds", meaning, **made)
        meaning = "When the last timer arrived; 0: none has."
        self._last_success = Gauge("last_success_timestamp_seconds", meaning, **made)

    @property
    def is_waiting(self) -> bool:
        return any(timer.state == "waiting" for timer in self._known.values())

    def send(self, now_ms: int) -> None:
        """Send a timer. A failure shows when the timer is lost."""
        trace, due_ms = uuid4().hex, now_ms + self._delay_ms
        sent = self._timers.schedule(self._topic, b"", key=trace, headers=[(TRACE_ID, trace)], at=due_ms)
        self._known[trace] = CanaryTimer(trace, due_ms, sent)
        self._sent.inc()
        while len(self._known) > _MOST_KNOWN and (oldest := next(iter(self._known.values()))).state != "waiting":
            del self._known[oldest.trace]

    def receive(self, records: Iterable[Headers], now_ms: int) -> None:
        """Count records of the topic, which were received now. Those of other canaries are ignored."""
        for headers in records:
            timer = self._known.get((dict(headers).get(TRACE_ID) or b"").decode(errors="replace"))
            if timer is not None and timer.state == "arrived":
                self._duplicates.inc()
            elif timer is not None:
                timer.state = "arrived"
                self.last_lateness_ms = now_ms - timer.due_ms
                self._received.inc()
                self._lateness.observe(max(0, self.last_lateness_ms) / 1000)
                self._last_lateness.set(self.last_lateness_ms / 1000)
                self._last_success.set(now_ms / 1000)

    def losses(self, now_ms: int) -> list[CanaryTimer]:
        """Return the timers that are lost by now, each once."""
        waiting = (timer for timer in self._known.values() if timer.state == "waiting")
        lost = [timer for timer in waiting if now_ms - timer.due_ms > self._timeout_ms]
        for timer in lost:
            timer.state = "lost"
            self._lost.inc()
        return lost


@commands.command(
    cls=command_with(ClusterOptions),
    epilog="Example: timer-bridge canary --every 1m --http-port 8322 --bootstrap-servers broker:9092",
)
def canary(
    context: typer.Context,
    topic: Annotated[str, Option(help="Its own target topic; created if it is missing.")] = "timer-canary",
    every: Annotated[str, Option(help="Time between two timers.")] = "1m",
    delay: Annotated[str, Option(help="How far ahead each timer is due.")] = "5s",
    timeout: Annotated[str, Option(help="How long after its due time a timer is lost.")] = "30s",
    once: Annotated[bool, Option("--once", help="Send one, and end when it has arrived or is lost.")] = False,
    http_port: Annotated[int | None, Option(min=0, max=65_535, help="Port of /metrics; none if not given.")] = None,
    http_host: Annotated[str, Option(help="Address of that port.")] = "127.0.0.1",
) -> None:
    """Send timers to a topic of its own, consume them there, and export lateness and losses.

    Each loss is a line of JSON on standard output. Exit codes of --once: 0 it arrived, 1 no broker, 2 a wrong call, 3
    lost. Without --once it runs until SIGTERM or Ctrl-C.
    """
    settings, timer_topic = context.obj.chosen()
    if legal_topic(topic.encode()) is None or topic in settings.own_topics():
        raise SettingsError(f"--topic {topic!r}: give a legal topic that is none of the bridge's own")
    every_ms = duration_ms("--every", every, 1)
    delay_ms, timeout_ms = duration_ms("--delay", delay, 0), duration_ms("--timeout", timeout, 1)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with closing(_consumer(settings, topic)) as consumer, client_of(settings, timer_topic) as timers:
        bird = Canary(timers, topic, delay_ms, timeout_ms)
        if http_port is not None:
            _serve(http_host, http_port, bird.registry)
        lost = _run(bird, timers, consumer, None if once else every_ms, ended)
    if once:
        if bird.last_lateness_ms is not None:
            typer.echo(json.dumps({"event": "arrived", "lateness_ms": bird.last_lateness_ms}))
        raise typer.Exit(LOST_EXIT_CODE if lost else int(bird.last_lateness_ms is None))


def _run(bird: Canary, timers: TimerProducer, consumer: Any, every_ms: int | None, ended: threading.Event) -> int:
    """Send and receive until `ended`; `every_ms` None: until the first timer is decided. Return how many are lost."""
    from kafka_timer.kafka_client import polled

    lost, next_ms = 0, 0
    while not ended.is_set():
        if timers.is_broken:
            raise BridgeError("canary: its Kafka client has failed for good; start the canary again")
        now_ms = time.time_ns() // 1_000_000
        if now_ms >= next_ms:
            bird.send(now_ms)
            next_ms = now_ms + every_ms if every_ms is not None else 2**63
        message = polled(consumer, _POLL_S)
        now_ms = time.time_ns() // 1_000_000
        bird.receive([] if message is None else [decoded_headers(message)], now_ms)
        for loss in bird.losses(now_ms):
            lost += 1
            named = {"trace": loss.trace, "due_ms": loss.due_ms, "request": loss.request}
            typer.echo(json.dumps({"event": "lost", "at_ms": now_ms, **named}))
        if every_ms is None and not bird.is_waiting:
            break
    return lost


def _consumer(settings: Settings, topic: str) -> Any:
    from bridge.kafka import ConfluentTopics, Retrier
    from kafka_timer.kafka_client import topic_consumer

    retrier = Retrier()
    retrier.give_up_in(_START_S)
    topics = ConfluentTopics(Connection(settings.bootstrap_servers, kafka=settings.kafka), retrier)
    if topics.partitions(topic) is None:
        topics.create(topic, 1, settings.replication_factor, _TOPIC_CONFIG)
    return topic_consumer(config_of(settings), [topic])


def _serve(host: str, port: int, registry: CollectorRegistry) -> None:
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as failure:
        raise SettingsError(f"--http-port {port} on {host}: {failure.strerror}: give another") from failure
    typer.echo(json.dumps({"event": "metrics", "port": server.server_port}))
