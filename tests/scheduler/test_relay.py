"""The relay of durable tasks, on a real Redis and SQLite; with daemons in acceptance/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clients import broker_at
from servers import RedisServer
from waits import WAIT_SECONDS

from nonet.base.errors import BrokerFullError, ConfigurationError, ServerUnreachableError
from nonet.config.settings import Settings, plain_settings
from nonet.scheduler.relay import Relay
from nonet.stores.queue.broker import Broker, Presence
from nonet.stores.queue.submissions import Submission
from nonet.stores.sql import outbox as outbox_module
from nonet.stores.sql.database import Database
from nonet.stores.sql.outbox import Outbox
from nonet.tasks.locks import RateLimiter, encode_locks

IMPOSSIBLE = encode_locks([RateLimiter("job", "a", limit=1, window_seconds=60, n_items=2)])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    opened = Database(settings.sql_url())
    yield opened
    await opened.close()


@pytest.fixture
def outbox(database: Database, broker: Broker) -> Outbox:
    return Outbox(database, broker, "test")


def task(id: str, locks: str = "") -> Submission:
    return Submission(id=id, name="a:A", stream="normal:small", envelope=b"x", locks=locks)


def relay_of(outbox: Outbox, settings: Settings) -> Relay:
    async def opened() -> Outbox:
        return outbox

    return Relay(opened, settings)


async def test_pages_of_refused_rows_do_not_hold_up_newer_rows(
    outbox: Outbox,
    database: Database,
    settings: Settings,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(outbox_module, "PAGE_ROWS", 2)
    bad = [task(f"bad-{n}", IMPOSSIBLE) for n in range(5)]
    async with database.transaction() as connection:
        await outbox.submit_within(connection, [*bad, task("good-1"), task("good-2")])
    relay = relay_of(outbox, settings)
    async with asyncio.timeout(WAIT_SECONDS):
        await relay.tick("1")
        async with database.transaction() as connection:
            await outbox.submit_within(connection, [task("good-3")])
        await relay.tick("1")
    _, states = await broker.presence([f"good-{n}" for n in (1, 2, 3)])
    assert states == [Presence.LIVE] * 3
    assert caplog.text.count("durable task refused") == 5
    assert await outbox.count() == 8


async def test_an_unreachable_redis_refuses_no_row(database: Database, settings: Settings) -> None:
    away = broker_at("redis://127.0.0.1:1")
    outbox = Outbox(database, away, "test")
    await outbox.submit([task("kept")], ids_are_new=True)
    with pytest.raises(ServerUnreachableError):
        await relay_of(outbox, settings).tick("1")
    await away.aclose()


async def test_a_full_redis_refuses_no_row(
    outbox: Outbox,
    settings: Settings,
    broker: Broker,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = relay_of(outbox, settings)
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            await outbox.submit([task("a"), task("b")], ids_are_new=True)
            with pytest.raises(BrokerFullError):
                await relay.tick("1")
        finally:
            client.config_set("maxmemory", 0)
    await relay.tick("1")
    _, states = await broker.presence(["a", "b"])
    assert states == [Presence.LIVE] * 2
    assert "durable task refused" not in caplog.text


async def test_missing_tables_are_an_error_that_names_the_command(
    mariadb_url: str, broker: Broker
) -> None:
    database = Database(mariadb_url)
    relay = relay_of(Outbox(database, broker, "test"), plain_settings(db_url=mariadb_url))
    with pytest.raises(ConfigurationError, match="task-run db upgrade"):
        await relay.tick("1")
    await database.close()


async def test_a_missing_sqlite_file_is_not_opened(settings: Settings) -> None:
    async def never() -> Outbox:
        raise AssertionError("it was opened")

    assert await Relay(never, settings).tick("1") == 1.0
