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
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Self

from bridge.dev.embedded_kafka import HOST, EmbeddedKafka, free_port

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.02
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_COPIES = {
    **{f"{name}.replication.factor": "3" for name in ("default", "offsets.topic", "transaction.state.log")},
    "min.insync.replicas": "2",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class Proxy:
    """Forwards one port to another."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port, self.target_port = port, target_port
        self.delay_ms, self.is_cut = 0, False

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
    with asyncio.Runner() as runner, contextlib.ExitStack() as ends:  # the runner's end cancels all connections
        loop = runner.get_loop()
        thread = threading.Thread(target=loop.run_forever, name="proxies", daemon=True)
        thread.start()
        ends.callback(thread.join, 60)
        ends.callback(loop.call_soon_threadsafe, loop.stop)
        for proxy in proxies:
            server = asyncio.run_coroutine_threadsafe(proxy.serve(), loop).result(60)
            ends.callback(loop.call_soon_threadsafe, server.close)
        yield


class ThreeBrokers:
    """A cluster that runs inside the `with`."""

    def __init__(self, folder: Path, *, links: int = 0) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self.links: list[list[Proxy]] = [[] for _ in range(links)]
        """For each link, the proxies of the three brokers."""
        controller_port = free_port()
        self.nodes = [self._node(node_id, controller_port) for node_id in (1, 2, 3)]

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
                node.start()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _node(self, node_id: int, controller_port: int) -> EmbeddedKafka:
        advertised = {"PLAINTEXT": free_port()}
        bound = advertised | ({"CONTROLLER": controller_port} if node_id == 1 else {})
        for number, proxies in enumerate(self.links):
            proxies.append(proxy := Proxy(free_port(), free_port()))
            bound[f"LINK{number}"], advertised[f"LINK{number}"] = proxy.target_port, proxy.port
        properties = {
            "node.id": str(node_id),
            "process.roles": "broker,controller" if node_id == 1 else "broker",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listeners": _addresses(bound),
            "advertised.listeners": _addresses(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ("CONTROLLER", *advertised)),
        }
        folder, port = self._folder / str(node_id), advertised["PLAINTEXT"]
        return EmbeddedKafka(folder, port=port, heap_mb=256, properties=_COPIES | properties)


def _addresses(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
