"""A TCP proxy between clients and one broker that can be slow or cut. Connections stay open meanwhile, bytes wait.

client -> proxy.port -> proxy.target_port        proxy.delay_ms = 200        proxy.is_cut = True

After a cut the bytes arrive, as TCP would send them again. All proxies run in one thread; any thread may set the
attributes.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from bridge.dev.embedded_kafka import HOST

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.02
T = TypeVar("T")
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
        await self._until_mended()
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
                await self._until_mended()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _until_mended(self) -> None:
        while self.is_cut:
            await asyncio.sleep(_LOOK_S)


class Proxies:
    """Runs between `start` and `stop`."""

    def __init__(self) -> None:
        self._proxies: list[Proxy] = []
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def add(self, proxy: Proxy) -> None:
        """Add a proxy; call before `start`."""
        self._proxies.append(proxy)

    def start(self) -> None:
        self._thread.start()
        self._servers = [self._run(proxy.serve()) for proxy in self._proxies]

    def stop(self) -> None:
        if self._thread.is_alive():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
