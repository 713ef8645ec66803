"""The connections to Redis and what runs over them, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.stores.connection.redis import (
    Scripts,
    connect,
    connect_blocking,
    connect_sync,
    ping,
    run_sync,
)

PREFIX = "{test}:"


@pytest.fixture
async def scripts(redis_url: str) -> AsyncIterator[Scripts]:
    client = connect(redis_url, PREFIX)
    yield Scripts(client, PREFIX)
    await client.aclose()


async def lead(runner: Scripts, owner: str) -> str:
    return str((await runner.run("lead", owner, 10_000, "{}", 0, 1000))[0].decode())


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_command_ends_its_task_cancelled(redis_url: str, steps: int) -> None:
    """Whenever it is cancelled before it has its answer."""
    client = connect(redis_url, PREFIX)
    await client.ping()
    for _ in range(20):
        call = asyncio.create_task(client.time())
        for _ in range(steps):
            await asyncio.sleep(0)
        if call.done() or not call.cancel():
            continue
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await client.ping()
    await client.aclose()


async def test_forgotten_scripts_are_loaded_again(scripts: Scripts, redis_url: str) -> None:
    """After a restart or SCRIPT FLUSH, by one more round trip."""
    for flush in (scripts.client.flushall, scripts.client.script_flush):
        await flush()
        answers = await asyncio.gather(*(lead(scripts, "me") for _ in range(5)))
        assert len(set(answers)) == 1 and answers[0]
    with connect_sync(redis_url, PREFIX) as client:
        client.script_flush()
        assert (
            run_sync(client, PREFIX, "lead", "me", 10_000, "{}", 0, 1000)[0].decode() == answers[0]
        )


@pytest.mark.parametrize("make", [connect, connect_blocking])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://user:secret@127.0.0.1:1", "rediss://user:***@127.0.0.1:1/0"),
        ("redis://:secret@127.0.0.1:1/3", "redis://:***@127.0.0.1:1/3"),
        ("unix://user:secret@/no/such?db=2", "unix://user:***@/no/such?db=2"),
    ],
)
async def test_an_unreachable_server_is_named(make: Any, url: str, shown: str) -> None:
    """In one line, with scheme, user, port and database, also defaults, without the password."""
    client = make(url, PREFIX)
    with pytest.raises(ServerUnreachableError) as caught:
        await ping(client)
    message = str(caught.value)
    assert f"Redis at {shown} " in message and "secret" not in message and "\n" not in message
    await client.aclose()


@pytest.mark.parametrize(
    "url",
    [
        *("http://x", "redis://h:notaport/0", "redis://h:99999/0", ""),
        *("redis://:secret/x@127.0.0.1:6379/0", "redis://:secret"),
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    """Also one that could be read in two ways; nothing of it is shown."""
    for make in (connect, connect_blocking, connect_sync):
        with pytest.raises(ConfigurationError, match="NONET_REDIS_URL") as caught:
            make(url, PREFIX)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


async def test_hundreds_of_callers_share_few_connections(redis_url: str) -> None:
    """They wait for their turn instead of failing."""
    client = connect(redis_url, PREFIX)
    assert await asyncio.gather(*(client.ping() for _ in range(400))) == [True] * 400
    assert int((await client.info("clients"))["connected_clients"]) < 100
    await client.aclose()
