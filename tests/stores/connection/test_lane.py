"""The pipelined connection: whatever the network does, each call gets its answer or an error."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from faults.proxy import Proxy
from hypothesis import given, settings, strategies as st
from redis import exceptions
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet.base.errors import NotBoundError
from nonet.stores.connection.lane import Lane
from nonet.stores.connection.redis import LaneClient, connect

PREFIX = "{test}:"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[LaneClient]:
    made = connect(redis_url, PREFIX)
    yield made
    await made.aclose()


async def _slicing(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cuts: list[int]
) -> None:
    """Pass bytes on in pieces of these lengths, over and over."""
    pieces = iter(cuts)
    while data := await reader.read(65536):
        while data:
            length = next(pieces, None)
            if length is None:
                pieces = iter(cuts)
                continue
            writer.write(data[:length])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[length:]
    writer.close()


@asynccontextmanager
async def answering(
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[LaneClient]:
    """A client of a server that treats its connections like this."""
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX)
    yield made
    await made.aclose()
    server.close()


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    payloads=st.lists(st.binary(max_size=120), min_size=1, max_size=30),
    pauses=st.sets(st.integers(0, 29)),
)
def test_each_caller_gets_its_own_answer(
    redis_server: RedisServer, cuts: list[int], payloads: list[bytes], pauses: set[int]
) -> None:
    """However commands are spread over steps, and replies cut into pieces."""

    async def check() -> None:
        ended = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", redis_server.port)
            ways = (_slicing(reader, there[1], [65536]), _slicing(there[0], writer, cuts))
            await asyncio.gather(*ways)
            ended.set()

        async with answering(accept) as made:
            answers = []
            for number, payload in enumerate(payloads):
                answers.append(made.lane.call("ECHO", payload))
                answers.append(made.lane.call("LRANGE", "none", number, -1))
                if number in pauses:
                    await asyncio.sleep(0)
            found = await asyncio.gather(*answers)
            await made.aclose()
            await ended.wait()
        assert found == [part for payload in payloads for part in (payload, [])]

    asyncio.run(check())


async def test_a_wrong_command_fails_alone(client: LaneClient) -> None:
    """Its caller gets the exception of redis-py."""
    calls = [client.lane.call(*each) for each in (("PING",), ("NO", "SUCH"), ("TIME",))]
    pong, wrong, time = await asyncio.gather(*calls, return_exceptions=True)
    assert pong == b"PONG" and len(time) == 2
    assert isinstance(wrong, exceptions.ResponseError) and "unknown command" in str(wrong)


async def test_a_cancelled_call_disturbs_no_other(client: LaneClient) -> None:
    """It is carried out, and its answer is dropped."""
    await client.lane.call("PING")
    calls = [client.lane.call("INCR", "n") for _ in range(5)]
    calls[1].cancel()
    calls[4].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert found[::2][:2] == [1, 3] and found[3] == 4
    assert await client.lane.call("INCR", "n") == 6


async def test_calls_beyond_the_limit_wait_in_order(client: LaneClient) -> None:
    """Calls, and bytes; none is lost."""
    await client.lane.call("PING")
    calls = [client.lane.call("APPEND", "t", b"x") for _ in range(1000)]
    assert await asyncio.gather(*calls) == list(range(1, 1001))
    big = [client.lane.call("SET", "big", bytes(600_000 + n)) for n in range(6)]
    length = client.lane.call("STRLEN", "big")  # there is room for it, but not its turn
    assert await asyncio.gather(*big) == [b"OK"] * 6
    assert await length == 600_005


@pytest.mark.parametrize(("length", "most"), [(1, 200), (300_000, 3), (2_000_000, 1)])
async def test_calls_in_flight_are_limited(length: int, most: int) -> None:
    """To 200 calls or 1 MiB; a larger one goes alone."""
    seen = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while data := await reader.read(65536):
            seen += data.count(b"SET\r\n")
            writer.write(b"+OK\r\n" * data.count(b"INFO"))
        writer.close()

    async with answering(accept) as made:
        lane = Lane(made.connection_pool.make_connection, WAIT_SECONDS)
        calls = [lane.call("SET", "key", bytes(length)) for _ in range(most + 5)]
        await until(lambda: seen >= most, "what may be under way has arrived")
        late = [lane.call("SET", "key", bytes(length)) for _ in range(3)]
        await lane.aclose(0.2)
        assert seen == most
        assert all(call.exception() for call in calls + late)


async def test_calls_of_one_step_go_out_together(
    client: LaneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first at once, all others in one write."""
    await client.lane.call("PING")
    sent = 0
    send = socket.socket.send

    def counted(self: socket.socket, data: bytes) -> int:
        nonlocal sent
        sent += b"PING" in data
        return send(self, data)

    monkeypatch.setattr(socket.socket, "send", counted)
    calls = [client.lane.call("PING") for _ in range(100)]
    assert sent == 1
    assert await asyncio.gather(*calls) == [b"PONG"] * 100
    assert sent == 2


