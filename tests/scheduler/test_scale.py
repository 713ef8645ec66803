"""Thousands of cron entries: what their plan takes, and that the frequent entries stay punctual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from nonet import IntervalSecondsSchedule, Nonet, Overlap, PeriodicBaseTask, Priority, Size
from nonet.scheduler.periodic.memory import Memory
from nonet.scheduler.periodic.periodic_loop import PeriodicLoop
from nonet.scheduler.periodic.plan import Entry
from nonet.stores.namespace.leadership import Leadership
from nonet.stores.namespace.periodic import Periodic
from nonet.tasks.schedules import CronSchedule, TaskScheduleBase

pytestmark = pytest.mark.soak

NUMBER = 5000
# CPU time in seconds, and delay, on a machine that others use, too.
PLAN, CHANGE, LATE = 1.0, 0.2, timedelta(seconds=1)


@dataclass
class Tick(PeriodicBaseTask):
    size = Size.SMALL

    async def execute(self) -> None: ...


@dataclass
class Often(Tick):
    priority = Priority.REALTIME  # else its task would wait in the queue behind those of the others


def entry(name: str, schedule: TaskScheduleBase, task: str = "test_scale:Tick") -> Entry:
    return Entry(f"{task}||{name}", task, None, name, schedule, {}, overlap=Overlap.ALLOW)


def crons() -> list[Entry]:
    zones = ("UTC", "Europe/Zurich")
    return [entry(str(n), CronSchedule("* * * * *", zones[n % 2])) for n in range(NUMBER)]


async def plan_of(loop: PeriodicLoop, term: str, entries: Sequence[Entry]) -> float:
    """Plan; return the CPU time that it took."""
    loop.adopt(entries)
    began = time.process_time()
    await loop.tick(term, may_fire=False)
    return time.process_time() - began


async def test_thousands_of_cron_entries_delay_no_frequent_one(
    redis_url: str, tmp_path: Path
) -> None:
    """All fire at the same minute; an entry that fires each second is on time meanwhile."""
    settings = {"redis_url": redis_url, "state_dir": tmp_path, "namespace": "test"}
    async with Nonet.from_settings(**settings, tasks=(__name__,)) as app:
        store = Periodic(app.broker, "test")
        memory = Memory(app.stores.mirror, app.settings.may_have_sql)
        loop = PeriodicLoop(app.client, store, memory, timedelta(seconds=60))
        term = await Leadership(app.broker, "test").lead("a", 3600, "{}") or ""
        often = entry("often", IntervalSecondsSchedule(1), "test_scale:Often")
        plan = await plan_of(loop, term, [*crons(), often])
        change = await plan_of(
            loop, term, [entry("0", CronSchedule("7 * * * *")), *crons()[1:], often]
        )
        now, late = await app.broker.now(), timedelta()
        minute, others = now.replace(second=0, microsecond=0) + timedelta(minutes=1), crons()[1:]
        while any(loop._planned[each.key].last < minute for each in others):
            pause = await loop.tick(term)
            deliveries, _ = await app.broker.fetch("small-a", "small", 100)
            await asyncio.gather(
                *(app.broker.settle(each, "done", b"document") for each in deliveries)
            )
            now = await app.broker.now()
            late = max(late, now - loop._planned[often.key].last - timedelta(seconds=1))
            await asyncio.sleep(min(pause, 0.02))
    print(f"{NUMBER} cron entries: plan {plan:.2f} s, of a change {change:.2f} s, late by {late}")
    assert plan < PLAN and change < CHANGE and late < LATE
