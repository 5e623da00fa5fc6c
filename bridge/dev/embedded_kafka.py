"""An embedded single-node Kafka (KRaft) for development, demo, bench and tests. Never for data that matters.

    <folder>/server.properties   written at each start
    <folder>/lock                held while it runs: two brokers on one folder would wedge the first
    <folder>/data/               survives a restart and a kill
    <folder>/logs/server.log     the broker's log        console.log: output of the JVM

    with EmbeddedKafka(Path(".run/kafka")) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap_servers})

It always ends with us. `stop()` sends SIGTERM, then SIGKILL. Ctrl-C reaches only us, because the broker has a session
of its own, and `with` then stops it. If we are killed, the kernel kills it (Linux: PR_SET_PDEATHSIG).
"""

import atexit
import functools
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from bridge.child_process import ChildProcess
from bridge.config.data_directory import take_lock
from bridge.dev.kafka_jars import DEFAULT_CACHE, JARS
from bridge.errors import BridgeError
from schemas.maven_jars import archive_options, ensure

HOST = "127.0.0.1"
READY_LINE = b"Kafka Server started"
MIN_JAVA = 17
CLUSTER_ID = "dGltZXItYnJpZGdlLWRldg"  # one for all, so that several nodes are a cluster

# Below the ports that the system hands out to outgoing connections: a client that retries against a stopped broker
# inside that range can end up connected to itself, and then the broker's port is taken.
PORTS = range(20_000, 30_000)

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node keeps one copy.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # The internal topics are created at the first use; 50 partitions each would take seconds.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    # A test should not wait for members that never come, nor for the abort of a dead producer's transaction.
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A misspelt topic is an error, as on a production broker.
    "auto.create.topics.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),  # 128 MB by default, a quarter of our heap
}

G1 = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
SHORT_PAUSES = ("-XX:+UseZGC", "-XX:+AlwaysPreTouch")
"""For latency measurements: a young collection of G1 paused a broker for 100 ms. -Xms is touched at start."""

LOG4J2 = """
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.ready.type = Console
appender.ready.name = ready
appender.ready.layout.type = PatternLayout
appender.ready.layout.pattern = %m%n
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.ready.name = kafka.server.KafkaRaftServer
logger.ready.level = info
logger.ready.appenderRef.ready.ref = ready
"""


@functools.cache
def _candidates() -> Iterator[int]:
    return itertools.cycle(random.SystemRandom().sample(PORTS, len(PORTS)))


