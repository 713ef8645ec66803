"""The pipelined connection: whatever the network does, each call gets its answer or an error."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator

import pytest
from faults.proxy import Proxy
from hypothesis import given, settings, strategies as st
from redis import exceptions
from servers import RedisServer
from waits import until

from nonet.base.errors import NotBoundError
from nonet.stores.connection.lane import Lane
from nonet.stores.connection.redis import LaneClient, blocking_pop, connect, connect_blocking

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


@settings(max_examples=40, deadline=None)
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

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        made = connect(f"redis://127.0.0.1:{port}/0", PREFIX)
        answers = []
        for number, payload in enumerate(payloads):
            answers.append(made.lane.call("ECHO", payload))
            answers.append(made.lane.call("LRANGE", "none", number, -1))
            if number in pauses:
                await asyncio.sleep(0)
        found = await asyncio.gather(*answers)
        await made.aclose()
        await ended.wait()
        server.close()
        assert found == [part for payload in payloads for part in (payload, [])]

    asyncio.run(check())


async def test_a_wrong_command_fails_alone(client: LaneClient) -> None:
    """An error reply is raised where it belongs, as redis-py's exception."""
    calls = [client.lane.call(*each) for each in (("PING",), ("NO", "SUCH"), ("TIME",))]
    pong, wrong, time = await asyncio.gather(*calls, return_exceptions=True)
    assert pong == b"PONG" and len(time) == 2
    assert isinstance(wrong, exceptions.ResponseError) and "unknown command" in str(wrong)


async def test_who_gives_up_disturbs_nobody(client: LaneClient) -> None:
    """A cancelled call is carried out, and its answer is nobody else's."""
    await client.lane.call("PING")
    calls = [client.lane.call("INCR", "n") for _ in range(5)]
    calls[1].cancel()
    calls[4].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert found[::2][:2] == [1, 3] and found[3] == 4
    assert await client.lane.call("INCR", "n") == 6


async def test_what_is_too_much_at_a_time_waits_in_order(client: LaneClient) -> None:
    """Calls, and bytes, beyond what may be under way are sent later, none is lost."""
    await client.lane.call("PING")
    calls = [client.lane.call("APPEND", "t", b"x") for _ in range(1000)]
    assert await asyncio.gather(*calls) == list(range(1, 1001))
    big = [client.lane.call("SET", "big", bytes(600_000 + n)) for n in range(6)]
    length = client.lane.call("STRLEN", "big")  # there is room for it, but not its turn
    assert await asyncio.gather(*big) == [b"OK"] * 6
    assert await length == 600_005


@pytest.mark.parametrize(("length", "most"), [(1, 200), (300_000, 3), (2_000_000, 1)])
async def test_no_more_is_under_way_than_redis_does_between_others(length: int, most: int) -> None:
    """At most 200 calls or 1 MiB; what is larger goes alone."""
    seen = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while data := await reader.read(65536):
            seen += data.count(b"SET\r\n")
            writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX)
    lane = Lane(made.connection_pool.make_connection, 30)
    calls = [lane.call("SET", "key", bytes(length)) for _ in range(300)]
    await until(lambda: seen >= most, "what may be under way has arrived")
    late = [lane.call("SET", "key", bytes(length)) for _ in range(3)]
    await lane.aclose(0.2)
    assert seen == most
    assert all(call.exception() for call in calls + late)
    server.close()
    await made.aclose()


async def test_calls_of_one_step_go_out_together(
    client: LaneClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one goes out at once, all others in one write."""
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


async def test_a_silent_server_fails_all_that_is_under_way(redis_server: RedisServer) -> None:
    """After the time-out; then another connection is used."""
    with Proxy(redis_server.port) as proxy:
        made = connect(proxy.url, PREFIX)
        lane = Lane(made.connection_pool.make_connection, 0.3)
        assert await lane.call("PING") == b"PONG"
        proxy.black_hole()
        lost = await asyncio.gather(
            *(lane.call("PING") for _ in range(300)), return_exceptions=True
        )
        assert {type(each) for each in lost} == {exceptions.TimeoutError}
        proxy.restore()
        assert await lane.call("PING") == b"PONG"
        await lane.aclose()
        await made.aclose()


@pytest.mark.parametrize("fault", ["reset_all", "half_close"])
async def test_a_lost_connection_fails_all_that_is_under_way(
    redis_server: RedisServer, fault: str
) -> None:
    """At once, and the next call opens another one."""
    with Proxy(redis_server.port) as proxy:
        made = connect(proxy.url, PREFIX)
        assert await made.lane.call("PING") == b"PONG"
        proxy.black_hole()
        calls = [made.lane.call("PING") for _ in range(3)]
        await asyncio.to_thread(getattr(proxy, fault))
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in lost} == {exceptions.ConnectionError}
        proxy.restore()
        assert await made.lane.call("PING") == b"PONG"
        await made.aclose()


async def test_a_reply_that_breaks_off_is_none(redis_server: RedisServer) -> None:
    """A connection that ends within a reply fails its caller; nothing of it reaches the next."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"+OK\r\n+OK\r\n$10\r\nhalf of")
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX)
    for _ in range(2):
        with pytest.raises(exceptions.ConnectionError):
            await made.lane.call("GET", "key")
    server.close()
    await made.aclose()


