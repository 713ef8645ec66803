"""While old and new workers live side by side, a task comes to one that can run it: promise 16."""

from __future__ import annotations

import pytest
from acceptance.extra_tasks import Newer
from acceptance.site import PROBES, Site
from daemons import Daemon
from waits import until

BOTH = f"{PROBES},acceptance.extra_tasks"


async def becomes_idle(site: Site, worker: Daemon) -> None:
    """Wait until a worker sleeps, and has told what it knows."""
    name = worker.incarnation

    def is_idle() -> bool:
        known = site.redis.hget(site.key(f"w:{name}"), "knows")
        return bool(known) and site.redis.zscore(site.key("idle:small"), name) is not None

    await until(is_idle, "the worker is idle")


@pytest.mark.parametrize("old", [1, 4])
async def test_idle_workers_that_do_not_know_a_task_keep_it_from_nobody(
    site: Site, old: int
) -> None:
    """Each of them became idle later than the one that knows it, and would be woken before that."""
    new = site.worker(NONET_TASKS=BOTH)
    await becomes_idle(site, new)
    for worker in [site.worker() for _ in range(old)]:
        await becomes_idle(site, worker)
    async with site.app(tasks=tuple(BOTH.split(","))) as app:
        handles = [await app.submit(Newer(number)) for number in range(2)]
        for handle in handles:
            assert await handle.result(timeout=3) == new.pid
        await site.all_ended()
    assert {event.attempt for event in site.journal("start")} == {1}


async def test_a_registration_wakes_what_waits_for_it(site: Site) -> None:
    """Until then no worker is given it again, and nobody has to look at it."""
    site.worker(), site.worker()
    async with site.app(tasks=tuple(BOTH.split(","))) as app:
        handles = [await app.submit(Newer(number)) for number in range(20)]
        for handle in handles:
            await until(lambda id=handle: site.parked(id), "it was handed on")  # type: ignore[misc]
            far = site.redis.zscore(site.key("tasks:delayed"), handle) + 3600e6
            site.redis.zadd(site.key("tasks:delayed"), {handle: far})
        assert {site.redis.hget(site.key(f"t:{id}"), "handed") for id in handles} == {"1"}
        new = site.worker(NONET_TASKS=BOTH)
        assert {await handle.result(timeout=3) for handle in handles} == {new.pid}
        assert (await app.doctor()).is_healthy
        await site.all_ended()
    assert not site.redis.keys(site.key("unfit:*"))
