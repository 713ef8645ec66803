"""Dead letters are never lost and never doubled, on MariaDB: promise 11."""

from __future__ import annotations

import records
from acceptance.probe_tasks import Alone, Buried, BuriedFreely, Quick
from acceptance.site import SHORT, Site, eventually, failure, letters, run, submit_all
from doors import Door
from servers import MariaServer
from waits import until

from nonet.stores.sql.database import upgrade

# What a worker does every five to ten seconds while SQL fails.
BURIALS = "nonet.worker.attempt.burials"
OFTEN = {"_RETRY_SECONDS": 0.5}


async def test_task_waits_for_sql_without_its_locks(
    site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """Without SQL the task is dying: locks free, never executed again; then one row."""
    door, url = mariadb_behind_a_door
    await upgrade(url)
    await door.close()
    site.settings["NONET_DB_URL"] = url
    worker = site.changed_worker(BURIALS, **OFTEN)
    async with site.app() as app:
        handle = await app.submit(Buried())
        await until(lambda: site.parked(handle), "the task waits for SQL")
        status = await handle.status()
        assert (status.state, status.attempt) == ("dying", 1)
        assert [task.attempt async for task in app.live(state="dying")] == [1]
        # The reason, not the address, which is longer than what a record keeps.
        assert status.blocker.startswith("SQL: Can't connect to MySQL server")
        assert f"be written to SQL: {status.blocker[5:]}. " in (await app.explain(handle)).text
        await run(app, Alone())
        await until(lambda: worker.log.count("dead letter of task") >= 2, "it was tried again")
        await door.open()
        assert "refused with 42" in str(await failure(app, handle))
        await site.all_ended()
    assert len(await letters(url)) == 1
    assert len(site.journal("start", id=handle)) == 1


async def test_frozen_sql_takes_no_slot(
    site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """While SQL accepts connections and never answers, tasks that can run do so at once."""
    door, url = mariadb_behind_a_door
    await upgrade(url)
    site.settings["NONET_DB_URL"] = url
    worker = site.changed_worker(BURIALS, "--concurrency", "10", _ANSWER_SECONDS=1.0, **OFTEN)
    async with site.app() as app:
        door.freeze()
        dead = await submit_all(app, [BuriedFreely() for _ in range(60)])
        await site.until_event("start", 60, task="BuriedFreely")
        while worker.log.count("dead letter of task") < 11:  # the tries at once, and a probe
            assert await run(app, Quick(7)) == 7
        why = [await app.explain(id) for id in dead]
        assert {item.cause for item in why} == {"sql"}
        assert all("silent for 1 s" in item.text for item in why if not item.worker)
        door.thaw()
        for id in dead:
            await failure(app, id)
        await site.all_ended()
    assert sorted(row.task_id for row in await letters(url)) == sorted(dead)
    assert len(site.journal("start", task="BuriedFreely")) == 60


async def test_a_worker_killed_between_sql_and_settle_leaves_one_letter(
    site: Site, maria_server: MariaServer, mariadb_url: str
) -> None:
    """A worker killed after it wrote the row, before it settled: still one row, one execution."""
    site.settings |= SHORT
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
        await until(
            lambda: records.hget(site.redis, record, "state") == "dying", "SQL is being written"
        )
        # Whatever the worker sends now hangs; while it is in SQL, it has not sent its settle.
        site.redis.client_pause(60_000, all=False)
        before = await eventually(lambda: letters(mariadb_url))
        victim.kill()
        await until(lambda: len(site.redis.client_list()) <= 3, "its connections are gone")
        site.redis.client_unpause()
        maria_server.execute(f"DROP TRIGGER {database}.slow")
        assert (await handle.status()).state == "dying"
        site.worker(NONET_DB_URL=mariadb_url)
        await failure(app, handle)
        await site.all_ended()
    assert [row.id for row in await letters(mariadb_url)] == [row.id for row in before]
    assert len(site.journal("start")) == 1
