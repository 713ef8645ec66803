"""Tenants that share workers: their weights hold."""

from __future__ import annotations

from collections import Counter

import pytest
from acceptance.share_tasks import Mine
from acceptance.site import SHORT, Site, submit_all
from waits import until

from nonet import Nonet

TASKS = "acceptance.share_tasks"
CONFIG = 'fairness: {by: "label:tenant", weights: {a: 3, b: 1}}\n'


async def submit(app: Nonet, tenant: str, number: int, **options: object) -> list[str]:
    tasks = [Mine(tenant, **options) for _ in range(number)]
    return await submit_all(app, tasks, labels={"tenant": tenant})


@pytest.mark.soak
async def test_weights_hold_whatever_happens(site: Site) -> None:
    """3:1, with locks, retries, delays and killed workers; and again after Redis lost its data."""
    starts, kills = 10_000, 4
    site.settings |= SHORT
    site.scheduler("--config", site.write("shares.yaml", CONFIG))
    await until(lambda: site.redis.exists(site.key("fairness")), "shares are published")
    for _ in range(2):
        settled = site.settles()
        before = len(site.journal("begun"))
        async with site.app() as app:
            await app.client.live_config.refresh()
            for tenant in ("a", "b"):
                await submit(app, tenant, starts // 2)
                await submit(app, tenant, starts // 4, key=tenant)
                await submit(app, tenant, starts // 4, fails=1)
            worker = site.worker("--concurrency", "4")
            for kill in range(kills + 1):
                wanted = starts * (kill + 1) // (kills + 1)
                await site.until_event("begun", times=before + wanted)
                worker.kill()
                worker = site.worker("--concurrency", "4")
            first = site.journal("begun")[before : before + starts]
            begun = Counter(event.details["tenant"] for event in first)
            print(f"\n{begun} of {starts} starts, {kills} kills")
            assert abs(begun["a"] / begun["b"] - 3) <= 3 * 0.05
            await site.all_ended(seconds=60 + starts / 50)
        assert set(settled().values()) == {1}
        worker.kill()
        site.redis.flushdb()
        await until(lambda: site.redis.exists(site.key("fairness")), "shares are published again")