@pytest.mark.parametrize(
    ("fault", "number", "seconds", "error"),
    [
        ("silence", 300, 2, exceptions.TimeoutError),
        ("reset_all", 3, WAIT_SECONDS, exceptions.ConnectionError),
        ("half_close", 3, WAIT_SECONDS, exceptions.ConnectionError),
    ],
)
async def test_a_fault_fails_all_calls_in_flight(
    redis_server: RedisServer, fault: str, number: int, seconds: float, error: type[Exception]
) -> None:
    """A silence for the time-out, or a lost connection; the next call connects again."""
    with Proxy(redis_server.port) as proxy:
        made = connect(proxy.url, PREFIX)
        lane = Lane(made.connection_pool.make_connection, seconds)
        assert await lane.call("PING") == b"PONG"
        proxy.black_hole()
        calls = [lane.call("PING") for _ in range(number)]
        if fault != "silence":
            await asyncio.to_thread(getattr(proxy, fault))
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in lost} == {error}
        proxy.restore()
        assert await lane.call("PING") == b"PONG"
        await lane.aclose()
        await made.aclose()


async def test_a_broken_reply_fails_its_caller(redis_server: RedisServer) -> None:
    """Nothing of it reaches the next one."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"+OK\r\n+OK\r\n$10\r\nhalf of")
            writer.close()

    async with answering(accept) as made:
        for _ in range(2):
            with pytest.raises(exceptions.ConnectionError):
                await made.lane.call("GET", "key")


async def test_an_unexpected_reply_ends_the_connection(redis_server: RedisServer) -> None:
    """A server that answers more than it was asked cannot be trusted."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"GET" not in (data := await reader.read(65536)):
            writer.write(b"+OK\r\n" * data.count(b"INFO"))
        writer.write(b"+one\r\n+two\r\n")
        writer.close()

    async with answering(accept) as made:
        assert await made.lane.call("GET", "key") == b"one"
        assert made.lane._wire is None


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_loop_has_a_connection_of_its_own(redis_url: str) -> None:
    """A client works in the next loop, whatever it left in the first."""
    made = connect(redis_url, PREFIX)

    async def ping(*, closes: bool) -> bytes:
        answer: bytes = await asyncio.wait_for(made.lane.call("PING"), WAIT_SECONDS)
        if closes:
            await made.aclose()
        return answer

    answers = [asyncio.run(ping(closes=closes)) for closes in (False, False, True)]
    assert answers == [b"PONG"] * 3
    gc.collect()  # what the first loops left is noticed here, where it is expected


async def test_closing_waits_for_waiting_calls(client: LaneClient) -> None:
    """No connection is opened anew afterwards."""
    await client.lane.call("PING")
    calls = [client.lane.call("INCR", "n") for _ in range(1000)]
    calls[-1].cancel()
    await client.aclose()
    assert [each.result() for each in calls[:-1]] == list(range(1, 1000))
    assert await client.get("n") == b"999", "a call that was cancelled before its turn is not sent"
    assert client.lane._opening is None and client.lane._wire is None


@pytest.mark.parametrize("patience", [0.0, WAIT_SECONDS])
async def test_closing_at_once_ends_every_call(redis_url: str, patience: float) -> None:
    """A call without a connection fails, unless there is time to open one."""
    made = connect(redis_url, PREFIX)
    call = made.lane.call("PING")
    await made.lane.aclose(patience)
    assert call.done()
    assert (call.exception() is None) == bool(patience)
    assert await asyncio.wait_for(made.lane.call("PING"), WAIT_SECONDS) == b"PONG"
    await made.aclose()


async def test_closing_fails_calls_of_a_frozen_server(redis_server: RedisServer) -> None:
    """Sent or not; no connection is opened for them."""
    with Proxy(redis_server.port) as proxy:
        made = connect(proxy.url, PREFIX)
        lane = made.lane
        await lane.call("PING")
        proxy.black_hole()
        calls = [lane.call("PING") for _ in range(300)]
        await lane.aclose(0.1)
        assert {type(call.exception()) for call in calls} == {exceptions.ConnectionError}
        assert lane._opening is None and lane._wire is None
        proxy.restore()
        await made.aclose()


async def test_each_caller_gets_an_error_of_its_own(client: LaneClient) -> None:
    """A raise adds to the traceback of an error, so that callers share none."""
    await client.lane.call("PING")
    calls = [client.lane.call("BLPOP", "none", 60) for _ in range(250)]
    client.lane.reset()
    await client.lane.aclose()
    errors = [call.exception() for call in calls]
    assert {type(error) for error in errors} == {exceptions.ConnectionError}
    assert len({id(error) for error in errors}) == len(calls)


async def test_a_second_loop_is_refused_meanwhile(client: LaneClient) -> None:
    """The calls of the first loop are answered."""
    calls = [client.lane.call("INCR", "n") for _ in range(300)]

    async def elsewhere() -> None:
        await client.lane.call("INCR", "n")

    with pytest.raises(NotBoundError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert await asyncio.gather(*calls) == list(range(1, 301))


async def test_a_slow_line_is_not_silence(redis_server: RedisServer) -> None:
    """No call is given up while a large command is on its way."""
    passed = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", redis_server.port)
        back = asyncio.create_task(_slicing(there[0], writer, [65536]))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(10_000):
                there[1].write(data)
                await asyncio.sleep(0.2)  # the fault itself: 50 kB/s
        there[1].close()
        await back
        passed.set()

    async with answering(accept) as made:
        lane = Lane(made.connection_pool.make_connection, 2)
        assert await lane.call("SET", "long", bytes(130_000)) == b"OK"
        await lane.aclose()
        await passed.wait()
