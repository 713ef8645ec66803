"""Durable tasks outlive Redis: what was submitted is in SQL until it has ended."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from acceptance.durable_tasks import Kept, KeptBrief, KeptBuried, KeptGated, KeptMutex
from acceptance.probe_tasks import Quick
from acceptance.site import Site
from daemons import frozen
from servers import MariaServer
from sqlalchemy.ext.asyncio import AsyncConnection, async_sessionmaker, create_async_engine
from waits import WAIT_SECONDS, until

from nonet import InvalidArgumentsError, Nonet, TaskFailed
from nonet.base.errors import NotFoundError, ServerUnreachableError
from nonet.stores.sql.database import upgrade
from nonet.stores.sql.outbox import Outbox

TASKS = "acceptance.durable_tasks,acceptance.probe_tasks"


@pytest.fixture
def own_maria() -> Iterator[MariaServer]:
    """A MariaDB that this test may stop."""
    with MariaServer() as server:
        yield server


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
    async with asyncio.timeout(WAIT_SECONDS):
        while await outbox.count():  # noqa: ASYNC110  # other processes delete them
            await asyncio.sleep(0.02)


def rows(site: Site) -> int:
    """Rows in the default database, read without Nonet."""
    file = site.settings["NONET_STATE_DIR"] + "/nonet.db"
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM outbox_tasks").fetchone()[0])


def rows_in(server: MariaServer, database: str) -> int:
    """Rows in a MariaDB, read without Nonet."""
    with closing(server._connect(server.port)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {database}.outbox_tasks")
        return int(cursor.fetchone()[0])


# ---- in the caller's transaction ----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sqlite", "mariadb"])
async def test_runs_after_the_commit_and_never_without(
    site: Site, backend: str, request: pytest.FixtureRequest
) -> None:
    """A task submitted in a transaction runs once if that is committed, never if rolled back."""
    url = request.getfixturevalue("mariadb_url") if backend == "mariadb" else ""
    async with opened(site, url) as (app, outbox):
        site.worker(), site.scheduler()
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


async def test_handle_is_good_right_after_the_commit(site: Site) -> None:
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


async def test_unknown_and_sql_away_is_told_apart(site: Site, own_maria: MariaServer) -> None:
    """While SQL is away nobody can say that a task does not exist; without tables it does not."""
    own_maria.execute("CREATE DATABASE bare")
    async with site.app(db_url=own_maria.url("bare")) as app:
        with pytest.raises(NotFoundError):
            await app.status("some-id")
        own_maria.stop()
        with pytest.raises(ServerUnreachableError, match="database mysql"):
            await app.status("some-id")


async def test_relay_killed_before_it_marks(
    site: Site, maria_server: MariaServer, mariadb_url: str
) -> None:
    """A scheduler killed after it handed a task over, before it wrote so down: it runs once."""
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
        await until(lambda: rows_in(maria_server, database) == 0, "its row is deleted")
        maria_server.execute(f"DROP TRIGGER {database}.slow")
        site.scheduler()
        await site.all_ended()
        assert await outbox.count() == 0
    assert len(site.journal("start")) == 1


async def test_transaction_for_another_class_is_refused(site: Site) -> None:
    """Nothing is submitted of a class that is not durable; the error says what to write."""
    async with opened(site) as (app, outbox):
        for refused in (
            Quick().schedule(transaction=object()),
            app.submit_many([Kept(), Quick()], transaction=object()),
        ):
            with pytest.raises(InvalidArgumentsError, match=r"set durable = True"):
                await refused
        with pytest.raises(TypeError, match="AsyncConnection or AsyncSession"):
            await Kept().schedule(transaction=object())
        assert (await outbox.count(), site.live()) == (0, [])


# ---- servers that go away -----------------------------------------------------------------------


async def test_all_run_after_redis_was_emptied(site: Site) -> None:
    """200 durable tasks queued, delayed, waiting and running when Redis is emptied: all end."""
    gate = site.gate()
    async with opened(site) as (app, _):
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
            assert rows(site) == 200
            site.redis.flushall()
        site.open(gate)
        await until(lambda: rows(site) == 0, "every row is deleted", seconds=60)
        await site.all_ended()
        assert {(await handle.status()).state for handle in handles} == {"done"}
    ended = {item.id for item in site.journal("end")}
    assert ended == set(handles)


@pytest.mark.parametrize("killed", [False, True], ids=["worker lives", "worker killed"])
async def test_sql_is_away_when_it_ends(site: Site, own_maria: MariaServer, killed: bool) -> None:
    """The task ends all the same, holds no slot, runs once, and its row goes when SQL is back."""
    gate = site.gate()
    own_maria.execute("CREATE DATABASE app")
    async with opened(site, own_maria.url("app")) as (app, _):
        worker = site.worker("--concurrency", "1")
        handle = await app.submit(KeptGated(gate))
        await site.started(handle)
        own_maria.stop()
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == worker.pid
        assert await (await app.submit(Quick(1))).result(timeout=WAIT_SECONDS) == 1
        await until(lambda: "delete the rows of 1 durable tasks" in worker.log, "it was tried")
        if killed:
            worker.kill()
            site.scheduler()
        own_maria.start()
        await until(lambda: rows_in(own_maria, "app") == 0, "its row is deleted")
    assert len(site.journal("start", id=handle)) == 1


async def test_emptied_between_settle_and_close(site: Site, own_maria: MariaServer) -> None:
    """Redis emptied after a task has ended, before its row is gone: it runs again, and is gone."""
    own_maria.execute("CREATE DATABASE app")
    gate = site.gate()
    async with opened(site, own_maria.url("app")) as (app, _):
        worker = site.worker()
        site.scheduler()
        handle = await app.submit(KeptGated(gate))
        await site.started(handle)
        own_maria.stop()
        site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)
        worker.kill()
        site.redis.flushall()
        own_maria.start()
        site.worker()
        await site.started(handle, 2)
        await until(lambda: rows_in(own_maria, "app") == 0, "its row is deleted")
        await site.all_ended()
    assert len(site.journal("end", id=handle)) == 2


async def test_two_relays_hand_over_once(site: Site) -> None:
    """A leader that was frozen relays on beside its successor: each task runs once."""
    async with opened(site) as (app, _):
        old = site.scheduler()
        leader = site.key("leader")
        await until(lambda: site.redis.hget(leader, "owner"), "it leads")
        before = site.redis.hget(leader, "term")
        with frozen(old):
            site.scheduler()
            await until(lambda: site.redis.hget(leader, "term") != before, "another one leads")
            async with transaction(app.settings.sql_url()) as connection:
                handles = await app.submit_many(
                    [Kept(n) for n in range(50)], transaction=connection
                )
        site.worker()
        await until(lambda: len(site.journal("end")) >= 50, "all have run")
        await until(lambda: rows(site) == 0, "every row is deleted")
        await site.all_ended()
    assert len(site.journal("start")) == len(handles) == 50


# ---- how it ends --------------------------------------------------------------------------------


async def test_dead_ones_are_closed_too(site: Site) -> None:
    """A durable task that becomes a dead letter has a row there, and none among the open ones."""
    async with opened(site) as (app, outbox):
        site.worker()
        handle = await app.submit(KeptBuried())
        with pytest.raises(TaskFailed, match="refused with 42"):
            await handle.result(timeout=WAIT_SECONDS)
        await until(lambda: rows(site) == 0, "its row is deleted")
        letters = await app.dead_letters()
        assert [letter.task_id for letter in await letters.list()] == [handle]
        assert await outbox.count() == 0


async def test_resubmitted_dead_letter_is_durable_again(site: Site) -> None:
    """It has a row like any submission, so that a loss of Redis does not lose it."""
    async with opened(site) as (app, outbox):
        worker = site.worker()
        handle = await app.submit(KeptBuried())
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        await until(lambda: rows(site) == 0, "its row is deleted")
        with frozen(worker):
            (letter,) = await (await app.dead_letters()).list()
            again = await app.resubmit(letter.id)
            assert await outbox.count() == 1
        with pytest.raises(TaskFailed):
            await again.result(timeout=WAIT_SECONDS)


async def test_class_unknown_to_the_scheduler_is_relayed(site: Site) -> None:
    """A scheduler that does not have the code hands over what it cannot read."""
    async with opened(site) as (app, _):
        site.worker()
        site.scheduler(NONET_TASKS="acceptance.sql_tasks", PROBE_DB="unused")
        async with transaction(app.settings.sql_url()) as connection:
            handle = await Kept(3).schedule(transaction=connection)
        await site.until_event("end", id=handle)
        assert await handle.result(timeout=WAIT_SECONDS) == 3
