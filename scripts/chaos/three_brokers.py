"""Three embedded brokers: after a kill, another one becomes leader. Links to them can be slow or cut.

node 1   controller and broker, never killed          node 2, 3   brokers
three copies of everything, two of which have to be in step
link n   a listener of each broker, which the clients of this link reach through a proxy

    client -> proxy.port -> proxy.target_port        proxy.delay_ms = 200        proxy.is_cut = True

Connections stay open during a cut, and afterwards the bytes arrive, as TCP would send them again. All proxies run in
one thread; any thread may set the attributes.
"""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Coroutine, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

from bridge.dev.embedded_kafka import HOST, PROPERTIES, EmbeddedKafka, free_port
from bridge.dev.kafka_jars import DEFAULT_CACHE

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.02
T = TypeVar("T")
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_PROTOCOLS = "listener.security.protocol.map"
_FACTORS = ("default", "offsets.topic", "transaction.state.log")
_COPIES = {
    **{f"{name}.replication.factor": "3" for name in _FACTORS},
    "min.insync.replicas": "2",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class Proxy:
    """Forwards one port to another."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self.target_port = target_port
        self.delay_ms = 0
        self.is_cut = False

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._join, HOST, self.port)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._until_joined()
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:  # the broker is down: the client sees a connection that ends
            writer.close()
            return
        try:
            await self._forward((reader, writer), (far_reader, far_writer))
        finally:
            writer.close()
            far_writer.close()

    async def _forward(self, client: Link, broker: Link) -> None:
        """Forward both directions until both ends are closed. Tests override it."""
        await asyncio.gather(self._pump(client[0], broker[1]), self._pump(broker[0], client[1]))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                await asyncio.sleep(self.delay_ms / 1000)
                await self._until_joined()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _until_joined(self) -> None:
        while self.is_cut:
            await asyncio.sleep(_LOOK_S)


@contextlib.contextmanager
def running(proxies: Iterable[Proxy]) -> Iterator[None]:
    """Run the proxies in a thread."""
    loop, servers = asyncio.new_event_loop(), list[asyncio.Server]()
    thread = threading.Thread(target=loop.run_forever, name="proxies", daemon=True)

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def end() -> None:
        for server in servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread.start()
    try:
        servers += [run(proxy.serve()) for proxy in proxies]
        yield
    finally:
        run(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


class ThreeBrokers:
    """A cluster that runs inside the `with`."""

    def __init__(self, folder: Path, *, links: int = 0, jars_cache: Path = DEFAULT_CACHE) -> None:
        self._folder, self._jars_cache = folder, jars_cache
        shutil.rmtree(folder, ignore_errors=True)
        ports = self._free_ports()
        self.links: list[list[Proxy]] = [[] for _ in range(links)]
        """For each link, the proxies of the three brokers."""
        controller_port = next(ports)
        self._voters = {"controller.quorum.voters": f"1@{HOST}:{controller_port}"}
        controller = {"listeners": f",CONTROLLER://{HOST}:{controller_port}"}
        self.nodes = [self._node(1, ports, controller)]
        for node_id in (2, 3):
            self.nodes.append(self._node(node_id, ports, {"process.roles": "broker", "node.id": str(node_id)}))

    def bootstrap_of(self, link: int) -> str:
        """Return the addresses of all brokers through the proxies of a link."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.links[link])

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def node(self, node_id: int) -> EmbeddedKafka:
        return self.nodes[node_id - 1]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            ends.enter_context(running(chain.from_iterable(self.links)))
            for node in self.nodes:
                ends.callback(node.kill)
                if node is not self.nodes[0]:
                    self._join_cluster(node)
                node.start()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @staticmethod
    def _free_ports() -> Iterator[int]:
        taken = set[int]()
        while True:
            taken.add(port := free_port(taken=taken))
            yield port

    def _node(self, node_id: int, ports: Iterator[int], properties: dict[str, str]) -> EmbeddedKafka:
        port = next(ports)
        listeners = advertised = f"PLAINTEXT://{HOST}:{port}"
        protocols = PROPERTIES[_PROTOCOLS]
        for number, proxies in enumerate(self.links):
            proxy = Proxy(next(ports), next(ports))
            proxies.append(proxy)
            listeners += f",LINK{number}://{HOST}:{proxy.target_port}"
            advertised += f",LINK{number}://{HOST}:{proxy.port}"
            protocols += f",LINK{number}:PLAINTEXT"
        own = _COPIES | self._voters | properties
        own |= {"listeners": listeners + properties.get("listeners", ""), "advertised.listeners": advertised}
        own[_PROTOCOLS] = protocols
        folder = self._folder / str(node_id)
        return EmbeddedKafka(folder, port=port, heap_mb=256, properties=own, jars_cache=self._jars_cache)

    def _join_cluster(self, node: EmbeddedKafka) -> None:
        """Format the node's folder for the cluster of node 1."""
        lines = (self.nodes[0].folder / "data" / "meta.properties").read_text().splitlines()
        cluster_id = next(line for line in lines if line.startswith("cluster.id="))
        (data := node.folder / "data").mkdir(parents=True)
        (data / "meta.properties").write_text(f"version=1\n{cluster_id}\nnode.id={self.nodes.index(node) + 1}\n")
