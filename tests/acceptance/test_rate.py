"""Rate limits: waiting for another lock uses no token."""

from __future__ import annotations

from acceptance.contention import in_order, parked, workers
from acceptance.lock_tasks import Holding
from acceptance.site import Site, submit_all

TASKS = "acceptance.lock_tasks"
RATE = "L r 10 600"


async def test_waiting_for_a_mutex_burns_no_token(site: Site) -> None:
    """Tasks that wait for a busy mutex use nothing of their rate; then as many run as it allows."""
    workers(site, 2, slots=8)
    gate, tokens = site.gate(), site.key("limiter:rate:job:r")
    async with site.app() as app:
        await site.begin(app, Holding(["M a"], gate=gate))
        ids = await submit_all(app, [Holding(["M a", RATE]) for _ in range(12)])
        await parked(site, "M a", len(ids))
        assert not site.redis.exists(tokens)
        site.open(gate)
        await site.started(ids[9])
        await parked(site, RATE, 2)
        assert in_order(site, ids) == ids[:10]
        await app.cancel(ids[10:])
        await site.all_ended()
