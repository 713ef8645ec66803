"""Start-up hooks that take long, on a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from waits import WAIT_SECONDS

from nonet.base.errors import NonetError
from nonet.scheduler import startup
from nonet.scheduler.startup import StartUp
from nonet.stores.namespace.inspection import Inspection
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.queue.broker import Broker
from nonet.tasks.injection import Injector


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_LOOK_SECONDS", 0.01)


async def test_a_hook_that_takes_long_is_logged_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    leadership, end, looks = Leadership(broker, "test"), asyncio.Event(), 0
    term = await leadership.lead("a", 30, "{}") or ""

    async def slow() -> None:
        await end.wait()

    with caplog.at_level(logging.WARNING):
        tick = asyncio.create_task(
            StartUp({"slow": slow}, leadership, Injector(), long_seconds=0).tick(term)
        )
        while looks < 10 or not await broker.client.exists("{test}:startup"):
            looks += 1
            await asyncio.sleep(0.02)
        server = await Inspection(broker, "test").server()
        assert server.slow_hooks == ("slow",)
        end.set()
        await tick
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "start-up hook still runs: hook=slow" in caplog.text
    assert await leadership.hooks_done(term, leadership.epoch.since) == {"slow"}


async def depose(leadership: Leadership, term: str, broker: Broker) -> None:
    await leadership.resign("a", term)
    await Leadership(broker, "test").lead("b", 30, "{}")


async def restore_older_data(leadership: Leadership, term: str, broker: Broker) -> None:
    """The lease is in the data, so that the term stays; the epoch is a new one."""
    leadership.epoch.sequence += 100
    assert await leadership.lead("a", 30, "{}") == term


@pytest.mark.parametrize("end", [depose, restore_older_data])
async def test_a_hook_that_must_run_again_is_cancelled(
    broker: Broker, end: Callable[[Leadership, str, Broker], Awaitable[None]]
) -> None:
    """Another scheduler leads, or Redis has lost data: what the hook has done so far is void."""
    leadership, began, cancelled = Leadership(broker, "test"), asyncio.Event(), asyncio.Event()
    term = await leadership.lead("a", 30, "{}") or ""

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    tick = asyncio.create_task(StartUp({"hangs": hangs}, leadership, Injector()).tick(term))
    await asyncio.wait_for(began.wait(), WAIT_SECONDS)
    await end(leadership, term, broker)
    with pytest.raises(NonetError, match="hangs cancelled: another scheduler leads"):
        await asyncio.wait_for(tick, WAIT_SECONDS)
    assert cancelled.is_set()


async def test_values_of_a_statement_are_only_in_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    leadership = Leadership(broker, "test")
    term = await leadership.lead("a", 30, "{}") or ""

    def asks() -> None:
        with sa.create_engine("sqlite://").connect() as connection:
            connection.execute(sa.text("SELECT * FROM jobs WHERE token = :t"), {"t": "hunter2"})

    start_up = StartUp({"asks": asks}, leadership, Injector())
    with pytest.raises(NonetError, match=r"no such table: jobs$"):
        await start_up.tick(term)
    assert start_up.not_ready().endswith("no such table: jobs")
    kept = [await broker.client.hgetall("{test}:startup")]
    kept += await broker.client.xrange("{test}:events")
    assert "no such table: jobs" in str(kept)
    assert "hunter2" not in str(kept) and "SELECT" not in str(kept)
    assert "hunter2" in caplog.text
