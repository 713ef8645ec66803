"""When another server takes over: no connection of a process stays with the old one.

Each test opens one connection of every kind, as the processes of a namespace have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from clients import broker_at
from connections import ELSEWHERE, WHO, again, every_kind
from faults.proxy import Proxy
from redis._parsers import BaseParser
from servers import RedisServer
from waits import until

from nonet.base.errors import ConfigurationError, NonetError, ServerUnreachableError
from nonet.config.settings import load_settings, plain_settings
from nonet.stores.connection import redis as redis_store, sync_client
from nonet.stores.connection.endpoint import Endpoint
from nonet.stores.connection.replies import is_elsewhere
from nonet.stores.queue.broker import Broker
from nonet.stores.stores import open_stores


@pytest.fixture
def server(redis_server: RedisServer, redis_url: str) -> RedisServer:
    with redis_server.client() as client:
        client.set(WHO, "first")
    return redis_server


@pytest.mark.parametrize("words", ELSEWHERE)
def test_a_refusal_is_known_however_it_is_worded(words: str) -> None:
    """By the server, in a script, or by a proxy."""
    assert is_elsewhere(BaseParser.parse_error(words))


@pytest.mark.parametrize("words", ["BUSY x", "MISCONF x", "OOM x", "ERR x", "ERR 7 READONLY x"])
def test_other_errors_keep_the_connection(words: str) -> None:
    """Another connection would get the same answer."""
    assert not is_elsewhere(BaseParser.parse_error(words))


@pytest.mark.parametrize(
    "words",
    [*ELSEWHERE[:2], *(pytest.param(words, marks=pytest.mark.soak) for words in ELSEWHERE[2:])],
)
async def test_a_refused_connection_is_replaced_with_all_others(
    server: RedisServer, words: str
) -> None:
    """One refusal is enough: the next call of every kind goes over a new connection."""
    with Proxy(server.port) as proxy:
        async with every_kind(proxy.url) as calls:
            for first in calls:
                for call in calls.values():
                    await again(call)
                proxy.pin(words)
                assert await again(calls[first]) == b"first", first
                refused = proxy.refused
                for kind, call in calls.items():
                    assert await call() == b"first", f"{kind} after {first}"
                assert proxy.refused == refused, f"after {first}"


@pytest.mark.parametrize("words", ELSEWHERE[:2])
async def test_a_call_outlasts_a_refusal(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A submit is repeated while servers switch, over any kind of client that may repeat it."""
    monkeypatch.setattr(redis_store, "_PAUSES", (0.02,))
    with Proxy(server.port) as proxy:
        async with every_kind(proxy.url) as calls:
            for kind in ("lane", "lane of threads"):
                proxy.refuse(words)
                call = asyncio.ensure_future(calls[kind]())
                enough = proxy.refused + 30  # more than the retries of a lost call
                await until(lambda n=enough: proxy.refused >= n, "it is repeated")
                assert not call.done()
                proxy.relent()
                assert await call == b"first", kind


