"""RocketMQ's name server, broker and a client in a network of their own, started and stopped by us.

    own_network()                                   this process and what it starts: a loopback of its own, nothing else
    with RocketMQ(folder, ZGC, DEFAULT_TICK_MS) as peer, Client(peer) as client:
        client.ask("create orders 4")

The broker's HA port binds every address and has no setting for that, hence the network. All else is RocketMQ's
default, except for the settings in BROKER.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Self

from bridge.dev.child_process import ChildProcess
from bridge.dev.embedded_kafka import SHORT_PAUSES, find_java
from bridge.errors import BridgeError
from scripts.bench.rocketmq.jars import ensure_jars
from scripts.bench.servers import G1_PREFIX, ZGC
from scripts.common import processes

NAME_SERVER = "127.0.0.1:9876"
CLIENT = Path(__file__).with_name("RocketmqClient.java")
_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
DEFAULT_TICK_MS, FINE_TICK_MS = 1000, 100
"""A burst leaves faster with the default; lateness is half of a tick."""
COLLECTORS = {
    ZGC: SHORT_PAUSES,
    G1_PREFIX: (
        *("-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25"),
        *("-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0", "-XX:+AlwaysPreTouch"),
    ),
}
"""The broker's Java options; G1's are those of RocketMQ's own script."""

BROKER = """\
brokerIP1 = 127.0.0.1
bindAddress = 127.0.0.1
namesrvAddr = {name_server}
timerWheelEnable = true
timerPrecisionMs = {tick_ms}
maxTransferCountOnMessageInMemory = 256
storePathRootDir = {store}
"""
LOGBACK = """\
<configuration>
  <appender name="console" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <encoder class="org.apache.rocketmq.logging.ch.qos.logback.classic.encoder.PatternLayoutEncoder">
      <pattern>%d %p %m%n</pattern>
    </encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
EXPORTED = ("jdk.internal.ref", "sun.nio.ch", "jdk.internal.misc")
ACCESS = [
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
    *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in EXPORTED),
]


def own_network() -> None:
    """Enter a network namespace. Raises BridgeError if that fails. Call it before any thread starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise BridgeError("RocketMQ needs a network namespace of its own, which only Linux has")
    if libc.unshare(_CLONE_NEWNET):
        why = os.strerror(ctypes.get_errno())
        raise BridgeError(f"RocketMQ needs a network namespace of its own, which root may make: unshare: {why}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


class RocketMQ:
    """A name server and a broker on loopback."""

    def __init__(self, folder: Path, collector: str, tick_ms: int) -> None:
        self.folder = folder.resolve()
        self.java = find_java()
        self.jars = ensure_jars(self.java).resolve()
        self._collector, self._tick_ms = COLLECTORS[collector], tick_ms
        self._name_server: ChildProcess | None = None
        self._broker: ChildProcess | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "logback.xml").write_text(LOGBACK)
        properties = BROKER.format(name_server=NAME_SERVER, tick_ms=self._tick_ms, store=self.folder / "store")
        (self.folder / "broker.conf").write_text(properties)
        try:
            self._name_server = self._start(
                "namesrv", ["-Xmx256m"], ["org.apache.rocketmq.namesrv.NamesrvStartup"], b"Name Server boot success"
            )
            main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.folder / "broker.conf")]
            self._broker = self._start("broker", [*self._collector, "-Xms1g", "-Xmx2g"], main, b"boot success")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def usage(self) -> processes.Usage:
        """Return the broker's usage."""
        assert self._broker is not None
        assert self._broker.pid is not None
        return processes.usage(self._broker.pid)

    def jvm_options(self) -> list[str]:
        """Return the options of all three JVMs."""
        return [
            *ACCESS,
            "-Djava.net.preferIPv4Stack=true",
            f"-Drmq.logback.configurationFile={self.folder / 'logback.xml'}",
            f"-Drocketmq.home.dir={self.folder}",
            f"-Duser.home={self.folder}",
        ]

    def _start(self, name: str, heap: list[str], main: list[str], ready_line: bytes) -> ChildProcess:
        command = [self.java, *heap, *self.jvm_options(), "-cp", f"{self.jars}/*", *main]
        place = self.folder / name
        child = ChildProcess(command, place, ready_line)
        child.ready_or_ended.wait(60)
        if not child.ready:
            child.kill()
            raise BridgeError(f"RocketMQ's {name} did not start: see {place / 'logs' / 'console.log'}")
        return child

    def _end(self) -> None:
        """Kill both: their data is not needed, and a clean stop takes 13 s."""
        for child in (self._broker, self._name_server):
            if child is not None:
                child.kill()


class Client:
    """Our Java client: a process that answers each line with a line."""

    def __init__(self, peer: RocketMQ) -> None:
        self._peer = peer
        self._log = peer.folder / "client.log"

    def __enter__(self) -> Self:
        peer, classes = self._peer, self._compiled()
        command = [peer.java, "-Xmx512m", *peer.jvm_options(), "-cp", f"{classes}:{peer.jars}/*", CLIENT.stem]
        self._process = processes.start_piped([*command, NAME_SERVER], stdin=subprocess.PIPE, log=self._log)
        try:
            self._read("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, *words: object) -> list[int]:
        """Send a line and return the numbers of the answer. Raises BridgeError if the client has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return [int(word) for word in self._read("= ").removeprefix("= ").split()]

    def _read(self, begin: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begin):
                return line
        raise BridgeError(f"RocketMQ's client has ended: see {self._log}")

    def _compiled(self) -> Path:
        """Compile the client by ecj, which needs no JDK."""
        classes = self._peer.folder / "classes"
        jars = sorted(self._peer.jars.glob("*.jar"))
        compiler = next(jar for jar in jars if jar.name.startswith("ecj-"))
        command = [self._peer.java, "-jar", str(compiler), "-17", "-nowarn", "-d", str(classes)]
        command += ["-cp", ":".join(map(str, jars)), str(CLIENT)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BridgeError(f"{CLIENT.name} could not be compiled:\n{done.stdout}{done.stderr}")
        return classes
