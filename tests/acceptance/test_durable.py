"""Durable tasks outlive Redis: what was submitted is in SQL until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from acceptance.durable_tasks import Kept, KeptBrief, KeptBuried, KeptGated, KeptMutex
from acceptance.probe_tasks import Quick
from acceptance.site import SHORT, Site, eventually, failure, run
from daemons import frozen
from doors import Door
from servers import MariaServer
from sqlalchemy.ext.asyncio import AsyncConnection, async_sessionmaker, create_async_engine
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.base.errors import NotFoundError, ServerUnreachableError, TaskExpired
from nonet.stores.sql.database import upgrade
from nonet.stores.sql.outbox import Outbox

TASKS = "acceptance.durable_tasks,acceptance.probe_tasks"


@asynccontextmanager
async def opened(site: Site, url: str = "") -> AsyncIterator[tuple[Nonet, Outbox]]:
    """The application and its rows; the daemons that are started here use the same database."""
    site.settings |= {"NONET_TASKS": TASKS, "NONET_DB_URL": url}
    if url:
        await upgrade(url)
    async with site.app(tasks=TASKS.split(","), db_url=url) as app:
        yield app, await app.stores.outbox()


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[AsyncConnection]:
    """A transaction of the application's own."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


async def emptied(outbox: Outbox) -> None:
    """Wait until no row is left: they are deleted beside the work."""

    async def is_empty() -> bool:
        return await outbox.count() == 0

    await eventually(is_empty)


async def test_a_task_runs_after_the_commit_of_its_transaction_and_never_without(
    site: Site, mariadb_url: str
) -> None:
    """The scheduler needs no code of the class; what is rolled back never runs."""
    async with opened(site, mariadb_url) as (app, outbox):
        site.worker(), site.scheduler(NONET_TASKS="acceptance.extra_tasks")
        engine = create_async_engine(app.settings.sql_url())
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE jobs (id INTEGER PRIMARY KEY)"))
        with pytest.raises(ZeroDivisionError):
            async with async_sessionmaker(engine).begin() as session:
                await session.execute(sa.text("INSERT INTO jobs VALUES (1)"))
                rolled_back = await Kept(1).schedule(transaction=session)
                _ = 1 / 0
        async with engine.begin() as connection:
            await connection.execute(sa.text("INSERT INTO jobs VALUES (2)"))
            handle = await Kept(2).schedule(transaction=connection)
            many = await app.submit_many([Kept(3), Kept(4)], transaction=connection)
        await engine.dispose()
        await until(lambda: len(site.journal("end")) == 3, "those that were committed have run")
        assert [await each.result(timeout=WAIT_SECONDS) for each in (handle, *many)] == [2, 3, 4]
        await site.all_ended()
        assert site.journal(id=rolled_back) == []
        await emptied(outbox)


async def test_a_handle_can_be_awaited_right_after_the_commit(site: Site) -> None:
    """Committed, and not in Redis yet: it is delayed, says why, and its result can be awaited."""
    async with opened(site) as (app, outbox):
        await outbox.prepare()
        async with transaction(app.settings.sql_url()) as connection:
            handle = await Kept(7).schedule(transaction=connection)
            for unseen in (handle.status(), app.explain(handle)):
                with pytest.raises(NotFoundError):
                    await unseen
        status, explained = await handle.status(), await app.explain(handle)
        assert (status.state, status.stream) == ("delayed", "normal:small")
        assert status.name.endswith(":Kept")
        assert "kept in SQL" in status.blocker
        assert (explained.state, explained.cause) == ("delayed", "hand-over")
        assert "no scheduler leads" in explained.text
        with pytest.raises(TimeoutError, match=r"has not ended after 0\.3 s"):
            await handle.result(timeout=0.3)
        awaited = asyncio.create_task(handle.result(timeout=WAIT_SECONDS))
        site.worker(), site.scheduler()
        assert await awaited == 7
        assert (await handle.status()).state == "done"


async def test_an_unknown_task_and_an_unreachable_database_are_different_errors(
    site: Site, mariadb_url: str
) -> None:
    """While SQL is unavailable a task may exist; without tables it does not."""
    async with site.app(db_url=mariadb_url) as app:
        with pytest.raises(NotFoundError):
            await app.status("some-id")
    async with site.app(db_url="mysql://nonet@127.0.0.1:1/nonet") as app:
        with pytest.raises(ServerUnreachableError, match="database mysql"):
            await app.status("some-id")


