"""Compression bombs on a real broker: one topic stops at the record, all others go on, and a skip parks it once."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridge.config.kafka_config import Connection
from bridge.config.topic_requirements import fetch_limits
from bridge.dev.embedded_kafka import EmbeddedKafka, free_port
from bridge.errors import BrokerUnavailableError, PartitionUnreadableError
from bridge.kafka import ConfluentControl, ConfluentHistory, Retrier
from bridge.kafka.readers import LIMIT_S
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, get
from integration_tests.support.cluster import Cluster
from integration_tests.support.instances import sending
from integration_tests.support.patience import PATIENCE_S, until
from kafka_timer.origin import TimerPartition
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Delivery, Receiver
from scripts.common.processes import TIMER_BRIDGE, BridgeProcess

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

PHASE_S = 4.0
BUSY_MS = 2_000
"""A busy machine alone may add this much lateness; a read without a limit stopped the other topic for good."""


class Place:
    """Two timer topics of one partition each, `poisoned` and `sound`, each with a target, bridges and a load."""

    def __init__(self, broker: Broker, names: Names, folder: Path, *, compressed: str = "allow") -> None:
        self.broker, self.names, self.folder = broker, names, folder
        self.poisoned, self.sound = names.timers, f"{names.timers}-sound"
        self.targets = {self.poisoned: names.target, self.sound: f"{names.target}-sound"}
        Admin(broker.bootstrap_servers).create_topics([*self.targets.values()], partitions=1, settings=BROKER_CLOCK)
        self.cluster = Cluster(broker.bootstrap_servers)
        self.config = folder / "bridge.toml"
        self.config.write_text(f'control_topic = "{names.control}"\n[topics."{self.sound}"]\n')
        self.arguments = [*names.arguments, "--config", str(self.config), "--compressed-requests", compressed]
        self.arguments[self.arguments.index("--partitions") + 1] = "1"
        self.sent: Counter[str] = Counter()
        self.seen: list[Delivery] = []
        self.receiver = Receiver(broker.bootstrap_servers, list(self.targets.values()))

    def bridge(self) -> tuple[BridgeProcess, int]:
        port = free_port()
        return BridgeProcess(self.folder, self.broker.bootstrap_servers, self.arguments, http_port=port), port

    def send(self, topic: str, delay_ms: int) -> None:
        headers = [("timer-topic", self.targets[topic].encode()), ("timer-delay-ms", b"%d" % delay_ms)]
        self.cluster.send(topic, b"v", headers=headers)
        self.sent[topic] += 1

    def load(self) -> AbstractContextManager[None]:
        """Send a timer every 20 ms to the sound topic, and every 200 ms to the poisoned one."""

        def send(count: int) -> None:
            self.send(self.sound, 100)
            if count % 10 == 0:
                self.send(self.poisoned, 100)

        return sending(self.cluster, send)

    def bomb(self, size: int = 90_000_000) -> list[str]:
        """Send zeros that are compressed. Return the error if the broker has refused them."""
        producer: Any = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "compression.type": "zstd",
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )
        errors: list[str] = []
        headers = [("timer-topic", self.names.target.encode()), ("timer-delay-ms", b"0")]
        producer.produce(
            *(self.poisoned, bytes(size)),
            partition=0,
            headers=headers,
            on_delivery=lambda error, _: errors.extend([error.name()] if error else []),
        )
        assert producer.flush(PATIENCE_S) == 0
        return errors

    def watch(self, seconds: float) -> float:
        """Read deliveries for `seconds`. Return the p99 lateness of the sound topic's timers, in ms."""
        begun = len(self.seen)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.seen += self.receiver.poll(0.1)
        late_ms = sorted(d.appended_ms - d.due_ms for d in self.seen[begun:] if d.topic == self.targets[self.sound])
        assert len(late_ms) > seconds * 10, "too few were delivered"
        return late_ms[len(late_ms) * 99 // 100]

    def skip(self, offset: int) -> None:
        known = ["--config", str(self.config), "--timer-topic", self.poisoned]
        place = [self.poisoned, "0", str(offset), "--bootstrap-servers", self.broker.bootstrap_servers]
        subprocess.run([*TIMER_BRIDGE, "skip", *place, *known], check=True, timeout=PATIENCE_S)

    def until_all(self) -> None:
        def is_all() -> bool:
            self.seen.extend(self.receiver.poll(0.1))
            return len({delivery.origin for delivery in self.seen}) >= self.sent.total()

        until(is_all, f"{self.sent.total()} deliveries")

    def demand_each_once(self) -> None:
        for topic, target in self.targets.items():
            origins = Counter(dict(record.headers())["timer-origin"] for record in self.cluster.read(target))
            assert [origin for origin, count in origins.items() if count > 1] == []
            assert len(origins) == self.sent[topic]

    def parked(self) -> list[tuple[str, bytes | None, str]]:
        found = []
        for record in self.cluster.read(self.names.rejected):
            headers = {name: value.decode() for name, value in record.headers()}
            assert headers.keys() == {"timer-error", "timer-error-detail", "timer-origin"}
            found.append((headers["timer-error"], record.value(), headers["timer-origin"]))
        return found


@pytest.fixture
def place(kafka: Broker, names: Names, tmp_path: Path) -> Place:
    return Place(kafka, names, tmp_path)


def undecodable_at(port: int) -> int | None:
    """Return the offset of the undecodable record that readiness names, or None."""
    status, told = get(port, "/health/ready")
    if status != 503 or told["reason"] != "intake paused: undecodable":
        return None
    return int(str(told["detail"]).rpartition("offset ")[2].split()[0])


@pytest.mark.slow
def test_a_bomb_stops_only_its_topic_until_it_is_skipped_and_each_timer_comes_once_through_kill_9(place: Place) -> None:
    """Of two instances: bridge/loop/tests/test_undecodable.py."""
    bridge, port = place.bridge()
    with ExitStack() as ends:
        ends.callback(bridge.kill)
        bridge.start()
        with place.load():
            place.watch(2)
            before_ms, rss_mb = place.watch(PHASE_S), bridge.usage().rss_mb
            assert place.bomb() == []
            offset = until(lambda: undecodable_at(port), "an offset")
            during_ms, grown_mb = place.watch(PHASE_S), bridge.usage().peak_rss_mb - rss_mb
            bridge.kill()
            bridge.launch()
            until(lambda: undecodable_at(port) == offset, "the offset again")
            place.watch(2)
            restarted_ms = place.watch(PHASE_S)
            place.skip(offset or 0)
            bridge.kill()  # the record may be parked by now, or not
            bridge.launch()
            until(lambda: get(port, "/health/ready")[0] == 200, "a ready bridge")
            place.watch(2)
            after_ms = place.watch(PHASE_S)
        place.until_all()
        bridge.stop()
    place.demand_each_once()
    assert place.parked() == [("undecodable", None, f"{place.poisoned}/0/{offset}")]
    assert max(during_ms, restarted_ms, after_ms) < before_ms + BUSY_MS
    assert grown_mb < 200


def test_a_skip_after_a_restart_parks_a_record_that_follows_a_marker(place: Place) -> None:
    """The first read after the restart finds a marker and the record."""
    with place.bridge()[0]:
        sender = place.cluster.transactional()
        sender.begin_transaction()
        headers = [("timer-topic", place.targets[place.poisoned].encode()), ("timer-delay-ms", b"0")]
        sender.produce(place.poisoned, b"v", headers=headers, partition=0)
        sender.commit_transaction()
        place.sent[place.poisoned] += 1
        place.until_all()
    assert place.bomb() == []
    bridge, port = place.bridge()
    with ExitStack() as ends:
        ends.callback(bridge.kill)
        bridge.launch()
        offset = until(lambda: undecodable_at(port), "an offset")
        assert offset == 2
        place.skip(offset)
        place.send(place.poisoned, 0)
        place.cluster.flush()
        place.until_all()
        bridge.stop()
    place.demand_each_once()
    assert place.parked() == [("undecodable", None, f"{place.poisoned}/0/{offset}")]


def test_brokers_refuse_bombs_by_default(kafka: Broker, names: Names, tmp_path: Path) -> None:
    place = Place(kafka, names, tmp_path, compressed="refuse")
    with place.bridge()[0] as bridge:
        before_mb = bridge.usage().rss_mb
        assert [place.bomb(20_000_000) for _ in range(20)] == [["MSG_SIZE_TOO_LARGE"]] * 20
        place.send(place.poisoned, 0)
        place.cluster.flush()
        place.until_all()
        assert bridge.usage().peak_rss_mb - before_mb < 200
    place.demand_each_once()


def test_no_read_of_the_loop_waits_longer_than_5_s_for_a_frozen_broker(own_kafka: EmbeddedKafka) -> None:
    cluster = Cluster(own_kafka.bootstrap_servers)
    timers, journal = cluster.topic("timers"), cluster.topic("journal")
    for _ in range(100):
        cluster.send(timers, b"v" * 300)
    cluster.flush()
    limits = fetch_limits(1 << 20, is_compressed=True)
    connection = Connection(own_kafka.bootstrap_servers, fetched=limits)
    timer_partition = TimerPartition(timers, 0)
    reads: list[Callable[[ConfluentHistory], object]] = [
        lambda history: list(history.requests(timer_partition, 0, 100)),
        lambda history: list(history.journal(timer_partition, from_offset=0, since_ms=None)),
        lambda history: history.progress(timer_partition),
        lambda history: history.bounds(timer_partition),
        lambda history: history.journal_bounds(timer_partition),
        lambda history: history.offset_at(timer_partition, 1),
        lambda history: history.journal_tails([timer_partition], 20),
    ]
    histories = [ConfluentHistory(connection, {timers: journal}, Retrier(), LIMIT_S) for _ in reads]
    for history in histories:
        assert sum(map(len, history.requests(timer_partition, 0, 100))) == 100
        assert history.progress(timer_partition) is None
    control = ConfluentControl(connection, cluster.topic("control"), Retrier())
    assert list(control.catch_up()) == []

    def seconds_of(read: Callable[[], object]) -> float:
        begun_s = time.monotonic()
        with pytest.raises((PartitionUnreadableError, BrokerUnavailableError)):
            read()
        return time.monotonic() - begun_s

    pid = own_kafka.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)  # on a busy machine, its threads may still answer for a moment
    try:
        with ThreadPoolExecutor(len(reads) + 1) as threads:
            calls = [partial(read, history) for read, history in zip(reads, histories, strict=True)]
            took_s = list(threads.map(seconds_of, [*calls, lambda: list(control.catch_up())]))
        assert max(took_s) < 5.5
        for check in (
            histories[0].with_open_transactions,
            histories[0].stable_and_end_offsets,
            histories[0].first_offsets,
            histories[0].newest_journal_times,
        ):
            begun_s = time.monotonic()
            check([timer_partition])
            assert time.monotonic() - begun_s < 2
    finally:
        os.kill(pid, signal.SIGCONT)
    for history in histories:
        history.close()
    control.close()
