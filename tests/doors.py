"""A port in front of a server that can be closed or frozen."""

from __future__ import annotations

import asyncio


class Door:
    """A TCP port in front of a server: open, closed (as if stopped) or silent (as if frozen)."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._streams: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._answering = asyncio.Event()
        self.port = 0

    async def open(self) -> None:
        self._answering.set()
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def freeze(self) -> None:
        self._answering.clear()

    def thaw(self) -> None:
        self._answering.set()

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for stream in list(self._streams):
            stream.transport.abort()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(*self._target)
        for reader, writer in ((near, forth), (far, back)):
            self._streams.add(writer)
            pump = asyncio.create_task(self._pump(reader, writer))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._answering.wait()
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            self._streams.discard(writer)
            writer.close()
