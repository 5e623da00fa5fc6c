"""Partitions with much to read at a start are prepared in the background, while the others deliver."""

import errno
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.config.data_directory import DataDir
from bridge.config.kafka_config import Connection
from bridge.config.settings import usable_cores
from bridge.kafka import background_recovery as preparing
from bridge.loop.tests.test_histories import die, kafka_with, schedule, send, values
from bridge.observe import logs
from bridge.partition import recover as recovery
from bridge.partition.options import Policy
from bridge.testing import FakeGroup, FakeInstance
from bridge.testing.timer_world import TIMERS, usual_options
from kafka_timer.origin import TimerPartition

LARGE, SMALL = TimerPartition(TIMERS, 0), TimerPartition(TIMERS, 1)
MINUTE_MS = 60_000


class World:
    """Two partitions: 20 timers in one, which is enough to prepare it in the background, and none in the other."""

    def __init__(self) -> None:
        self.kafka = kafka_with(2)
        self.bridge = FakeInstance(
            self.kafka, FakeGroup("timers", [LARGE, SMALL]), replace(usual_options(), prepare_from=20)
        )
        for number in range(20):
            self.send(LARGE, f"large {number}", MINUTE_MS, id_=str(number))
        self.bridge.run(1000)

    def send(self, timer_partition: TimerPartition, value: str, delay_ms: int, *, id_: str | None = None) -> None:
        headers = schedule(delay_ms, id_=id_)
        self.kafka.produce(TIMERS, value.encode(), headers=headers, partition=timer_partition.partition)

    def rebuild(self) -> None:
        """Start again without disks; the background recovery of the large one does not end."""
        self.bridge.lose_disks()
        self.bridge.holds_preparations = True
        self.bridge.start()

    def is_ready(self) -> bool:
        return self.bridge.bridge.ready


def test_others_deliver_while_one_is_prepared() -> None:
    world = World()
    world.rebuild()
    world.send(SMALL, "small", 500)
    world.bridge.run(500)
    world.kafka.produce(TIMERS, None, headers=[("timer-action", b"cancel"), ("timer-id", b"7")], partition=0)
    world.bridge.run(MINUTE_MS)
    assert values(world.kafka) == ["small"]
    assert not world.is_ready()
    world.bridge.holds_preparations = False
    world.bridge.run(1000)
    assert world.is_ready()
    assert sorted(values(world.kafka)) == sorted(["small", *(f"large {n}" for n in range(20) if n != 7)])
    assert world.bridge.disks.keys() == {LARGE, SMALL}


