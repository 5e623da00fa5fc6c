"""`timer-bridge canary`: send timers end to end, and say when one is lost."""

import json
import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Context

from bridge.cli.client_commands import client_of, config_of
from bridge.cli.shared_options import ClusterOptions, command_with, duration_ms
from bridge.config.kafka_config import Connection
from bridge.config.settings import Settings
from bridge.errors import BridgeError, SettingsError
from kafka_timer import TimerProducer
from kafka_timer.headers import decoded_headers, legal_topic

if TYPE_CHECKING:
    from bridge.canary.canary import Canary

LOST_EXIT_CODE = 3
_POLL_S = 0.1
_START_S = 30.0
_TOPIC_CONFIG = {"retention.ms": "3600000", "cleanup.policy": "delete"}

commands = typer.Typer()


@commands.command(
    cls=command_with(ClusterOptions),
    epilog="Example: timer-bridge canary --every 1m --http-port 8322 --bootstrap-servers broker:9092",
)
def canary(
    context: Context,
    topic: Annotated[
        str, typer.Option("--topic", help="Its own target topic; created if it is missing.")
    ] = "timer-canary",
    every: Annotated[str, typer.Option("--every", help="Time between two timers.")] = "1m",
    delay: Annotated[str, typer.Option("--delay", help="How far ahead each timer is due.")] = "5s",
    timeout: Annotated[str, typer.Option("--timeout", help="How long after its due time a timer is lost.")] = "30s",
    once: Annotated[bool, typer.Option("--once", help="Send one, and end when it has arrived or is lost.")] = False,
    http_port: Annotated[
        int | None, typer.Option("--http-port", min=0, max=65_535, help="Port of /metrics; none if not given.")
    ] = None,
    http_host: Annotated[str, typer.Option("--http-host", help="Address of that port.")] = "127.0.0.1",
) -> None:
    """Send timers to a topic of its own, consume them there, and export lateness and losses.

    Each loss is a line of JSON on standard output. Exit codes of --once: 0 it arrived, 1 no broker, 2 a wrong call, 3
    lost. Without --once it runs until SIGTERM or Ctrl-C.
    """
    settings, timer_topic = context.obj.chosen()
    if legal_topic(topic.encode()) is None or topic in settings.own_topics():
        raise SettingsError(f"--topic {topic!r}: give a legal topic that is none of the bridge's own")
    every_ms, delay_ms, timeout_ms = (
        duration_ms(name, text, least_ms)
        for name, text, least_ms in (("--every", every, 1), ("--delay", delay, 0), ("--timeout", timeout, 1))
    )
    from bridge.canary.canary import Canary, CanaryMetrics

    metrics, ended = CanaryMetrics(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with closing(_consumer(settings, topic)) as consumer, client_of(settings, timer_topic) as timers:
        bird = Canary(timers, metrics, topic=topic, delay_ms=delay_ms, timeout_ms=timeout_ms)
        if http_port is not None:
            _serve(http_host, http_port, metrics.registry)
        lost = _run(bird, timers, consumer, None if once else every_ms, ended)
    if once:
        if bird.last_lateness_ms is not None:
            typer.echo(json.dumps({"event": "arrived", "lateness_ms": bird.last_lateness_ms}))
        raise typer.Exit(LOST_EXIT_CODE if lost else 0)


def _run(bird: "Canary", timers: TimerProducer, consumer: Any, every_ms: int | None, ended: threading.Event) -> int:
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
            typer.echo(json.dumps({"event": "lost", "at_ms": now_ms, **loss._asdict()}))
        if every_ms is None and not bird.waiting:
            break
    return lost


def _consumer(settings: Settings, topic: str) -> Any:
    """Return a consumer of the topic. Create the topic if it is missing."""
    from bridge.kafka import ConfluentTopics, Retrier
    from kafka_timer.kafka_client import topic_consumer

    retrier = Retrier()
    retrier.give_up_in(_START_S)
    topics = ConfluentTopics(Connection(settings.bootstrap_servers, kafka=settings.kafka), retrier)
    if topics.partitions(topic) is None:
        topics.create(topic, 1, settings.replication_factor, _TOPIC_CONFIG)
    return topic_consumer(config_of(settings), [topic])


def _serve(host: str, port: int, registry: object) -> None:
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host, registry)  # type: ignore[arg-type]
    except OSError as failure:
        raise SettingsError(f"--http-port {port} on {host}: {failure.strerror}: give another") from failure
    typer.echo(json.dumps({"event": "metrics", "port": server.server_port}))
