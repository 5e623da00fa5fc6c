"""Compression bombs on a real broker: one topic stops at the record, all others go on, and a skip parks it once."""

import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import Names, get
from integration_tests.support.cluster import Cluster
from integration_tests.support.patience import PATIENCE_S, until
from scripts.common.kafka_io import BROKER_CLOCK, Admin, Delivery, Receiver
from scripts.common.processes import TIMER_BRIDGE, BridgeProcess

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

MOST_LATE_MS, MOST_MB = 5_000, 400
"""A read without a limit stopped the other topic for good."""


class Place:
    """Two timer topics of one partition each, `poisoned` and `sound`, each with a target, and bridges."""

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


def test_a_bomb_stops_its_topic_alone_until_a_skip_after_a_restart_parks_it(place: Place) -> None:
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
        for _ in range(20):
            place.send(place.sound, 0)
        place.cluster.flush()
        place.until_all()
        sound = [each for each in place.seen if each.topic == place.targets[place.sound]]
        assert max(each.appended_ms - each.due_ms for each in sound) < MOST_LATE_MS
        assert bridge.usage().peak_rss_mb < MOST_MB
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
