"""One id for life, and nothing that stays behind: promises 3 and 21."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

from acceptance.probe_tasks import Brief, Fails, Parent, Quick, TwoAtATime
from acceptance.site import Site, run, stop, submit_all
from waits import WAIT_SECONDS, until

from nonet.stores.namespace import history


async def test_one_id_is_one_task(site: Site) -> None:
    """50 parallel submissions of one id, from five clients, are one task that runs once."""
    site.worker()
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(site.app()) for _ in range(5)]
        handles = await asyncio.gather(
            *(apps[n % 5].submit(Quick(n), id="only-one") for n in range(50))
        )
        assert [str(handle) for handle in handles] == ["only-one"] * 50
        assert sum(handle.created for handle in handles) == 1
        results = [await handle.result(timeout=WAIT_SECONDS) for handle in handles]
        assert len(set(results)) == 1
        await site.all_ended()
    assert len(site.journal("start")) == 1


async def test_ended_id_is_remembered(site: Site) -> None:
    """An id that is submitted again after its task ended is that task: nothing runs again."""
    site.worker()
    async with site.app() as app:
        first = await app.submit(Quick(1), id="again")
        await until(lambda: not site.live(), "the task has ended")
        again = await app.submit(Quick(2), id="again")
        assert (first.created, again.created) == (True, False)
        assert (await again.status()).state == "done"
        assert await again.result(timeout=WAIT_SECONDS) == 1
        await run(app, Quick(3), id="other")  # a task that was queued by mistake had run before
        await site.all_ended()
    assert [event.id for event in site.journal("start")] == ["again", "other"]


async def test_nothing_stays_behind(site: Site, no_leaked_keys: list[str]) -> None:
    """After tasks of every kind have ended only results and the structure remain, as allowed."""
    worker, scheduler = site.worker(), site.scheduler()
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    async with site.app() as app:
        await submit_all(app, [Quick(n) for n in range(20)])
        await submit_all(app, [Brief(n) for n in range(20)], at_time=soon)
        await submit_all(app, [Fails(), Parent(3), Parent(0), Parent(2, failing=1)])
        await submit_all(app, [TwoAtATime() for _ in range(6)])
        await site.all_ended()
    for daemon in (worker, scheduler):
        assert stop(daemon) == [0]
    # What has a TTL goes by itself. What stays is a fixed number of keys, none for a task.
    keys = site.redis.scan_iter(site.key("*"), count=1000)
    lasting = {key for key in keys if site.redis.ttl(key) == -1}
    structure = {
        *(site.key(name) for name in ("fence", "epoch", "mend", "term")),
        *(site.key(f"ended:{state}") for state in history.STATES),
        *(site.key(name) for name in ("promoted", "groups", "watch", "config", "events", "slots")),
        *(
            f"{site.key(kind)}:{priority}:small"
            for kind in ("tasks", "woken")
            for priority in ("realtime", "normal", "background")
        ),
    }
    assert lasting <= structure, lasting - structure
