"""The embedded broker, without starting one. The rest is in integration_tests/bridge/test_embedded.py."""

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from hashlib import sha512
from pathlib import Path

import pytest

from bridge.dev import embedded_kafka as embedded
from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, find_java
from bridge.dev.kafka_jars import JARS
from bridge.errors import BridgeError
from schemas import maven_jars as jars
from schemas.maven_jars import JarList


@pytest.fixture(autouse=True)
def uncached_java() -> Iterator[None]:
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
    ("lines", "told"),
    [
        (["echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"], r"/java is .*11\.0\.2.*Kafka needs Java 17"),
        (None, "does not run: .*JAVA_HOME=.*apt-get install openjdk-17-jre-headless"),
    ],
)
def test_an_old_or_missing_java_in_java_home_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str] | None, told: str
) -> None:
    if lines is not None:
        fake_java(tmp_path, *lines)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BridgeError, match=told):
        find_java()


@pytest.fixture
def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedKafka:
    """Return a broker whose java is `fake_java`."""
    monkeypatch.setattr(embedded, "find_java", lambda: str(tmp_path / "bin" / "java"))
    monkeypatch.setattr(embedded, "ensure", lambda jars, cache, java: tmp_path)
    return EmbeddedKafka(tmp_path / "kafka")


def test_a_taken_port_is_refused_before_anything_starts(kafka: EmbeddedKafka) -> None:
    in_use = pytest.raises(BridgeError, match=f"port {kafka.port} on {HOST} is in use")
    with socket.create_server((HOST, kafka.port)), in_use:
        kafka.start()
    assert not kafka.folder.exists()


def test_a_folder_in_use_is_refused_before_a_file_is_written(tmp_path: Path, kafka: EmbeddedKafka) -> None:
    """Two brokers on one folder: both lead its metadata log, and the first one answers no admin call any more."""
    fake_java(tmp_path, _FORMATS, "echo Kafka Server started", "exec sleep 60")
    other = EmbeddedKafka(kafka.folder)
    with kafka:
        before = (kafka.folder / "server.properties").read_bytes()
        with pytest.raises(BridgeError, match=f"{kafka.folder}: another Kafka runs on it"):
            other.start()
        assert (kafka.folder / "server.properties").read_bytes() == before
    with other:
        os.kill(other.pid or 0, signal.SIGKILL)
        until_s = time.monotonic() + 30
        while other.pid is not None and time.monotonic() < until_s:
            time.sleep(0.01)
        other.start()  # a broker that has ended locks nothing
    fake_java(tmp_path, "exit 1")
    for _ in range(2):
        with pytest.raises(BridgeError, match="could not be formatted"):
            kafka.start()


_FORMATS = 'case "$*" in *StorageTool*) exit 0;; esac'


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([_FORMATS, "exec sleep 60"], "was not ready within 1 s"),
        ([_FORMATS, "echo no room on the device; exit 7"], r"ended while it started(.|\n)*no room on the device"),
        (["exec sleep 60"], "was not formatted for Kafka within 1 s"),
        (["echo no such disk >&2; exit 1"], r"could not be formatted for Kafka(.|\n)*no such disk"),
    ],
)
def test_a_failed_start_raises_and_leaves_no_process(
    tmp_path: Path, kafka: EmbeddedKafka, lines: list[str], told: str
) -> None:
    fake_java(tmp_path, *lines)
    with pytest.raises(BridgeError, match=told):
        kafka.start(timeout_s=1)
    assert kafka.pid is None
    kafka.stop()
    kafka.kill()


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


@pytest.mark.parametrize(
    ("pinned", "told"),
    [(None, r"b-1\.jar: SHA-512 is \w{128}, expected \w{128}; delete "), ("", "expected not pinned")],
)
def test_a_jar_with_another_or_no_hash_is_refused_and_not_kept(tmp_path: Path, pinned: str | None, told: str) -> None:
    asked, cache = jar_list(tmp_path, b=b"B"), tmp_path / "cache"
    if pinned is not None:
        asked.file.write_text(f"x:b:1 {pinned}\n")
    with pytest.raises(jars.JarsError, match=told):
        jars.ensure(asked, cache, java=fetching_java(tmp_path / "other", b="C"))
    assert list(cache.glob("[!.]*")) == []


@pytest.mark.parametrize("content_after", [{"a-1.jar": b"C"}, {"b-1.jar": b"B"}, {}], ids=["change", "add", "remove"])
def test_jars_of_the_cache_are_checked_at_each_use(tmp_path: Path, content_after: dict[str, bytes]) -> None:
    asked, cache = jar_list(tmp_path, a=b"A"), tmp_path / "cache"
    folder = jars.ensure(asked, cache, java=fetching_java(tmp_path, a="A"))
    for name, content in content_after.items():
        (folder / name).write_bytes(content)
    if not content_after:
        (folder / "a-1.jar").unlink()
    with pytest.raises(jars.JarsError, match=r"[ab]-1\.jar"):
        jars.ensure(asked, cache)


def test_the_archive_of_classes_is_written_by_a_jvm_that_ends_and_then_used(tmp_path: Path) -> None:
    java = str(fake_java(tmp_path / "java"))
    (written,) = jars.archive_options(tmp_path, "a.jar", java)[2:]
    archive = Path(written.removeprefix("-XX:ArchiveClassesAtExit="))
    assert not jars.archive_options(tmp_path, "a.jar", java, writes=False)
    archive.write_bytes(b"\0\0half")
    assert jars.archive_options(tmp_path, "a.jar", java)[2:] == (written,), "a JVM writes the header last"
    archive.write_bytes(b"\xa8whole")
    assert jars.archive_options(tmp_path, "a.jar", java, writes=False)[2:] == (f"-XX:SharedArchiveFile={archive}",)
    for other in (("b.jar", java), ("a.jar", str(fake_java(tmp_path / "other")))):
        assert jars.archive_options(tmp_path, *other)[2:] != jars.archive_options(tmp_path, "a.jar", java)[2:]
    assert not jars.archive_options(tmp_path, "a.jar", "no-such-java")


def test_a_failed_fetch_shows_the_last_words_of_ivy(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "echo UNRESOLVED DEPENDENCIES; exit 1")
    with pytest.raises(BridgeError, match="UNRESOLVED DEPENDENCIES"):
        jars.ensure(JARS, tmp_path / "cache", java=str(java))


def test_without_pyspark_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BridgeError, match=r"pip install 'kafka-timer-bridge\[spark\]'"):
        jars.ensure(JARS, tmp_path / "cache")
