"""Dead letters are never lost and never doubled, on MariaDB: promise 11."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from acceptance.probe_tasks import Alone, Buried, BuriedFreely, Quick
from acceptance.site import NAMESPACE, Site, submit_all
from servers import MariaServer
from waits import WAIT_SECONDS, until

from nonet import TaskFailed
from nonet.stores.sql.database import upgrade
from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters


@pytest.fixture
def own_maria() -> Iterator[MariaServer]:
    """A MariaDB that this test may stop."""
    with MariaServer() as server:
        yield server


@contextmanager
def frozen(server: MariaServer) -> Iterator[None]:
    """It accepts connections meanwhile, and answers nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_exhausted_task_is_kept_once(site: Site, mariadb_url: str) -> None:
    """A task that failed for good has exactly one row, and has settled dead."""
    await upgrade(mariadb_url)
    site.worker(NONET_DB_URL=mariadb_url)
    async with site.app() as app:
        handle = await app.submit(Buried())
        with pytest.raises(TaskFailed, match="refused with 42"):
            await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    (row,) = await _rows(mariadb_url)
    assert (row.task_id, row.reason, row.error_type) == (handle, "retries", "Refused")
    assert len(site.journal("start")) == 1


async def test_task_waits_for_sql_without_its_locks(site: Site, own_maria: MariaServer) -> None:
    """While SQL is away the task is dying: locks free, never executed again; then one row."""
    own_maria.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    url = own_maria.url("letters")
    await upgrade(url)
    own_maria.stop()
    worker = site.worker(NONET_DB_URL=url)
    async with site.app() as app:
        handle = await app.submit(Buried())
        await until(lambda: site.parked(handle), "the task waits for SQL")
        status = await handle.status()
        assert (status.state, status.attempt) == ("dying", 1)
        assert [task.attempt async for task in app.live(state="dying")] == [1]
        # The reason, not the address, which is longer than what a record keeps.
        assert status.blocker.startswith("SQL: Can't connect to MySQL server")
        assert f"be written to SQL: {status.blocker[5:]}. " in (await app.explain(handle)).text
        await (await app.submit(Alone())).result(timeout=WAIT_SECONDS)
        site.hurry(handle)
        await until(lambda: worker.log.count("dead letter of task") >= 2, "it was tried again")
        own_maria.start()
        await until(lambda: site.parked(handle), "the task waits again")
        site.hurry(handle)
        with pytest.raises(TaskFailed, match="refused with 42"):
            await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    assert len(await _rows(url)) == 1
    assert len(site.journal("start", id=handle)) == 1


@pytest.mark.long
async def test_frozen_sql_takes_no_slot(site: Site, own_maria: MariaServer) -> None:
    """While SQL accepts connections and never answers, tasks that can run do so at once."""
    own_maria.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    url = own_maria.url("letters")
    await upgrade(url)
    worker = site.worker("--concurrency", "10", NONET_DB_URL=url)
    async with site.app() as app:
        with frozen(own_maria):
            dead = await submit_all(app, [BuriedFreely() for _ in range(60)])
            await site.until_event("start", 60, task="BuriedFreely")
            waits = []
            while worker.log.count("dead letter of task") < 11:  # the tries at once, and a probe
                began = time.monotonic()
                assert await (await app.submit(Quick(7))).result(timeout=WAIT_SECONDS) == 7
                waits.append(time.monotonic() - began)
            assert max(waits) < 2
            why = [await app.explain(id) for id in dead]
            assert {item.cause for item in why} == {"sql"}
            assert all("silent for 5 s" in item.text for item in why if not item.worker)
            tried = worker.log.count("dead letter of task")
        for id in dead:
            with pytest.raises(TaskFailed):
                await app.result(id, timeout=WAIT_SECONDS)
        await site.all_ended()
    print(f"\n{len(waits)} tasks beside frozen SQL: {max(waits):.2f} s at most; {tried} tries")
    assert sorted(row.task_id for row in await _rows(url)) == sorted(dead)
    assert len(site.journal("start", task="BuriedFreely")) == 60


async def test_killed_between_sql_and_settle(
    site: Site, maria_server: MariaServer, mariadb_url: str
) -> None:
    """A worker killed after it wrote the row, before it settled: still one row, one execution."""
    await upgrade(mariadb_url)
    database = mariadb_url.rpartition("/")[2]
    maria_server.execute(
        f"CREATE TRIGGER {database}.slow BEFORE INSERT ON {database}.dlq_tasks "
        "FOR EACH ROW DO SLEEP(0.5)"
    )
    victim = site.worker(NONET_DB_URL=mariadb_url)
    async with site.app() as app:
        handle = await app.submit(Buried())
        record = site.key(f"t:{handle}")
        await until(lambda: site.redis.hget(record, "state") == "dying", "SQL is being written")
        # Whatever the worker sends now hangs; while it is in SQL, it has not sent its settle.
        site.redis.client_pause(60_000, all=False)
        while not (before := await _rows(mariadb_url)):
            pass
        victim.kill()
        await until(lambda: len(site.redis.client_list()) <= 3, "its connections are gone")
        site.redis.client_unpause()
        maria_server.execute(f"DROP TRIGGER {database}.slow")
        assert (await handle.status()).state == "dying"
        site.worker(NONET_DB_URL=mariadb_url)
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    assert [row.id for row in await _rows(mariadb_url)] == [row.id for row in before]
    assert len(site.journal("start")) == 1


async def test_the_leader_deletes_what_is_older_than_the_retention(
    site: Site, maria_server: MariaServer, mariadb_url: str
) -> None:
    """NONET_DLQ_RETENTION: soon after a scheduler leads, old letters are gone, and no others."""
    await upgrade(mariadb_url)
    site.worker(NONET_DB_URL=mariadb_url)
    async with site.app() as app:
        for handle in await app.submit_many([Buried(), Buried()]):
            with pytest.raises(TaskFailed):
                await handle.result(timeout=WAIT_SECONDS)
    old, young = sorted(row.id for row in await _rows(mariadb_url))
    database = mariadb_url.rpartition("/")[2]
    maria_server.execute(
        f"UPDATE {database}.dlq_tasks SET created_at = '2020-01-01' WHERE id = {old}"
    )
    scheduler = site.scheduler(NONET_DB_URL=mariadb_url, NONET_DLQ_RETENTION="86400")
    await until(lambda: "purged old dead letters: number=1" in scheduler.log, "it is purged")
    assert [row.id for row in await _rows(mariadb_url)] == [young]


async def _rows(url: str, limit: int = 100) -> list[DeadLetter]:
    store = DeadLetters(url, NAMESPACE)
    try:
        return list(await store.list(limit=limit))
    finally:
        await store.close()
