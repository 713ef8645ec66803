"""Mutual exclusion where it counts: a counter in SQL, and workers that are killed amid it."""

from __future__ import annotations

import time

import sqlalchemy as sa
from acceptance.contention import Span, overlaps, workers
from acceptance.site import SHORT, Site, submit_all
from acceptance.sql_tasks import Increment
from sqlalchemy.ext.asyncio import create_async_engine

TASKS = "acceptance.sql_tasks"
TABLES = [
    "CREATE TABLE counter (value INTEGER) ENGINE=InnoDB",
    "CREATE TABLE counted (id VARCHAR(64) PRIMARY KEY) ENGINE=InnoDB",
    "INSERT INTO counter VALUES (0)",
]


async def test_counter_is_exact_though_holders_are_killed(site: Site, mariadb_url: str) -> None:
    """Tasks that read, sleep and write a counter under a mutex count right, one at a time.

    After every eight of them the worker that holds the mutex is killed, and another one started.
    """
    site.settings |= {**SHORT, "PROBE_DB": mariadb_url}
    engine = create_async_engine(mariadb_url)
    async with engine.begin() as db:
        for statement in TABLES:
            await db.execute(sa.text(statement))
    killed: dict[int, float] = {}
    async with site.app() as app:
        crew = workers(site, 3, slots=4)
        ids = await submit_all(app, [Increment(0.03) for _ in range(40)])
        for begun in (8, 16, 24, 32):
            (holder, *_) = (await site.until_event("began", begun))[::-1]
            (victim,) = [worker for worker in crew if worker.pid == holder.pid]
            victim.kill()
            killed[victim.pid] = time.time()
            crew.remove(victim)
            crew += workers(site, 1, slots=4)
        await site.all_ended()
        states = {(await app.status(id)).state for id in ids}
    async with engine.begin() as db:
        value = await db.scalar(sa.text("SELECT value FROM counter"))
    await engine.dispose()
    assert states == {"done"}
    assert value == 40
    assert overlaps(_transactions(site, killed)) == []


def _transactions(site: Site, killed: dict[int, float]) -> list[Span]:
    """From its begin to its commit, or to the death of its worker."""
    commits = {(event.id, event.fence): event.at for event in site.journal("committed")}
    found = []
    for event in site.journal("began"):
        end = commits.get((event.id, event.fence)) or killed.get(event.pid)
        assert end, f"a transaction of {event.id} neither committed nor died"
        found.append(Span(event.at, end, event.id))
    return found