async def test_what_nobody_asked_for_ends_the_connection(redis_server: RedisServer) -> None:
    """A server that answers more than it was asked is none of ours."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"GET" not in (data := await reader.read(65536)):
            writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
        writer.write(b"+one\r\n+two\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX)
    assert await made.lane.call("GET", "key") == b"one"
    assert made.lane._wire is None
    server.close()
    await made.aclose()


async def test_a_cancelled_pop_takes_nothing(redis_server: RedisServer, redis_url: str) -> None:
    """What is pushed after a wait was cancelled is there for the next one."""
    made, other = connect_blocking(redis_url, PREFIX), connect(redis_url, PREFIX)
    waiting = asyncio.create_task(blocking_pop(made, "list"))

    def is_popping() -> bool:
        with redis_server.client() as looking:
            return any(each["cmd"] == "blpop" for each in looking.client_list())

    await until(is_popping, "Redis lets it wait")
    waiting.cancel()
    await asyncio.wait({waiting})
    await until(lambda: not is_popping(), "Redis has noticed")
    await other.lane.call("RPUSH", "list", "element")
    assert await blocking_pop(made, "list") == b"element"
    await made.aclose()
    await other.aclose()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_loop_has_a_connection_of_its_own(redis_url: str) -> None:
    """A client that outlives a loop goes on in the next one, whatever it left there."""
    made = connect(redis_url, PREFIX)

    async def ping(*, closes: bool) -> bytes:
        answer: bytes = await asyncio.wait_for(made.lane.call("PING"), 10)
        if closes:
            await made.aclose()
        return answer

    answers = [asyncio.run(ping(closes=closes)) for closes in (False, False, True)]
    assert answers == [b"PONG"] * 3
    gc.collect()  # what the first loops left is noticed here, where it is expected


async def test_closing_waits_for_what_waits_its_turn(client: LaneClient) -> None:
    """Also for what is more than may be under way, and then no connection is opened anew."""
    await client.lane.call("PING")
    calls = [client.lane.call("INCR", "n") for _ in range(1000)]
    calls[-1].cancel()
    await client.aclose()
    assert [each.result() for each in calls[:-1]] == list(range(1, 1000))
    assert await client.get("n") == b"999", "a call that was cancelled before its turn is not sent"
    assert client.lane._opening is None and client.lane._wire is None


@pytest.mark.parametrize("patience", [0.0, 1.0])
async def test_closing_at_once_leaves_nobody_waiting(redis_url: str, patience: float) -> None:
    """A call that the connection was never opened for fails, unless there is time to open it."""
    made = connect(redis_url, PREFIX)
    call = made.lane.call("PING")
    await made.lane.aclose(patience)
    assert call.done()
    assert (call.exception() is None) == bool(patience)
    assert await asyncio.wait_for(made.lane.call("PING"), 10) == b"PONG"
    await made.aclose()


async def test_a_frozen_server_does_not_hold_up_the_end(redis_server: RedisServer) -> None:
    """What has no answer by then fails, sent or not; nothing is opened for it any more."""
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
    """Each raise adds to the traceback of an error: that of one caller is not all callers'."""
    await client.lane.call("PING")
    calls = [client.lane.call("BLPOP", "none", 60) for _ in range(250)]
    client.lane.reset()
    await client.lane.aclose()
    errors = [call.exception() for call in calls]
    assert {type(error) for error in errors} == {exceptions.ConnectionError}
    assert len({id(error) for error in errors}) == len(calls)


async def test_a_second_loop_is_refused_while_the_first_runs(client: LaneClient) -> None:
    """Its calls fail and say why; those of the first loop are answered."""
    calls = [client.lane.call("INCR", "n") for _ in range(300)]

    async def elsewhere() -> None:
        await client.lane.call("INCR", "n")

    with pytest.raises(NotBoundError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())
    assert await asyncio.gather(*calls) == list(range(1, 301))


async def test_a_slow_way_is_no_silence(redis_server: RedisServer) -> None:
    """While a large command is still on its way, nobody is given up for not answering."""
    passed = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", redis_server.port)
        back = asyncio.create_task(_slicing(there[0], writer, [65536]))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(10_000):
                there[1].write(data)
                await asyncio.sleep(0.1)  # the fault itself: 100 kB/s
        there[1].close()
        await back
        passed.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made = connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX)
    lane = Lane(made.connection_pool.make_connection, 0.5)
    assert await lane.call("SET", "long", bytes(130_000)) == b"OK"
    await lane.aclose()
    await passed.wait()
    server.close()
    await made.aclose()