@pytest.mark.parametrize("dies_at", ["sink.offsets done", "sink.commit", "sink.end"])
def test_others_deliver_while_a_dead_owners_transaction_is_open(dies_at: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither progress nor journal can be read before the transaction times out."""
    kafka = kafka_with(2)
    group, options = FakeGroup("timers", [LARGE, SMALL]), replace(usual_options(), max_wait_ms=500)
    instances = {name: FakeInstance(kafka, group, options, name=name) for name in ("dead", "other")}
    for _ in range(3):
        for instance in instances.values():
            instance.run(0)
    dead, other = instances["dead"], instances["other"]
    (gone,), (kept,) = dead.bridge.pending, other.bridge.pending
    send(kafka, gone, str(gone), 100)
    die(dead, dies_at, within_ms=1000)
    dead.kill()
    with caplog.at_level(logging.INFO):
        other.run(1)  # it is assigned the partition of the dead one
    assert f"{gone}: a former owner's transaction is still open: waiting for it in the background" in caplog.messages
    for _ in range(5):
        send(kafka, kept, str(kept), 100)
        other.run(500)
    other.run(15_000)
    late_ms: dict[bytes | None, list[int]] = {}
    for entry in kafka.read("orders"):
        told = {name: int(value or b"") for name, value in entry.headers if name != "timer-origin"}
        late_ms.setdefault(entry.value, []).append(told["timer-released-ms"] - told["timer-deliver-ms"])
    assert late_ms[str(kept).encode()] == [0] * 5
    assert len(late_ms[str(gone).encode()]) == 1


@pytest.mark.parametrize("end", ["lost", "stopped", "stopped in time"])
def test_a_partition_given_up_while_it_is_prepared_delivers_later(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """The signal that ends the bridge may have killed the child. The bridge must not do the child's work."""
    world = World()
    world.rebuild()
    world.bridge.run(500)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        if end == "lost":
            world.bridge.leave_the_group()
        else:
            world.bridge.holds_preparations = end == "stopped"
            world.bridge.bridge.finish()
            world.bridge.bridge.stop()
            assert f"{LARGE}: recovered" not in caplog.text
            world.bridge.start()
    world.bridge.holds_preparations = False
    world.bridge.run(MINUTE_MS)
    assert values(world.kafka) == [f"large {number}" for number in range(20)]


@pytest.mark.parametrize(("told", "cores"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", None)])
def test_usable_cores_follow_the_containers_limit(tmp_path: Path, told: str, cores: int | None) -> None:
    limit, all_ = tmp_path / "cpu.max", len(os.sched_getaffinity(0))
    limit.write_text(told + "\n")
    assert usable_cores(limit) == (all_ if cores is None else min(cores, all_))
    assert usable_cores(tmp_path / "none") == all_


def test_after_a_clean_stop_no_partition_is_prepared() -> None:
    world = World()
    world.bridge.stop()
    world.bridge.holds_preparations = True
    world.bridge.start()
    world.bridge.run(1000)
    assert world.is_ready()


def test_options_of_a_running_bridge_can_be_sent_to_a_process() -> None:
    world = World()
    options = replace(usual_options(), policy=Policy(deny=("secret.*",)), prepare_from=20)
    world.bridge.options = options
    world.bridge.start()
    world.send(SMALL, "judged", 0)
    world.bridge.run(10)
    assert values(world.kafka) == ["judged"]
    sent = pickle.loads(pickle.dumps(options))
    assert (sent.policy, sent.policy.refusal("orders")) == (options.policy, None)
    assert sent.policy.refusal("secret.x") == options.policy.refusal("secret.x")


def preparing_process(code: str) -> subprocess.Popen[bytes]:
    """Start a process that answers as the code says: one byte for each partition, 0 if it is prepared."""
    command = [sys.executable, "-c", f"import os, pickle, sys, time; {code}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def recoverer(tmp_path: Path) -> Iterator[preparing.BackgroundRecoverer]:
    folder = DataDir(tmp_path / "data")
    connection, workers = Connection("127.0.0.1:1"), usable_cores()  # one process at a time
    yield preparing.BackgroundRecoverer(connection, {}, folder, usual_options(), logs.configure, workers)
    folder.close()


def assert_soon(is_true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_process_prepares_several_partitions_and_a_dead_one_is_replaced(
    recoverer: preparing.BackgroundRecoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after the last partition."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        code = "exec('while pickle.load(sys.stdin.buffer).partition.partition != 2: os.write(1, bytes(1))')"
        started.append(preparing_process(code))
        return started[-1]

    monkeypatch.setattr(preparing, "_started", start)
    orders = [recoverer.start(TimerPartition(TIMERS, number)) for number in range(5)]
    for order in orders:
        assert_soon(order.is_done)
    assert [order.code() for order in orders] == [0, 0, 1, 0, 0]
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_preparation_that_is_given_up_is_killed_and_the_next_one_has_a_new_process(
    recoverer: preparing.BackgroundRecoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(preparing_process("time.sleep(60)" if not started else "os.write(1, b'0'); time.sleep(60)"))
        return started[-1]

    monkeypatch.setattr(preparing, "_started", start)
    first, second, third = (recoverer.start(TimerPartition(TIMERS, number)) for number in range(3))
    second.give_up()
    first.give_up()
    assert started[0].poll() == -signal.SIGKILL
    assert_soon(third.is_done)
    third.give_up()
    third.give_up()
    assert [process.poll() for process in started] == [-signal.SIGKILL] * 2


def test_refreshes_rest_by_their_share_of_a_core() -> None:
    assert preparing.rest_s(took_s=0.25, cpu_s=0.125, cpu_share=0.25) == 0.25
    assert preparing.rest_s(took_s=10, cpu_s=0.125, cpu_share=0.25) == 0


def test_without_a_process_a_partition_is_recovered_in_the_bridge_and_the_next_one_is_tried(
    recoverer: preparing.BackgroundRecoverer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = iter([OSError(errno.EAGAIN, "Resource temporarily unavailable"), None])

    def started() -> subprocess.Popen[bytes]:
        if (refused := next(tries)) is not None:
            raise refused
        return preparing_process("sys.stdin.buffer.read(1); os.write(1, b'0'); time.sleep(60)")

    monkeypatch.setattr(preparing, "_started", started)
    first, second = recoverer.start(LARGE), recoverer.start(SMALL)
    assert first.is_done()
    assert_soon(second.is_done)
    assert f"{LARGE}: no process for its background recovery" in caplog.text


def test_a_rebuild_on_a_full_disk_is_retried_in_the_background(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each attempt would hold up the other partitions."""
    here: list[TimerPartition] = []

    def full(*asked: object) -> None:
        raise OSError(errno.ENOSPC, f"{asked[0]}: no space left on device")

    def noted(timer_partition: TimerPartition, *asked: Any) -> recovery.Recovered:
        here.append(timer_partition)
        return recovery.recover(timer_partition, *asked)

    world = World()
    world.bridge.lose_disks()
    monkeypatch.setattr("bridge.loop.assigned_partitions.recover", noted)
    with monkeypatch.context() as patched:
        patched.setattr("bridge.testing.fake_instance.prepare_store", full)
        world.bridge.start()
        world.send(SMALL, "small", 500)
        world.bridge.run(20_000)
    assert (values(world.kafka), here) == (["small"], [SMALL])
    assert f"{LARGE}: its local store cannot be made ready ([Errno 28]" in caplog.text
    world.bridge.run(MINUTE_MS)
    assert sorted(values(world.kafka)) == sorted(["small", *(f"large {n}" for n in range(20))])
