"""Dead letters are never lost and never doubled, on MariaDB: promise 11."""

from __future__ import annotations

import os
import signal

from acceptance.probe_tasks import Alone, Buried, BuriedFreely, Quick
from acceptance.site import SHORT, Site, eventually, failure, letters, run, submit_all
from servers import MariaServer
from waits import until

from nonet.stores.sql.database import upgrade

# How long a worker waits for SQL, and then until it tries again, which is otherwise five seconds.
BURIALS = "nonet.worker.attempt.burials"
HASTE = {"_ANSWER_SECONDS": 1.0, "_RETRY_SECONDS": 1.0}


async def test_task_waits_for_sql_without_its_locks(site: Site, own_maria: MariaServer) -> None:
    """Without SQL the task is dying: locks free, never executed again; then one row."""
    own_maria.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    url = own_maria.url("letters")
    await upgrade(url)
    own_maria.stop()
    site.settings["NONET_DB_URL"] = url
    worker = site.changed_worker(BURIALS, **HASTE)
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
        own_maria.start()
        assert "refused with 42" in str(await failure(app, handle))
        await site.all_ended()
    assert len(await letters(url)) == 1
    assert len(site.journal("start", id=handle)) == 1


async def test_frozen_sql_takes_no_slot(site: Site, own_maria: MariaServer) -> None:
    """While SQL accepts connections and never answers, tasks that can run do so at once."""
    own_maria.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    url = own_maria.url("letters")
    await upgrade(url)
    site.settings["NONET_DB_URL"] = url
    worker = site.changed_worker(BURIALS, "--concurrency", "10", **HASTE)
    async with site.app() as app:
        os.kill(own_maria.pid, signal.SIGSTOP)  # it accepts connections, and answers nothing
        dead = await submit_all(app, [BuriedFreely() for _ in range(60)])
        await site.until_event("start", 60, task="BuriedFreely")
        while worker.log.count("dead letter of task") < 11:  # the tries at once, and a probe
            assert await run(app, Quick(7)) == 7
        why = [await app.explain(id) for id in dead]
        assert {item.cause for item in why} == {"sql"}
        assert all("silent for 1 s" in item.text for item in why if not item.worker)
        os.kill(own_maria.pid, signal.SIGCONT)
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
        await until(lambda: site.redis.hget(record, "state") == "dying", "SQL is being written")
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