async def test_a_task_runs_once_though_its_relay_is_killed_before_it_marks_it(
    site: Site, maria_server: MariaServer, mariadb_url: str
) -> None:
    """A scheduler killed after it handed a task over, before it wrote so down: it runs once."""
    site.settings["NONET_LEADER_TTL"] = "1"
    async with opened(site, mariadb_url) as (_, outbox):
        database = mariadb_url.rpartition("/")[2]
        maria_server.execute(
            f"CREATE TRIGGER {database}.slow BEFORE UPDATE ON {database}.outbox_tasks "
            "FOR EACH ROW DO SLEEP(60)"
        )
        victim = site.scheduler()
        async with transaction(mariadb_url) as connection:
            handle = await Kept().schedule(transaction=connection)
        await until(lambda: site.live() == [handle], "the task is in Redis")
        victim.kill()
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)
        await emptied(outbox)
        maria_server.execute(f"DROP TRIGGER {database}.slow")
        site.scheduler()
        await site.all_ended()
        assert await outbox.count() == 0
    assert len(site.journal("start")) == 1


async def test_all_durable_tasks_run_after_redis_was_emptied(site: Site) -> None:
    """200 durable tasks queued, delayed, waiting and running when Redis is emptied: all end."""
    gate = site.gate()
    site.settings |= SHORT
    async with opened(site) as (app, outbox):
        worker = site.worker("--concurrency", "20")
        site.scheduler()
        later = datetime.now(UTC) + timedelta(seconds=3)
        handles = [
            *await app.submit_many([KeptGated(gate) for _ in range(15)]),
            *await app.submit_many([KeptMutex(gate) for _ in range(15)]),
            *await app.submit_many([KeptBrief(n) for n in range(70)], at_time=later),
        ]
        await site.until_event("start", 16)
        states = {(await handle.status()).state for handle in handles}
        assert states >= {"running", "waiting", "delayed"}
        with frozen(worker):
            handles += await app.submit_many([KeptBrief(n) for n in range(100)])
            assert (await handles[-1].status()).state == "queued"
            assert await outbox.count() == 200
            site.redis.flushall()
        site.open(gate)
        await emptied(outbox)
        await site.all_ended()
        assert {(await handle.status()).state for handle in handles} == {"done"}
    ended = {item.id for item in site.journal("end")}
    assert ended == set(handles)


async def test_a_task_ends_while_sql_is_away(
    site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """It holds no slot, runs once, and its row goes when SQL is back."""
    gate = site.gate()
    door, url = mariadb_behind_a_door
    async with opened(site, url) as (app, outbox):
        closer = "nonet.stores.sql.row_closer"
        worker = site.changed_worker(closer, "--concurrency", "1", _RETRY_SECONDS=0.5)
        handle = await site.begin(app, KeptGated(gate))
        await door.close()
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == worker.pid
        assert await run(app, Quick(1)) == 1
        await until(lambda: "delete the rows of 1 durable tasks" in worker.log, "it was tried")
        await door.open()
        await emptied(outbox)
    assert len(site.journal("start", id=handle)) == 1


async def test_a_resubmitted_dead_letter_is_durable_again(site: Site) -> None:
    """It has a row like any submission, so that a loss of Redis does not lose it."""
    async with opened(site) as (app, outbox):
        worker = site.worker()
        handle = await app.submit(KeptBuried())
        await failure(app, handle)
        await emptied(outbox)
        with frozen(worker):
            (letter,) = await (await app.dead_letters()).list()
            again = await app.resubmit(letter.id)
            assert await outbox.count() == 1
        await failure(app, again)


async def test_a_task_that_expires_leaves_no_row(site: Site) -> None:
    """Also if no scheduler runs: the worker that writes its dead letter deletes the row."""
    async with opened(site) as (app, outbox):
        handle = await app.submit(KeptBuried(), start_by=0.001)
        site.worker()
        with pytest.raises(TaskExpired):
            await handle.result(timeout=WAIT_SECONDS)
        await emptied(outbox)
