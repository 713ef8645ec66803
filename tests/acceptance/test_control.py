"""Pause, resume and cancel with real daemons."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from acceptance.durable_tasks import Kept
from acceptance.probe_tasks import Gated, Quick
from acceptance.site import PROBES, Site
from acceptance.test_durable import opened, transaction
from waits import WAIT_SECONDS, until

from nonet import Nonet, TaskCancelled
from nonet.stores.sql.outbox import Outbox

WHO = "ann@host 7"


def ended(site: Site, task: str = "Quick") -> int:
    return len(site.journal("end", task=task))


async def idle(site: Site, workers: int = 1) -> None:
    """Wait until all workers stand on the stack of the idle."""
    key = site.key("idle:small")
    await until(lambda: site.redis.zcard(key) == workers, "the workers are idle")


@pytest.mark.parametrize("what", ["all", "stream:normal:small", "task:Quick"])
async def test_a_pause_survives_restarts(site: Site, what: str) -> None:
    """What runs finishes; nothing else starts, whoever restarts; a resume runs each once."""
    gate = site.gate()
    async with site.app() as app:
        worker, scheduler = site.worker(), site.scheduler()
        running = await Gated(gate).schedule()
        await until(lambda: site.journal("start", task="Gated"), "it runs")
        await app.stores.controls.pause([what], WHO)
        handles = await app.submit_many(Quick(n) for n in range(150))
        due = datetime.now(UTC) + timedelta(seconds=0.5)
        delayed, due_us = site.key("tasks:delayed"), due.timestamp() * 1e6
        handles += await app.submit_many([Quick(n) for n in range(50)], at_time=due)
        site.open(gate)
        assert isinstance(await running.result(timeout=WAIT_SECONDS), int)
        await until(lambda: not site.redis.zcount(delayed, 0, due_us), "all are promoted")
        for daemon in (worker, scheduler):
            daemon.terminate()
            daemon.wait()
        site.worker(), site.scheduler()
        await idle(site)
        assert ended(site) == 0
        assert (await handles[0].status()).state in ("queued", "waiting")
        await app.stores.controls.resume([what], WHO)
        assert [await handle.result(timeout=WAIT_SECONDS) for handle in handles] == [
            *range(150),
            *range(50),
        ]
        runs = Counter(event.id for event in site.journal("start", task="Quick"))
        assert set(runs.values()) == {1}
        await site.all_ended()


def fetches(site: Site) -> int:
    """How often somebody asked what is paused since the server started: each fetch does, once."""
    return int(site.redis.info("commandstats")["cmdstat_hkeys"]["calls"])


# ---- durable tasks ------------------------------------------------------------------------------


async def cancelled_for_good(site: Site, app: Nonet, outbox: Outbox, *ids: str) -> None:
    """Neither a relay nor an emptied Redis brings one of them back."""
    assert await outbox.names(ids) == {}
    site.redis.flushall()
    marker = await Kept(99).schedule()
    assert await marker.result(timeout=WAIT_SECONDS) == 99
    assert {event.id for event in site.journal("start")} & set(ids) == set()


@pytest.mark.parametrize("backend", ["sqlite", "mariadb"])
async def test_a_cancelled_durable_task_is_not_handed_over_again(
    site: Site, backend: str, request: pytest.FixtureRequest
) -> None:
    """Its row is deleted with it, also of one that Redis has not seen yet."""
    url = request.getfixturevalue("mariadb_url") if backend == "mariadb" else ""
    async with opened(site, url) as (app, outbox):
        due = datetime.now(UTC) + timedelta(hours=1)
        delayed = await Kept(1).schedule(at_time=due)
        async with transaction(app.settings.sql_url()) as connection:
            kept = await Kept(2).schedule(transaction=connection)  # nobody hands it over yet
        answer = await app.client.cancel_not_running([delayed, kept, "unknown"])
        assert answer == {delayed: "cancelled", kept: "cancelled", "unknown": ""}
        for handle in (delayed, kept):
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=5)
        site.worker(), site.scheduler()
        await cancelled_for_good(site, app, outbox, delayed, kept)
        await site.all_ended()


async def test_a_hand_over_at_the_same_moment_does_not_bring_it_back(site: Site) -> None:
    """The relay has read the row before it was deleted: Redis tells it that the task has ended."""
    async with opened(site) as (app, outbox):
        async with transaction(app.settings.sql_url()) as connection:
            kept = await Kept(2).schedule(transaction=connection)
        epoch = await outbox.epoch()
        page = await outbox.due(epoch, again=False, skip=0)
        assert [item.id for item in page] == [kept]
        assert await app.client.cancel_many(task=Kept) == 1
        assert await outbox.hand_over(page, epoch) == [False]
        assert (await kept.status()).state == "cancelled"


async def test_nothing_at_all_is_refused(site: Site) -> None:
    """Neither class nor labels would mean everything: that must be a slip."""
    async with site.app(tasks=(PROBES,)) as app:
        with pytest.raises(ValueError, match="it would cancel all tasks"):
            await app.client.cancel_many()
        with pytest.raises(ValueError, match="dying"):
            await app.client.cancel_many(task=Quick, states=["dying"])
