"""Tasks that no worker starts in time end at their deadline, without any worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from acceptance.contention import scales
from acceptance.durable_tasks import KeptBuried
from acceptance.probe_tasks import BuriedFreely, Quick
from acceptance.site import PROBES, Site, letters, submit_all
from acceptance.test_durable import emptied
from doors import Door
from waits import WAIT_SECONDS, until

from nonet import BaseTask, TaskExpired
from nonet.stores.sql.database import upgrade

TASKS = f"{PROBES},acceptance.durable_tasks"
UNKNOWING = "acceptance.extra_tasks"  # the scheduler knows none of these classes


@scales(50, 1000)
async def test_tasks_that_no_worker_starts_end_at_their_deadline(
    site: Site, mariadb_url: str, scale: int
) -> None:
    """Not before it, each with a dead letter; the row of a durable one is closed."""
    await upgrade(mariadb_url)
    site.settings["NONET_DB_URL"] = mariadb_url
    scheduler = site.scheduler(NONET_TASKS=UNKNOWING)
    await until(lambda: "leading: term=" in scheduler.log, "it leads")
    async with site.app(db_url=mariadb_url) as app:
        deadline = datetime.now(UTC) + timedelta(seconds=scale / 25)
        tasks: list[BaseTask] = [BuriedFreely() for _ in range(scale)]
        ids = await submit_all(app, [KeptBuried(), *tasks], start_by=deadline)
        for id in (ids[0], ids[-1]):
            with pytest.raises(TaskExpired, match="not started within"):
                await app.result(id, timeout=WAIT_SECONDS)
        await site.all_ended()
        ended = [(await app.status(id)).finished for id in ids]
        assert all(at is not None and at >= deadline for at in ended)
        rows = await letters(mariadb_url)
        assert sorted(row.task_id for row in rows) == sorted(ids)
        assert {row.reason for row in rows} == {"capacity"}
        await emptied(await app.stores.outbox())


async def test_a_worker_names_a_class_that_it_leaves_to_others(site: Site) -> None:
    """Once, however many tasks of it there are; one that knows the class runs them."""
    worker = site.worker(NONET_TASKS=UNKNOWING)
    async with site.app() as app:
        ids = await submit_all(app, [Quick() for _ in range(3)])
        left = "tasks of probe_tasks:Quick are left to other workers: "
        await until(lambda: left in worker.log, "it names the class")
        site.worker()
        for id in ids:
            await app.result(id, timeout=WAIT_SECONDS)
    assert worker.log.count(left) == 1
    assert "name its module in NONET_TASKS here" in worker.log


async def test_expired_tasks_stay_dying_while_sql_hangs(
    site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """Nothing is lost meanwhile, other tasks are promoted; then each has one row."""
    door, url = mariadb_behind_a_door
    await upgrade(url)
    door.freeze()
    scheduler = site.scheduler(NONET_DB_URL=url, NONET_TASKS=UNKNOWING)
    async with site.app() as app:
        ids = await submit_all(app, [BuriedFreely() for _ in range(20)], start_by=0.5)
        await until(lambda: "dead letters wait" in scheduler.log, "it waits")
        assert {(await app.status(id)).state for id in ids} == {"dying"}
        (soon,) = await submit_all(app, [BuriedFreely()], start_by=3600, at_time=_soon())
        await until(lambda: not site.parked(soon), "what is delayed is promoted")
        door.thaw()
        for id in ids:
            with pytest.raises(TaskExpired):
                await app.result(id, timeout=WAIT_SECONDS)
        await app.cancel([soon])
        await site.all_ended()
    assert sorted(item.task_id for item in await letters(url)) == sorted(ids)


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.5)
