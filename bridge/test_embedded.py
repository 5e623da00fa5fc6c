"""What can be known of the embedded broker without starting one; the rest is in integration_tests/test_embedded.py."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import embedded
from bridge.embedded import HOST, PORTS, EmbeddedKafka, EmbeddedKafkaError, find_java, free_port, java_major
from bridge.jars import JarsError
from bridge.kafka_jars import JARS, ensure_jars


@pytest.fixture(autouse=True)
def java_is_looked_up_anew() -> Iterator[None]:
    find_java.cache_clear()
    yield
    find_java.cache_clear()


def fake_java(folder: Path, *lines: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_java_tells_its_age(text: str, major: int | None) -> None:
    assert java_major(text) == major


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match="apt-get install openjdk-17-jre-headless"):
        find_java()


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match=r"11\.0\.2.*Kafka needs Java 17") as told:
        find_java()
    assert str(java) in str(told.value)


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match="JAVA_HOME="):
        find_java()


def test_free_ports_lie_below_those_of_outgoing_connections() -> None:
    port = free_port()
    assert port in PORTS
    assert free_port(taken={port}) != port


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_java", lambda: "java")
    monkeypatch.setattr(embedded, "ensure_jars", lambda cache, java: tmp_path)
    kafka = EmbeddedKafka(tmp_path / "kafka")
    in_use = pytest.raises(EmbeddedKafkaError, match=f"port {kafka.port} on {HOST} is in use")
    with socket.create_server((HOST, kafka.port)), in_use:
        kafka.start()
    assert not kafka.folder.exists()


def test_no_process_stays_when_kafka_ends_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, 'case "$*" in *StorageTool*) exit 0;; esac', "echo no room on the device; exit 7")
    monkeypatch.setattr(embedded, "find_java", lambda: str(java))
    monkeypatch.setattr(embedded, "ensure_jars", lambda cache, java: tmp_path)
    kafka = EmbeddedKafka(tmp_path / "kafka")
    with pytest.raises(EmbeddedKafkaError, match=r"ended while it started(.|\n)*no room on the device"):
        kafka.start()
    assert kafka.pid is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (['case "$*" in *StorageTool*) exit 0;; esac', "exec sleep 60"], "was not ready within 1 s"),
        (["exec sleep 60"], "was not formatted for Kafka within 1 s"),
        (["echo no such disk >&2; exit 1"], r"could not be formatted for Kafka(.|\n)*no such disk"),
    ],
)
def test_a_start_that_takes_too_long_or_has_no_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], told: str
) -> None:
    monkeypatch.setattr(embedded, "find_java", lambda: str(fake_java(tmp_path, *lines)))
    monkeypatch.setattr(embedded, "ensure_jars", lambda cache, java: tmp_path)
    kafka = EmbeddedKafka(tmp_path / "kafka")
    with pytest.raises(EmbeddedKafkaError, match=told):
        kafka.start(timeout_s=1)
    assert kafka.pid is None


def test_where_no_port_is_free_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_bindable", lambda port: False)
    with pytest.raises(EmbeddedKafkaError, match=f"no free port between {PORTS.start} and {PORTS.stop}"):
        free_port()


def test_stop_and_kill_without_a_start_do_nothing(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path)
    kafka.stop()
    kafka.kill()
    assert kafka.pid is None


def test_jars_are_fetched_once_and_a_half_fetch_is_not_taken(tmp_path: Path) -> None:
    half = fake_java(tmp_path / "half", "exit 0")
    with pytest.raises(JarsError, match=f"fetched 0 of {len(JARS)} jars"):
        ensure_jars(tmp_path / "cache", java=str(half))
    assert list((tmp_path / "cache").glob("[!.]*")) == []
    make = 'while [ $# -gt 1 ]; do shift; done; folder=$(dirname "$1"); mkdir -p "$folder"; cd "$folder"'
    whole = fake_java(tmp_path / "whole", make, f"for i in $(seq {len(JARS)}); do echo > $i.jar; done")
    folder = ensure_jars(tmp_path / "cache", java=str(whole))
    assert len(list(folder.glob("*.jar"))) == len(JARS)
    assert ensure_jars(tmp_path / "cache", java="no-such-java") == folder
    assert [path.name for path in (tmp_path / "cache").glob(".*")] == [".lock"]


def test_a_failed_fetch_shows_the_last_words_of_ivy(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "echo UNRESOLVED DEPENDENCIES; exit 1")
    with pytest.raises(JarsError, match="UNRESOLVED DEPENDENCIES"):
        ensure_jars(tmp_path / "cache", java=str(java))


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(JarsError, match=r"pip install 'kafka-timer-bridge\[spark\]'"):
        ensure_jars(tmp_path / "cache")


def test_every_jar_is_pinned_once() -> None:
    names = [jar.rsplit(":", 1)[0] for jar in JARS]
    assert len(set(names)) == len(names)
    assert all(jar.count(":") == 2 for jar in JARS)
