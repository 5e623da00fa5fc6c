"""Compression bombs on a real broker: one topic stops at the record, all others go on, and a skip parks it once."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from bridge.dev.embedded_kafka import free_port
from integration_tests.conftest import Broker
from integration_tests.support.bridge_command import command, get
from integration_tests.support.instances import Field
from integration_tests.support.patience import PATIENCE_S, until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

MOST_LATE_MS, MOST_MB = 5_000, 400
"""A read without a limit stopped the other topic for good."""


def bomb(field: Field, size: int = 90_000_000) -> list[str]:
    """Send zeros that are compressed. Return the error if the broker has refused them."""
    producer: Any = Producer(
        {
            "bootstrap.servers": field.bridge_servers,
            "compression.type": "zstd",
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    errors: list[str] = []
    producer.produce(
        *(field.timers, bytes(size)),
        partition=0,
        headers=soon(field.target),
        on_delivery=lambda error, _: errors.extend([error.name()] if error else []),
    )
    assert producer.flush(PATIENCE_S) == 0
    return errors


def soon(target: str) -> list[tuple[str, str | bytes | None]]:
    return [("timer-topic", target.encode()), ("timer-delay-ms", b"0")]


def undecodable_at(port: int) -> int | None:
    """Return the offset of the undecodable record that readiness names, or None."""
    status, told = get(port, "/health/ready")
    if status != 503 or told["reason"] != "intake paused: undecodable":
        return None
    return int(str(told["detail"]).rpartition("offset ")[2].split()[0])


def test_a_bomb_stops_its_topic_alone_until_a_skip_after_a_restart_parks_it(kafka: Broker, tmp_path: Path) -> None:
    """The first read after the restart finds a marker and the record."""
    config, port = tmp_path / "bridge.toml", free_port()
    arguments = ("--compressed-requests", "allow", "--config", str(config), "--http-port", str(port))
    with closing(Field(kafka.bootstrap_servers, tmp_path, 1, *arguments)) as field:
        sound, target = f"{field.timers}-sound", field.cluster.topic("sound", message_timestamp_type="LogAppendTime")
        config.write_text(f'control_topic = "control-{field.mark}"\n[topics."{sound}"]\n')
        (first,) = field.start("one")
        sender = field.cluster.transactional()
        sender.begin_transaction()
        sender.produce(field.timers, b"v", headers=soon(field.target), partition=0)
        sender.commit_transaction()
        field.sent += 1
        field.until_delivered(1)
        first.stop()
        assert bomb(field) == []
        bridge = field.launch("one")
        offset = until(lambda: undecodable_at(port), "an offset")
        assert offset == 2
        for _ in range(20):
            field.cluster.send(sound, b"v", headers=soon(target))
        field.cluster.flush()
        until(lambda: len(field.cluster.values(target)) >= 20, "deliveries of the sound topic")
        assert bridge.usage().peak_rss_mb < MOST_MB
        skip = ["skip", field.timers, "0", str(offset), "--bootstrap-servers", field.bridge_servers]
        skip += ["--config", str(config), "--timer-topic", field.timers]
        assert command(*skip).returncode == 0
        field.send(0, 0)
        field.demand_each_once()
        came = [(dict(each.headers()), each.timestamp()[1]) for each in field.cluster.read(target)]
        assert len({headers["timer-origin"] for headers, _ in came}) == len(came) == 20
        assert max(at_ms - int(headers["timer-deliver-ms"]) for headers, at_ms in came) < MOST_LATE_MS
        (parked,) = field.cluster.read(f"rejected-{field.mark}")
        headers = dict(parked.headers())
        assert headers.keys() == {"timer-error", "timer-error-detail", "timer-origin"}
        assert (headers["timer-error"], parked.value()) == (b"undecodable", None)
        assert headers["timer-origin"].decode() == f"{field.timers}/0/{offset}"


def test_brokers_refuse_bombs_by_default(kafka: Broker, tmp_path: Path) -> None:
    with closing(Field(kafka.bootstrap_servers, tmp_path, 1)) as field:
        (bridge,) = field.start("one")
        before_mb = bridge.usage().rss_mb
        assert [bomb(field, 20_000_000) for _ in range(20)] == [["MSG_SIZE_TOO_LARGE"]] * 20
        field.send(0, 0)
        field.until_delivered(1)
        assert bridge.usage().peak_rss_mb - before_mb < 200
        field.demand_each_once()