@pytest.mark.parametrize("read", ["group", "edges", "inputs"])
async def test_what_a_running_task_reads_outlasts_a_refusal(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """A failover must not end an attempt that merely waits for the results before it."""
    monkeypatch.setattr(redis_store, "_PAUSES", (0.02,))
    with server.client() as client:
        client.hset("{test}:g:g", "total", 0)
    async with AsyncExitStack() as closing:
        proxy = closing.enter_context(Proxy(server.port))
        settings = plain_settings(redis_url=proxy.url, namespace="test")
        stores = await open_stores(settings, closing)
        reads: dict[str, Callable[[], Awaitable[object]]] = {
            "group": lambda: stores.groups.results("g"),
            "edges": lambda: stores.workflows.predecessors("w", "0"),
            "inputs": lambda: stores.workflows.results("w", ["0"]),
        }
        expected = await reads[read]()
        proxy.refuse(ELSEWHERE[0])
        call = asyncio.ensure_future(reads[read]())
        await until(lambda: proxy.refused >= 30, "it is repeated")
        assert not call.done()
        proxy.relent()
        assert await call == expected


async def test_a_refusal_that_lasts_is_an_unreachable_server(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a proxy has worded it."""
    monkeypatch.setattr(redis_store, "FAILOVER_SECONDS", 0.1)
    with Proxy(server.port) as proxy:
        async with every_kind(proxy.url) as calls:
            proxy.refuse(ELSEWHERE[1])
            for kind, call in calls.items():
                with pytest.raises(NonetError) as caught:
                    await call()
                assert type(caught.value) is ServerUnreachableError, kind
                assert "cannot be used now: READONLY" in str(caught.value), kind
            proxy.relent()


async def test_another_server_is_met_by_all_connections(server: RedisServer) -> None:
    """One new connection that reaches another server takes all others there."""
    with RedisServer() as other, Proxy(server.port) as proxy:
        with other.client() as client:
            client.set(WHO, "second")
        async with every_kind(proxy.url) as calls:
            for call in calls.values():
                assert await call() == b"first"
            proxy.retarget(other.port)
            for call in calls.values():
                assert await call() == b"first", "open connections stay where they are"
            async with every_kind(proxy.url) as more:
                assert await more["pool"]() == b"second"
                for kind, call in calls.items():
                    assert await call() == b"second", kind


def test_a_server_that_was_met_before_changes_nothing() -> None:
    """A proxy may spread its connections over several servers."""
    endpoint = Endpoint("redis://h/0", None)
    generations = [endpoint.meet(server, endpoint.generation) for server in (b"a", b"b", b"a")]
    assert [*generations, endpoint.generation] == [0, 1, 1, 1]


async def test_a_new_epoch_takes_all_connections_to_its_server(server: RedisServer) -> None:
    """Else a process would work on two servers, and each would take the other for a loss."""
    with RedisServer() as other, Proxy(server.port) as proxy:
        with other.client() as client:
            client.set(WHO, "second")
        broker = broker_at(proxy.url)
        async with every_kind(proxy.url) as calls:
            for call in calls.values():
                assert await call() == b"first"
            await broker.presence([])
            proxy.retarget(other.port)
            broker.epoch.see([str(broker.epoch.since + 1).encode(), b"1"])
            for kind, call in calls.items():
                assert await again(call) == b"second", kind
        await broker.aclose()


async def test_idle_connections_that_do_not_answer_are_dropped_together(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has forgotten them: one call waits for a time-out, and no other does."""
    monkeypatch.setattr(redis_store, "TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(sync_client, "TIMEOUT_SECONDS", 1.0)
    with Proxy(server.port) as proxy:
        async with every_kind(proxy.url) as calls:
            for first in ("pool", "lane", "lane of threads"):
                for call in calls.values():
                    await again(call)
                proxy.pin()
                assert await again(calls[first]) == b"first", first
                unheard = proxy.unheard
                for kind, call in calls.items():
                    assert await call() == b"first", f"{kind} after {first}"
                assert proxy.unheard == unheard, f"after {first}"


@pytest.mark.server
async def test_a_refused_login_reads_the_file_of_the_url_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A password is changed without a restart; while the file is the old one, the error says so."""
    file = tmp_path / "url"
    monkeypatch.delenv("NONET_REDIS_URL", raising=False)
    monkeypatch.setenv("NONET_REDIS_URL_FILE", str(file))
    with RedisServer() as server:
        url, changed = (f"redis://:{word}@127.0.0.1:{server.port}/0" for word in ("old", "new"))
        file.write_text(f"{url}\n")
        with server.client() as admin:
            admin.config_set("requirepass", "old")
            broker = Broker(load_settings(state_dir=tmp_path), url)
            beside = Broker(plain_settings(redis_url=url), url)
            async with every_kind(url) as calls:
                for call in calls.values():
                    await call()
                admin.config_set("requirepass", "new")
                admin.client_kill_filter(_type="normal", skipme=True)
                for kind, call in calls.items():
                    with pytest.raises(ConfigurationError, match="refuses the login"):
                        await again(call)
                        pytest.fail(kind)
                file.write_text(changed)
                for kind, call in calls.items():
                    assert await again(call) is None, kind
            await beside.aclose()
            await broker.aclose()
            admin.config_set("requirepass", "")
