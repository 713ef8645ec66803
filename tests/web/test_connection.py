"""Connections whose clients do not do their part, as hostile ones and broken networks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from httpx import AsyncClient
from ports import free_port
from starlette.types import Receive, Scope, Send
from waits import WAIT_SECONDS, until
from web.conftest import Fixed, principal, serving

from nonet import Nonet
from nonet.config.web_settings import WebSettings
from nonet.daemon.service import Stop
from nonet.web import connection
from nonet.web.app import create_app
from nonet.web.server import Server

HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HALF = {
    "silent": b"",
    "half a line": HEAD[:10],
    "half a head": HEAD,
    "no body": HEAD + b"Content-Length: 100\r\n\r\n",
    "half a body": HEAD + b"Content-Length: 100\r\n\r\nname=x",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nna",
    "a body too long": HEAD + b"Content-Length: 99999999\r\n\r\nname=x",
    "half of the next": HEAD.replace(b"POST", b"GET") + b"\r\n" + HEAD,
}


@pytest.fixture
async def address(nonet: Nonet) -> AsyncIterator[str]:
    """The address of a dashboard whose every request is an admin's."""
    settings = WebSettings.plain(port=free_port())
    async with serving(create_app(nonet, settings, Fixed(principal())), settings) as url:
        yield url


Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def sent(address: str, data: bytes) -> AsyncIterator[Opened]:
    """A connection on which these bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    try:
        writer.write(data)
        await writer.drain()
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_over(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed a connection."""
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            while await reader.read(2**16):
                pass
        except ConnectionError:
            pass


@pytest.fixture
def short() -> Iterator[None]:
    """Short times for the part of a client."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HEAD_SECONDS", "BODY_SECONDS", "READ_SECONDS"):
            patched.setattr(connection, name, 0.2)
        yield


@pytest.mark.parametrize("half", HALF)
@pytest.mark.usefixtures("short")
async def test_half_a_request_ends(address: str, half: str) -> None:
    """The server closes the connection, also if the rest comes a byte at a time."""
    async with sent(address, HALF[half]) as (reader, writer):
        ending = asyncio.create_task(is_over(reader))
        while not ending.done():
            if half != "silent":
                writer.write(b"x")
            await asyncio.wait({ending}, timeout=0.05)
        await ending


@pytest.mark.usefixtures("short")
async def test_an_answer_that_is_not_read_ends() -> None:
    """A client that reads nothing of a long answer loses its connection."""
    written = asyncio.Event()

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
        await send({"type": "http.response.body"})
        written.set()

    settings, stop = WebSettings.plain(port=free_port()), Stop()
    server = Server(long, settings, [])
    running = asyncio.create_task(server.run(stop))
    await until(lambda: server.is_ready, "it serves")
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with sent(f":{settings.port}", request) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(WAIT_SECONDS):
            await written.wait()  # uvicorn drops what is sent to a connection that is lost
    stop.request()
    await running


async def test_slow_clients_keep_no_one_out(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many connections the one that has waited longest for its client is cut off."""
    monkeypatch.setattr(connection, "_MOST_CONNECTIONS", 5)
    async with AsyncClient(base_url=address, timeout=WAIT_SECONDS) as client:
        opened = [sent(address, data) for data in [*HALF.values()][:5] * 4]
        readers = [(await one.__aenter__())[0] for one in opened]
        assert (await client.get("/api/v1/overview")).status_code == 200
        await asyncio.gather(*map(is_over, readers[:-5]))
        for one in opened:
            await one.__aexit__(None, None, None)
