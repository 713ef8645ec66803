"""SQL is unavailable, slow or called twice at once."""

from __future__ import annotations

import asyncio
import time

import pytest
import records
from acceptance.probe_tasks import BuriedFreely
from doors import Door
from faults.fault_tasks import Exhausted, Timed
from faults.rig import Rig, rows_of
from waits import until

from nonet.stores.sql.database import upgrade


@pytest.mark.soak
@pytest.mark.parametrize("scale", [60])
async def test_sql_away_when_retries_are_exhausted(
    rig: Rig, mariadb_behind_a_door: tuple[Door, str], scale: float
) -> None:
    """MariaDB is stopped and comes back: exactly one row each, and no execution more."""
    site = rig.site
    door, url = mariadb_behind_a_door
    await upgrade(url)
    fleet = rig.workers(2, slots=10, NONET_DB_URL=url)
    site.scheduler()
    async with site.app() as app:
        await door.close()
        dead = await rig.submit(app, [Exhausted() for _ in range(30)])
        await site.until_event("start", 90, task="Exhausted")
        await until(lambda: _dying(rig, dead) == len(dead), "all wait for SQL")
        began = time.monotonic()
        await rig.settles(await rig.submit(app, [Timed(0.01) for _ in range(100)]))
        await asyncio.sleep(max(0.0, scale - (time.monotonic() - began)))  # the fault itself
        await door.open()
        back = time.time()
        await rig.settles(dead)
        recovery = max(rig.settled.last(id) for id in dead) - back
    assert len(site.journal("start", task="Exhausted")) == 90
    assert all(daemon.alive for daemon in fleet.daemons)
    await rig.judge(
        f"MariaDB stopped for {scale} s",
        dead=dead,
        rows=await rows_of(url),
        recovery=recovery,
        within=20,  # tried again every 5 to 10 s, ten at a time in each worker
    )


def _dying(rig: Rig, ids: list[str]) -> int:
    return sum(
        records.hget(rig.site.redis, rig.site.key(f"t:{id}"), "state") == "dying" for id in ids
    )


@pytest.mark.soak
@pytest.mark.parametrize("scale", [800])
async def test_workers_killed_while_they_bury(rig: Rig, mariadb_url: str, scale: int) -> None:
    """Workers die between execution, row and settle: one row each, one end each."""
    site = rig.site
    await upgrade(mariadb_url)
    fleet = rig.workers(3, slots=10, NONET_DB_URL=mariadb_url)
    async with site.app() as app:
        dead = await rig.submit(app, [BuriedFreely() for _ in range(scale)])
        await fleet.kill_every(0.7, lambda: site.entries() == site.pending())
        await rig.settles(dead)
    assert fleet.deaths
    await rig.judge(
        f"{len(fleet.deaths)} x SIGKILL of a worker that writes dead letters",
        dead=dead,
        rows=await rows_of(mariadb_url),
    )
