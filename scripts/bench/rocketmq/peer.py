"""RocketMQ's timer under the bench's scenarios, measured in the same way, in a process and a network of its own.

    measured()  -->  python -m scripts.bench.rocketmq.peer     enters a network of its own: a loopback, nothing else
                         name server, broker, RocketmqClient.java           prints its measurements as a line of JSON

The broker's HA port binds every address and has no setting for that, hence the network. All else is RocketMQ's default,
except for BROKER. Lateness is by the broker's clock: the store time on the target topic.
"""

import ctypes
import dataclasses
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bridge.child_process import ChildProcess
from bridge.dev.embedded_kafka import SHORT_PAUSES, find_java
from bridge.errors import BridgeError
from schemas.maven_jars import JarList, ensure
from scripts.bench import scenarios
from scripts.bench.scenarios import STEADY_DELAY_MS, WARM_UP, Flat, Measured, flat
from scripts.bench.topic_fixture import AN_HOUR_MS, Sizes
from scripts.common import command, processes
from scripts.common.kafka_io import Delivery, OffsetRange, now_ms

ROCKETMQ_VERSION = "5.5.0"
JARS = JarList("RocketMQ", ROCKETMQ_VERSION, Path(__file__).with_name("rocketmq-jars.txt"))
"""What name server, broker and client resolve to, without annotations for compilers and without Netty's parts for other
systems; and the compiler ecj, which needs no JDK."""
CACHE = Path(".run/rocketmq-jars")
CLIENT = Path(__file__).with_name("RocketmqClient.java")
NAME_SERVER = "127.0.0.1:9876"
DEFAULT_TICK_MS, FINE_TICK_MS = 1000, 100
"""A burst leaves faster with the default; lateness is half of a tick."""
BROKER = """\
brokerIP1 = 127.0.0.1
bindAddress = 127.0.0.1
namesrvAddr = {name_server}
timerWheelEnable = true
timerPrecisionMs = {tick_ms}
maxTransferCountOnMessageInMemory = 256
storePathRootDir = {store}
"""
LOGBACK = Path(__file__).with_name("logback.xml")
_OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
_EXPORTED = ("jdk.internal.ref", "sun.nio.ch", "jdk.internal.misc")
_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_WARM_UPS = 3
_SETTLE_S = 1.0


class Load(NamedTuple):
    """Tick of a server, and what each of its rounds measures: these rates, or a burst if there are none."""

    tick_ms: int
    rounds: int
    rates: Sequence[int] = ()


def measured(folder: Path, load: Load, sizes: Sizes, seconds: float) -> list[Flat]:
    """Measure RocketMQ: one result for each round. Raises BridgeError, also without a network."""
    ensure(JARS, CACHE, java=find_java())  # here, because that process has no network
    folder.mkdir(parents=True, exist_ok=True)
    log, arguments = folder / "peer.log", json.dumps([load, dataclasses.asdict(sizes), seconds])
    words = [sys.executable, "-m", "scripts.bench.rocketmq.peer", str(folder), arguments]
    with processes.start_piped(words, log=log) as process:
        try:
            printed, _ = process.communicate(timeout=2 * seconds + 1800)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise BridgeError(log.read_text().strip().rpartition("\n")[2] or f"exit code {process.returncode}")
    found: list[Flat] = json.loads(printed)
    return found


