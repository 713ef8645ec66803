"""Mutual exclusion where it counts: a counter in SQL, and workers that are killed amid it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import sqlalchemy as sa
from acceptance.contention import PATIENCE, Span, overlaps, scales
from acceptance.site import Site, submit_all
from acceptance.sql_tasks import Increment
from daemons import Daemon
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from waits import until


@dataclass(frozen=True)
class Counting:
    tasks: int
    seconds: float
    workers: int
    kill_every: float


@scales(Counting(40, 0.03, 3, 0.7), Counting(200, 0.1, 8, 2.0))
async def test_counter_is_exact_though_holders_are_killed(
    site: Site, mariadb_url: str, scale: Counting
) -> None:
    """Tasks that read, sleep and write a counter under a mutex count right, one at a time.

    Every so often the worker that took the mutex last is killed, and another one started.
    """
    site.settings |= {
        "NONET_TASKS": "acceptance.sql_tasks",
        "PROBE_DB": mariadb_url,
        "NONET_LOCK_TTL": "0.5",
        "NONET_LEASE": "1",
    }
    engine = create_async_engine(mariadb_url)
    async with engine.begin() as db:
        await _make_tables(db)
    killed: dict[int, float] = {}
    async with site.app() as app:
        crew = [_worker(site) for _ in range(scale.workers)]
        for worker in crew:
            worker.wait_ready()
        ids = await submit_all(app, [Increment(scale.seconds) for _ in range(scale.tasks)])
        killer = asyncio.create_task(_kill_holders(site, crew, killed, scale.kill_every))
        await site.all_ended(seconds=scale.tasks * 0.5 + PATIENCE)
        killer.cancel()
        for worker in crew:
            worker.wait_ready()  # else one of the dead counts in place of the newest
        await until(lambda: _registered(site) == len(crew), "the dead are forgotten")
        states = {(await app.status(id)).state for id in ids}
    async with engine.begin() as db:
        value = await db.scalar(sa.text("SELECT value FROM counter"))
    await engine.dispose()
    runs = _transactions(site, killed)
    print(
        f"\n{scale.tasks} increments by {scale.workers} workers, {len(killed)} killed "
        f"amid them: the counter is {value}, {len(runs)} transactions, none overlap"
    )
    assert states == {"done"}
    assert value == scale.tasks
    assert overlaps(runs) == []
    assert len(killed) >= 2, "hardly a worker was killed: the test has missed its point"


async def _make_tables(db: AsyncConnection) -> None:
    await db.execute(sa.text("CREATE TABLE counter (value INTEGER) ENGINE=InnoDB"))
    await db.execute(sa.text("CREATE TABLE counted (id VARCHAR(64) PRIMARY KEY) ENGINE=InnoDB"))
    await db.execute(sa.text("INSERT INTO counter VALUES (0)"))


def _registered(site: Site) -> int:
    return int(site.redis.zcard(site.key("workers")))


def _worker(site: Site) -> Daemon:
    return site.worker("--concurrency", "4", wait=False)


async def _kill_holders(
    site: Site, crew: list[Daemon], killed: dict[int, float], every: float
) -> None:
    """Kill the worker of the transaction that began last, again and again; one follows it."""
    while True:
        await asyncio.sleep(every)  # a load, not a wait for something
        holder = site.journal("began")[-1].pid
        for victim in [worker for worker in crew if worker.pid == holder]:
            victim.kill()
            killed[victim.pid] = time.time()
            crew.remove(victim)
            crew.append(_worker(site))


def _transactions(site: Site, killed: dict[int, float]) -> list[Span]:
    """From its begin to its commit, or to the death of its worker."""
    commits = {(event.id, event.fence): event.at for event in site.journal("committed")}
    found = []
    for event in site.journal("began"):
        end = commits.get((event.id, event.fence)) or killed.get(event.pid)
        assert end, f"a transaction of {event.id} neither committed nor died"
        found.append(Span(event.at, end, event.id))
    return found
