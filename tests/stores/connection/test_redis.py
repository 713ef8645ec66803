"""The connections to Redis and what runs over them, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from nonet.base.errors import ConfigurationError, ServerUnreachableError
from nonet.stores.connection.redis import (
    Scripts,
    connect,
    connect_blocking,
    connect_sync,
    ping,
    run_sync,
    script,
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
async def test_a_cancellation_is_never_swallowed(redis_url: str, steps: int) -> None:
    """Whenever a command is cancelled before it has its answer, its task ends cancelled."""
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


async def test_scripts_are_loaded_when_the_server_forgot_them(scripts: Scripts) -> None:
    """A restart or SCRIPT FLUSH costs one more round trip, not the call."""
    for flush in (scripts.client.flushall, scripts.client.script_flush):
        await flush()
        answers = await asyncio.gather(*(lead(scripts, "me") for _ in range(5)))
        assert len(set(answers)) == 1 and answers[0]
    with connect_sync_to(scripts) as client:
        client.script_flush()
        assert (
            run_sync(client, PREFIX, "lead", "me", 10_000, "{}", 0, 1000)[0].decode() == answers[0]
        )


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    """The error has one line with the address and hides the password."""
    for client in (
        connect("redis://:secret@127.0.0.1:1/0", PREFIX),
        connect_blocking("unix:///no/such", PREFIX),
    ):
        with pytest.raises(ServerUnreachableError) as caught:
            await ping(client)
        message = str(caught.value)
        assert "secret" not in message and "\n" not in message
        assert "127.0.0.1:1" in message or "/no/such" in message
        await client.aclose()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://user:secret@localhost:1", "rediss://user:***@localhost:1/0"),
        ("redis://:secret@localhost:1/3", "redis://:***@localhost:1/3"),
        ("unix://user:secret@/no/such?db=2", "unix://user:***@/no/such?db=2"),
    ],
)
async def test_a_server_is_shown_as_it_was_named(url: str, shown: str) -> None:
    """Scheme, user, port and database stay, also where they are defaults."""
    client = connect(url, PREFIX)
    with pytest.raises(ServerUnreachableError) as caught:
        await ping(client)
    assert f"Redis at {shown} " in str(caught.value)
    await client.aclose()


@pytest.mark.parametrize(
    "url",
    [
        *("http://x", "redis://h:notaport/0", "redis://h:99999/0", "rubbish", ""),
        *("redis://:secret/x@127.0.0.1:6379/0", "redis://:a@secret/@127.0.0.1/0"),
        *("redis://:secret", "redis://:se?cret@h/0", "redis://:se#cret@h/0", "redis:secret@h"),
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    """What is no Redis URL, or could be read in two ways, is refused; nothing of it is shown."""
    for make in (connect, connect_blocking, connect_sync):
        with pytest.raises(ConfigurationError, match="NONET_REDIS_URL") as caught:
            make(url, PREFIX)
        assert "secret" not in str(caught.value) and "cret" not in str(caught.value)
        assert caught.value.__cause__ is None


def connect_sync_to(scripts: Scripts):  # type: ignore[no-untyped-def]  # a context manager
    options = scripts.client.connection_pool.connection_kwargs
    return connect_sync(f"redis://{options['host']}:{options['port']}/0", PREFIX)


def test_includes_are_resolved_once() -> None:
    """A script contains the parts that it names, and its digest is stable."""
    source, digest = script("settle")
    assert "local function finish(" in source and "@include" not in source
    assert script("settle")[1] == digest


async def test_more_callers_than_connections(redis_url: str) -> None:
    """Hundreds of commands at once wait for their turn instead of failing."""
    client = connect(redis_url, PREFIX)
    assert await asyncio.gather(*(client.ping() for _ in range(400))) == [True] * 400
    assert int((await client.info("clients"))["connected_clients"]) < 100
    await client.aclose()
