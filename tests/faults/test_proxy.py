"""The proxy itself: what it forwards, and what each fault does to a client of a real Redis."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import redis
from faults.proxy import Proxy, Values
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import RedisServer
from waits import wait_until


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as made:
        yield made


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    """A client behind the proxy, which repeats nothing."""
    with _client(proxy) as made:
        made.ping()
        yield made


@pytest.fixture
def direct(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as made:
        yield made


def _client(proxy: Proxy, timeout: float = 10) -> redis.Redis:
    options = {"protocol": 2, "retry": Retry(NoBackoff(), 0), "decode_responses": True}
    return redis.Redis.from_url(proxy.url, socket_timeout=timeout, **options)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_values_are_found_however_the_stream_is_cut(piece: int) -> None:
    values = [b"+OK\r\n", b"*0\r\n", b"$-1\r\n", b"*-1\r\n", b"$0\r\n\r\n", b":12\r\n"]
    values += [b"-ERR x\r\n", b"*2\r\n*2\r\n$2\r\n\r\n\r\n:1\r\n*1\r\n*0\r\n"]
    stream, ends = b"".join(values), []
    parser = Values()
    for start in range(0, len(stream), piece):
        ends += [start + end for end in parser.feed(stream[start : start + piece])]
    assert ends == [len(b"".join(values[: n + 1])) for n in range(len(values))]


def test_a_swallowed_reply_resets_the_connection_of_an_executed_command(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    proxy.drop_reply(2)
    assert client.incr("n") == 1
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert direct.get("n") == "2"
    assert not proxy.armed
    assert client.incr("n") == 3


def test_a_swallowed_reply_in_a_pipeline_keeps_those_before_it(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        proxy.drop_reply(3)
        plain.sendall(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * 5)
        heard = b""
        with pytest.raises(ConnectionResetError):
            while data := plain.recv(1000):
                heard += data
    assert heard in (b"", b":1\r\n", b":1\r\n:2\r\n")  # a reset may overtake what was sent
    wait_until(lambda: direct.get("n") == "5", "all five are executed")


def test_commands_of_a_black_hole_arrive_late(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    with _client(proxy, 0.5) as hasty:
        hasty.ping()
        proxy.black_hole()
        with pytest.raises(redis.TimeoutError):
            hasty.incr("n")
        with _client(proxy, 0.2) as new, pytest.raises(redis.TimeoutError):
            new.ping()
        assert direct.get("n") is None
    proxy.restore()
    wait_until(lambda: direct.get("n") == "1", "the late command is executed")
    assert client.incr("n") == 2
