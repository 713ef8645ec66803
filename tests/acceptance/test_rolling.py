"""Beside old workers a task comes to a worker that can run it: promise 16."""

from __future__ import annotations

from acceptance.extra_tasks import Newer
from acceptance.site import PROBES, Site
from waits import WAIT_SECONDS, until

TASKS = f"{PROBES},acceptance.extra_tasks"


async def test_a_registration_wakes_what_waits_for_it(site: Site) -> None:
    """Until then no worker receives the task again."""
    site.worker(NONET_TASKS=PROBES), site.worker(NONET_TASKS=PROBES)
    async with site.app() as app:
        handles = [await app.submit(Newer(number)) for number in range(20)]
        for handle in handles:
            await until(lambda id=handle: site.parked(id), "it was handed on")  # type: ignore[misc]
            far = site.redis.zscore(site.key("tasks:delayed"), handle) + 3600e6
            site.redis.zadd(site.key("tasks:delayed"), {handle: far})
        assert {site.redis.hget(site.key(f"t:{id}"), "handed") for id in handles} == {"1"}
        new = site.worker()
        assert {await handle.result(timeout=WAIT_SECONDS) for handle in handles} == {new.pid}
        assert (await app.doctor()).is_healthy
        await site.all_ended()
    assert not site.redis.keys(site.key("unfit:*"))
