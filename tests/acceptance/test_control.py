"""Pause, resume and cancel with real daemons."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from acceptance.durable_tasks import Kept
from acceptance.probe_tasks import Gated, Quick
from acceptance.site import Site, run, stop
from acceptance.test_durable import opened, transaction
from waits import WAIT_SECONDS, until

from nonet import TaskCancelled

WHO = "ann@host 7"


async def test_a_pause_survives_restarts(site: Site) -> None:
    """What runs finishes, nothing else starts after restarts; a resume runs each task once."""
    gate, idle = site.gate(), site.key("idle:small")
    async with site.app() as app:
        worker, scheduler = site.worker(), site.scheduler()
        running = await site.begin(app, Gated(gate))
        await app.stores.controls.pause(["all"], WHO)
        handles = await app.submit_many(Quick(n) for n in range(150))
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        handles += await app.submit_many([Quick(n) for n in range(50)], at_time=due)
        site.open(gate)
        assert isinstance(await running.result(timeout=WAIT_SECONDS), int)
        delayed, due_us = site.key("tasks:delayed"), due.timestamp() * 1e6
        await until(lambda: not site.redis.zcount(delayed, 0, due_us), "all are promoted")
        stop(worker, scheduler)
        site.worker(), site.scheduler()
        await until(lambda: site.redis.zcard(idle) == 1, "the worker is idle")
        assert site.journal("start", task="Quick") == []
        await app.stores.controls.resume(["all"], WHO)
        for handle in handles:
            await handle.result(timeout=WAIT_SECONDS)
        runs = Counter(event.id for event in site.journal("start", task="Quick"))
        assert runs == dict.fromkeys(handles, 1)
        await site.all_ended()


async def test_a_cancelled_durable_task_is_not_handed_over_again(site: Site) -> None:
    """Neither a relay nor an emptied Redis brings it back, even if Redis never saw it."""
    async with opened(site) as (app, outbox):
        due = datetime.now(UTC) + timedelta(hours=1)
        delayed = await Kept(1).schedule(at_time=due)
        async with transaction(app.settings.sql_url()) as connection:
            kept = await Kept(2).schedule(transaction=connection)  # no scheduler hands it over yet
        answer = await app.client.cancel_not_running([delayed, kept, "unknown"])
        assert answer == {delayed: "cancelled", kept: "cancelled", "unknown": ""}
        for handle in (delayed, kept):
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=WAIT_SECONDS)
        assert await outbox.names([delayed, kept]) == {}
        site.worker(), site.scheduler()
        site.redis.flushall()
        assert await run(app, Kept(99)) == 99
        assert len(site.journal("start")) == 1
        await site.all_ended()