def own_network() -> None:
    """Enter a network namespace. Raises BridgeError if that fails. Call it before any thread starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(_CLONE_NEWNET):
        why = os.strerror(ctypes.get_errno())
        raise BridgeError(f"RocketMQ needs a network namespace of its own, which root on Linux may make: {why}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


@contextmanager
def running(folder: Path, load: Load) -> Iterator[tuple["subprocess.Popen[str]", ChildProcess]]:
    """Run a name server, a broker and a client; return the client and the broker.

    They are killed at the end: a clean stop takes 13 s.
    """
    java, jars = find_java(), JARS.folder(CACHE).resolve()
    conf = BROKER.format(name_server=NAME_SERVER, tick_ms=load.tick_ms, store=folder / "store")
    (folder / "broker.conf").write_text(conf)
    options = [
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTED),
        *("-Djava.net.preferIPv4Stack=true", f"-Drmq.logback.configurationFile={LOGBACK}"),
        *(f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}", "-cp"),
    ]
    with ExitStack() as ends:

        def start(name: str, heap: Sequence[str], *main: str) -> ChildProcess:
            child = ChildProcess([java, *heap, *options, f"{jars}/*", *main], folder / name, b"boot success")
            ends.callback(child.kill)
            child.ready_or_ended.wait(60)
            if not child.ready:
                raise BridgeError(f"RocketMQ's {name} did not start: see {folder / name / 'logs' / 'console.log'}")
            return child

        start("namesrv", ["-Xmx256m"], "org.apache.rocketmq.namesrv.NamesrvStartup")
        heap = [*SHORT_PAUSES, "-Xms1g", "-Xmx2g"]
        broker = start("broker", heap, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(folder / "broker.conf"))
        words = [java, "-Xmx512m", *options, f"{_compiled(java, jars, folder)}:{jars}/*", CLIENT.stem, NAME_SERVER]
        process = processes.start_piped(words, stdin=subprocess.PIPE, log=folder / "client.log")
        ends.callback(process.communicate)
        ends.callback(process.kill)
        yield process, broker


def _compiled(java: str, jars: Path, folder: Path) -> Path:
    (compiler,) = jars.glob("ecj-*.jar")
    words = [java, "-jar", str(compiler), "-17", "-nowarn", "-d", str(folder / "classes")]
    words += ["-cp", ":".join(map(str, sorted(jars.glob("*.jar")))), str(CLIENT)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BridgeError(f"{CLIENT.name} could not be compiled:\n{done.stdout}{done.stderr}")
    return folder / "classes"


class Peer:
    """The scenarios on a broker, by our Java client: it answers each line with a line of a number."""

    def __init__(self, servers: tuple["subprocess.Popen[str]", ChildProcess], folder: Path, sizes: Sizes) -> None:
        (self._client, self._broker), self._folder, self._sizes = servers, folder, sizes
        self._head_start_ms = sizes.head_start_ms
        self._ask("ready")

    def warm_up(self, seconds: float) -> None:
        """Let Java compile, then measure how long it takes to send: all has to be stored before the first is due."""
        took_s = 0.0
        for _ in range(_WARM_UPS):
            begin_s = time.perf_counter()
            self._send_before("warm-up", WARM_UP, now_ms() + AN_HOUR_MS)
            took_s = time.perf_counter() - begin_s
        self._head_start_ms = int(3_000 + 1.5 * took_s / WARM_UP * 1000 * max(self._sizes.messages, WARM_UP))
        for per_s in scenarios.WARM_UP_RATES:
            self.steady("warm-up", per_s, seconds)

    def burst(self, number: int) -> Measured:
        topic, count = f"burst-{number}", self._sizes.messages
        self._send_before(topic, count, now_ms() + self._head_start_ms)
        return scenarios.burst_of(self._receive(topic, count), _spans(count))

    def steady(self, name: object, per_s: int, seconds: float) -> Measured:
        topic, count, begin_s = f"steady-{name}-{per_s}", int(per_s * seconds), time.perf_counter()
        before_s = self._broker_cpu_s()
        self._send(topic, count, STEADY_DELAY_MS, per_s)
        took_s, sent_ms = time.perf_counter() - begin_s, now_ms()
        time.sleep(STEADY_DELAY_MS / 1000 + _SETTLE_S)  # a reader would take CPU of the broker
        total_us = (self._broker_cpu_s() - before_s) * 1e6 / count
        measured = scenarios.steady_of(took_s, sent_ms, self._receive(topic, count), _spans(count))
        return measured | {"total_us": total_us}

    def _broker_cpu_s(self) -> float:
        assert self._broker.pid is not None
        return processes.usage(self._broker.pid).cpu_s

    def _send_before(self, topic: str, count: int, due_ms: int) -> None:
        """Raise BridgeError if the broker did not take all of them before they are due."""
        self._send(topic, count, due_ms)
        if now_ms() >= due_ms:
            raise BridgeError(f"RocketMQ took {count:,} messages after they were due: give fewer --messages")

    def _send(self, topic: str, count: int, *times: int) -> None:
        if failed := self._ask("send", topic, count, self._sizes.body_bytes, *times):
            raise BridgeError(f"RocketMQ refused {failed:,} messages: see the logs of its client")

    def _receive(self, topic: str, count: int) -> list[Delivery]:
        self._ask("receive", topic, count, samples := self._folder / "samples")
        rows = np.fromfile(samples, ">i8").reshape(-1, 3).tolist()
        return [Delivery(topic, b"rocketmq/0/%d" % number, due, stored) for number, due, stored in rows]

    def _ask(self, *words: object) -> int:
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(" ".join(map(str, words)) + "\n")
        self._client.stdin.flush()
        for line in self._client.stdout:
            if line.startswith("= "):
                return int(line.removeprefix("= "))
        raise BridgeError(f"RocketMQ's client has ended: see {self._folder / 'client.log'}")


def _spans(count: int) -> list[OffsetRange]:
    return [OffsetRange("rocketmq", 0, 0, count)]


def run(folder: Path, arguments: str) -> int:
    words, sizes, seconds = json.loads(arguments)
    load = Load(*words)
    own_network()
    with running(folder.resolve(), load) as servers:
        peer = Peer(servers, folder, Sizes(**sizes))
        peer.warm_up(seconds)
        found: list[Measured] = [
            {f"steady.{per_s}": peer.steady(number, per_s, seconds) for per_s in load.rates}
            or {"burst": peer.burst(number)}
            for number in range(load.rounds)
        ]
    print(json.dumps([flat(one) for one in found]))
    return 0


if __name__ == "__main__":
    sys.exit(command.run("peer", lambda: run(Path(sys.argv[1]), sys.argv[2])))
