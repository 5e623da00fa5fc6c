"""The embedded broker, without starting one. The rest is in integration_tests/bridge/test_embedded.py."""

import socket
import stat
from collections.abc import Iterator
from hashlib import sha512
from pathlib import Path

import pytest

from bridge.dev import embedded_kafka as embedded
from bridge.dev.embedded_kafka import HOST, PORTS, EmbeddedKafka, EmbeddedKafkaError, find_java, free_port, java_major
from bridge.dev.kafka_jars import ensure_jars
from bridge.errors import BridgeError
from schemas import maven_jars as jars
from schemas.maven_jars import JarList


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
def test_the_version_of_java_is_parsed(text: str, major: int | None) -> None:
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
def test_a_start_without_time_or_disk_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], told: str
) -> None:
    monkeypatch.setattr(embedded, "find_java", lambda: str(fake_java(tmp_path, *lines)))
    monkeypatch.setattr(embedded, "ensure_jars", lambda cache, java: tmp_path)
    kafka = EmbeddedKafka(tmp_path / "kafka")
    with pytest.raises(EmbeddedKafkaError, match=told):
        kafka.start(timeout_s=1)
    assert kafka.pid is None


def test_without_a_free_port_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_bindable", lambda port: False)
    with pytest.raises(EmbeddedKafkaError, match=f"no free port between {PORTS.start} and {PORTS.stop}"):
        free_port()


def test_stop_and_kill_without_a_start_do_nothing(tmp_path: Path) -> None:
    kafka = EmbeddedKafka(tmp_path)
    kafka.stop()
    kafka.kill()
    assert kafka.pid is None


def jar_list(folder: Path, **jars: bytes) -> JarList:
    """Return a list of jars `x:NAME:1` with these contents."""
    file = folder / "jars.txt"
    pinned = [f"x:{name}:1 {sha512(content).hexdigest()}" for name, content in jars.items()]
    file.write_text("\n".join(["# organisation:name:version and SHA-512", *pinned, ""]))
    return JarList("Kafka", "1", file)


def fetching_java(folder: Path, **jars: str) -> str:
    """Return a fake java that fetches these jars."""
    make = 'while [ $# -gt 1 ]; do shift; done; folder=$(dirname "$1"); mkdir -p "$folder"; cd "$folder"'
    write = [f"printf %s '{content}' > {name}-1.jar" for name, content in jars.items()]
    return str(fake_java(folder, make, *write))


def test_jars_are_fetched_once_and_a_half_fetch_is_not_taken(tmp_path: Path) -> None:
    asked, cache = jar_list(tmp_path, a=b"A", b=b"B"), tmp_path / "cache"
    with pytest.raises(jars.JarsError, match="fetched 1 of 2 jars"):
        jars.ensure(asked, cache, java=fetching_java(tmp_path / "half", a="A"))
    assert list(cache.glob("[!.]*")) == []
    folder = jars.ensure(asked, cache, java=fetching_java(tmp_path / "whole", a="A", b="B"))
    assert sorted(path.name for path in folder.iterdir()) == ["a-1.jar", "b-1.jar"]
    assert jars.ensure(asked, cache, java="no-such-java") == folder
    assert [path.name for path in cache.glob(".*")] == [".lock"]


def test_a_jar_that_arrives_with_other_bytes_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    asked, cache = jar_list(tmp_path, a=b"A", b=b"B"), tmp_path / "cache"
    with pytest.raises(jars.JarsError, match=r"b-1\.jar: SHA-512 is \w{128}, expected \w{128}; delete "):
        jars.ensure(asked, cache, java=fetching_java(tmp_path / "other", a="A", b="C"))
    assert list(cache.glob("[!.]*")) == []


@pytest.mark.parametrize("spoil", ["change", "add", "remove"])
def test_jars_of_the_cache_are_checked_at_each_use(tmp_path: Path, spoil: str) -> None:
    asked, cache = jar_list(tmp_path, a=b"A"), tmp_path / "cache"
    folder = jars.ensure(asked, cache, java=fetching_java(tmp_path, a="A"))
    match spoil:
        case "change":
            (folder / "a-1.jar").write_bytes(b"C")
        case "add":
            (folder / "b-1.jar").write_bytes(b"B")
        case "remove":
            (folder / "a-1.jar").unlink()
    with pytest.raises(jars.JarsError, match=r"[ab]-1\.jar"):
        jars.ensure(asked, cache)


def test_a_jar_without_a_sum_is_refused(tmp_path: Path) -> None:
    asked = jar_list(tmp_path, a=b"A")
    asked.file.write_text("x:a:1\n")
    with pytest.raises(jars.JarsError, match="expected not pinned"):
        jars.ensure(asked, tmp_path / "cache", java=fetching_java(tmp_path, a="A"))


def test_a_failed_fetch_shows_the_last_words_of_ivy(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "echo UNRESOLVED DEPENDENCIES; exit 1")
    with pytest.raises(BridgeError, match="UNRESOLVED DEPENDENCIES"):
        ensure_jars(tmp_path / "cache", java=str(java))


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BridgeError, match=r"pip install 'kafka-timer-bridge\[spark\]'"):
        ensure_jars(tmp_path / "cache")
