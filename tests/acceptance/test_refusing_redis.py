"""Redis refuses for a while, without being away: what runs must not pay for it."""

from __future__ import annotations

import redis
from acceptance.probe_tasks import Gated
from acceptance.site import PROBES, Site
from acceptance.spawning_tasks import Spawns
from servers import RedisServer
from waits import WAIT_SECONDS, until

# The watchdog is refused too: the lease must last longer than the refusal.
LONG = {"NONET_LEASE": "45", "NONET_LOCK_TTL": "30", "NONET_WORKER_TTL": "30"}


async def test_a_settle_outlasts_missing_permissions(
    own_server: RedisServer, own_site: Site
) -> None:
    """A finished execution is settled when permissions are back, not thrown away and repeated."""
    site, gate = own_site, own_site.gate()
    worker = site.worker(**LONG)
    with redis.Redis(port=own_server.port) as admin:
        async with site.app() as app:
            task = await app.submit(Gated(gate))
            await site.started(task)
            admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
            site.open(gate)
            await until(lambda: f"{task}: not settled yet" in worker.log, "the settle is refused")
            admin.execute_command("ACL", "SETUSER", "default", "+evalsha")
            assert await task.result(timeout=WAIT_SECONDS) == worker.pid
    assert len(site.journal("start")) == 1
    assert worker.log.count("not settled yet") == 1
    await site.all_ended()


async def test_a_full_redis_ends_no_task_that_submits(own_site: Site) -> None:
    """Without any retry policy it is handed back, and runs again as the same attempt."""
    site, gate = own_site, own_site.gate()
    site.settings["NONET_TASKS"] = f"{PROBES},acceptance.spawning_tasks"
    site.worker()
    async with site.app() as app:
        task = await app.submit(Spawns(gate))
        await site.started(task)
        site.redis.config_set("maxmemory", 1)
        site.open(gate)
        await until(lambda: site.parked(task), "it waits until Redis has room")
        assert "Redis is full" in str(await app.explain(task))
        site.redis.config_set("maxmemory", 0)
        site.hurry(task)
        assert await task.result(timeout=WAIT_SECONDS) == 1
        await site.until_event("end", task="Quick")
        await site.all_ended()
