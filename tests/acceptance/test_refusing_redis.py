"""Redis refuses for a while, without being away: what runs must not pay for it."""

from __future__ import annotations

import redis
from acceptance.probe_tasks import Gated
from acceptance.site import Site
from servers import RedisServer
from waits import WAIT_SECONDS, until


async def test_a_settle_outlasts_missing_permissions(
    own_server: RedisServer, own_site: Site
) -> None:
    """A finished execution is settled when permissions are back, not thrown away and repeated."""
    site, gate = own_site, own_site.gate()
    worker = site.worker()
    with redis.Redis(port=own_server.port) as admin:
        async with site.app() as app:
            task = await site.begin(app, Gated(gate))
            admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
            site.open(gate)
            await until(lambda: f"{task}: not settled yet" in worker.log, "the settle is refused")
            admin.execute_command("ACL", "SETUSER", "default", "+evalsha")
            assert await task.result(timeout=WAIT_SECONDS) == worker.pid
    assert len(site.journal("start")) == 1
    assert worker.log.count("not settled yet") == 1
    await site.all_ended()
