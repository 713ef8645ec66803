"""Tasks that nobody starts in time end at their deadline, without any worker."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest
from acceptance.durable_tasks import KeptBuried
from acceptance.probe_tasks import BuriedFreely
from acceptance.site import Site, submit_all
from acceptance.test_dead_letters import _rows, own_maria
from servers import MariaServer
from waits import WAIT_SECONDS, until

from nonet import BaseTask, TaskExpired
from nonet.stores.sql.database import upgrade
from nonet.stores.sql.dead_letters import Status

__all__ = ["own_maria"]  # a fixture
UNKNOWING = "acceptance.extra_tasks"  # the scheduler knows none of these classes
SCALE = 1000


async def test_a_thousand_end_at_their_deadline(site: Site, mariadb_url: str) -> None:
    """Each within a second of it, with its row, and who waits is told."""
    await upgrade(mariadb_url)
    scheduler = site.scheduler(NONET_DB_URL=mariadb_url, NONET_TASKS=UNKNOWING)
    await until(lambda: "leading: term=" in scheduler.log, "it leads")
    async with site.app() as app:
        deadline = datetime.now(UTC) + timedelta(seconds=10)
        tasks: list[BaseTask] = [BuriedFreely() for _ in range(SCALE)]
        ids = await submit_all(app, tasks, start_by=deadline)
        for id in (ids[0], ids[-1]):
            with pytest.raises(TaskExpired, match="not started within"):
                await app.result(id, timeout=WAIT_SECONDS)
        await site.all_ended()
        ended = [(await app.status(id)).finished for id in ids]
    late = [(at - deadline).total_seconds() for at in ended if at is not None]
    print(f"\n{SCALE} tasks ended {min(late):.2f} to {max(late):.2f} s after their deadline")
    assert len(late) == SCALE
    assert min(late) >= 0
    assert max(late) < 2  # one second, and what a busy machine adds
    letters = await _rows(mariadb_url, limit=2 * SCALE)
    assert sorted(item.task_id for item in letters) == sorted(ids)
    assert {(item.reason, item.task_class) for item in letters} == {
        ("capacity", "probe_tasks:BuriedFreely")
    }


async def test_while_sql_hangs_they_stay_dying(site: Site, own_maria: MariaServer) -> None:
    """Nothing is lost meanwhile, other tasks are promoted; then each has one row."""
    own_maria.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    url = own_maria.url("letters")
    await upgrade(url)
    os.kill(own_maria.pid, signal.SIGSTOP)
    try:
        scheduler = site.scheduler(NONET_DB_URL=url, NONET_TASKS=UNKNOWING)
        async with site.app() as app:
            ids = await submit_all(app, [BuriedFreely() for _ in range(20)], start_by=0.5)
            await until(lambda: "dead letters wait" in scheduler.log, "it waits")
            assert {(await app.status(id)).state for id in ids} == {"dying"}
            (soon,) = await submit_all(app, [BuriedFreely()], start_by=3600, at_time=_soon())
            await until(lambda: not site.parked(soon), "what is delayed is promoted")
            os.kill(own_maria.pid, signal.SIGCONT)
            for id in ids:
                with pytest.raises(TaskExpired):
                    await app.result(id, timeout=WAIT_SECONDS)
            await app.cancel([soon])
            await site.all_ended()
    finally:
        os.kill(own_maria.pid, signal.SIGCONT)
    assert sorted(item.task_id for item in await _rows(url)) == sorted(ids)


async def test_the_row_of_a_durable_one_is_closed(site: Site) -> None:
    """It becomes a dead letter, and is none of the open tasks any more."""
    site.settings["NONET_TASKS"] = "acceptance.durable_tasks,acceptance.probe_tasks"
    async with site.app() as app:
        handle = await app.submit(KeptBuried(), start_by=1)
        site.scheduler(NONET_TASKS=UNKNOWING)
        with pytest.raises(TaskExpired):
            await handle.result(timeout=WAIT_SECONDS)
        outbox, letters = await app.stores.outbox(), await app.dead_letters()
        async with asyncio.timeout(WAIT_SECONDS):
            while await outbox.count():  # noqa: ASYNC110  # other processes delete them
                await asyncio.sleep(0.05)
        assert (await letters.count())[Status.PENDING] == 1


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.5)