def free_port() -> int:
    """Return a free port, another one at each call; see `PORTS` for why the system does not choose it."""
    for port in itertools.islice(_candidates(), len(PORTS)):
        if _bindable(port):
            return port
    raise BridgeError(f"no free port between {PORTS.start} and {PORTS.stop} on {HOST}")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Kafka does: a stopped broker does not block it
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@dataclass(eq=False)
class EmbeddedKafka:
    """A broker that can be started, stopped, killed and started again: same folder, same port, same data."""

    folder: Path
    _: KW_ONLY
    port: int = field(default_factory=free_port)
    heap_mb: int = 512
    java_options: Sequence[str] = G1
    properties: Mapping[str, str] = field(default_factory=dict)
    jars_cache: Path = DEFAULT_CACHE

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self._controller_port = free_port()
        self._broker: ChildProcess | None = None
        self._lock: int | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id, None while it does not run."""
        return self._broker.pid if self._broker is not None and self._broker.alive else None

    def start(self, *, timeout_s: float = 180.0) -> None:
        """Start the broker; return when it serves clients. After an error no process is left."""
        if self.pid is not None:
            return
        self._clear()
        java = find_java()
        jars = ensure(JARS, self.jars_cache, java=java).resolve()
        self._refuse_taken_ports()
        self._lock_folder()
        try:
            self._write_files()
            self._format(java, jars, timeout_s)
            command = [*self._jvm(java, jars), "kafka.Kafka", str(self.folder / "server.properties")]
            self._broker = broker = ChildProcess(command, self.folder, READY_LINE)
            atexit.register(self.kill)
            if not broker.ready_or_ended.wait(timeout_s):
                raise BridgeError(f"Kafka was not ready within {timeout_s:.0f} s.\n{self._log_tails()}")
            if not broker.ready:
                raise BridgeError(f"Kafka ended while it started.\n{self._log_tails()}")
        except BaseException:
            self.kill()
            raise

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """Send SIGTERM, and SIGKILL after `timeout_s`."""
        if self._broker is not None:
            self._broker.end(timeout_s)
            self._clear()

    def kill(self) -> None:
        """Send SIGKILL, like a power cut; the data stay for the next start."""
        if self._broker is not None:
            self._broker.kill()
        self._clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _clear(self) -> None:
        self._broker = None
        atexit.unregister(self.kill)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _log_tails(self) -> str:
        paths = [path for name in ("server.log", "console.log") if (path := self.folder / "logs" / name).exists()]
        ends = {path: "\n".join(path.read_text(errors="replace").splitlines()[-15:]) for path in paths}
        return "\n".join(f"--- the end of {path}\n{end}" for path, end in ends.items())

    def _refuse_taken_ports(self) -> None:
        if not _bindable(self.port):
            raise BridgeError(f"port {self.port} on {HOST} is in use: stop what listens there, or take another")
        if not _bindable(self._controller_port):
            self._controller_port = free_port()

    def _lock_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.folder / "lock")
        if self._lock is None:
            raise BridgeError(f"{self.folder}: another Kafka runs on it: stop it, or give another folder")

    def _write_files(self) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        own, controller = f"{HOST}:{self.port}", f"{HOST}:{self._controller_port}"
        places = {
            "listeners": f"PLAINTEXT://{own},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{own}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.folder / "data"),
        }
        lines = [f"{name}={value}\n" for name, value in {**PROPERTIES, **places, **self.properties}.items()]
        (self.folder / "server.properties").write_text("".join(lines))
        (self.folder / "log4j2.properties").write_text(LOG4J2.format(log=self.folder / "logs" / "server.log"))

    def _format(self, java: str, jars: Path, timeout_s: float) -> None:
        """Write what Kafka needs to start, unless the folder has it."""
        if (self.folder / "data" / "meta.properties").exists():
            return
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER_ID}"]
        tool += ["--config", str(self.folder / "server.properties")]
        command = [*self._jvm(java, jars, writes=False), "-XX:TieredStopAtLevel=1", *tool]
        try:
            done = _run(command, timeout_s)
        except subprocess.TimeoutExpired:
            raise BridgeError(f"{self.folder} was not formatted for Kafka within {timeout_s:.0f} s") from None
        if done.returncode != 0:
            raise BridgeError(f"{self.folder} could not be formatted for Kafka:\n{done.stdout}{done.stderr}")

    def _jvm(self, java: str, jars: Path, *, writes: bool = True) -> list[str]:
        """Return the command up to its class. writes: as of `archive_options`."""
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        options = (f"-Xmx{self.heap_mb}m", *self.java_options, "-XX:+ExitOnOutOfMemoryError", log4j)
        options += archive_options(jars, str(jars), java, writes=writes)
        return [java, *options, "-Djava.awt.headless=true", "-Djava.net.preferIPv4Stack=true", "-cp", f"{jars}/*"]


@functools.cache
def find_java() -> str:
    """Return java from JAVA_HOME, else from PATH. Raises BridgeError if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = f"Kafka needs Java {MIN_JAVA} or later; on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
    if java is None:
        raise BridgeError(f"no java was found. {remedy}")
    try:
        ran = _run([java, "-version"])
    except OSError as error:
        raise BridgeError(f"{java} does not run: {error.strerror} (JAVA_HOME={home or ''}). {remedy}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)  # "17.0.15", and of Java 8: "1.8.0_392"
    if version is None or int(version[1]) < MIN_JAVA:
        raise BridgeError(f"{java} is {ran.stderr.splitlines()[:1] or 'of unknown version'}. {remedy}")
    return java


def _run(command: list[str], timeout_s: float | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout_s
    )
