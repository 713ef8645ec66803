"""Tenants that share workers: nobody waits for the backlog of another, and weights hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from acceptance.contention import PATIENCE, scales
from acceptance.share_tasks import Mine
from acceptance.site import Site, submit_all
from daemons import Daemon
from waits import until

from nonet import Nonet

CONFIG = 'fairness: {by: "label:tenant", weights: {a: 3, b: 1}}\n'


async def fair(site: Site) -> Daemon:
    """A leader that has published fair shares."""
    site.settings["NONET_TASKS"] = "acceptance.share_tasks"
    scheduler = site.scheduler("--config", site.write("shares.yaml", CONFIG))
    await until(lambda: site.redis.exists(site.key("fairness")), "shares are published")
    return scheduler


async def submit(app: Nonet, tenant: str, number: int, **options: object) -> list[str]:
    tasks = [Mine(tenant, **options) for _ in range(number)]
    return await submit_all(app, tasks, labels={"tenant": tenant})


@dataclass(frozen=True)
class Weighed:
    starts: int
    kills: int
    within: float


@scales(Weighed(800, 1, 0.15), Weighed(10_000, 4, 0.05))
async def test_weights_hold_whatever_happens(site: Site, scale: Weighed) -> None:
    """3:1, with locks, retries, delays and killed workers; and again after Redis lost its data."""
    await fair(site)
    for _ in range(2):
        settled = site.settles()
        before = len(site.journal("begun"))
        async with site.app() as app:
            await app.client.live_config.refresh()
            for tenant in ("a", "b"):
                await submit(app, tenant, scale.starts // 2)
                await submit(app, tenant, scale.starts // 4, key=tenant)
                await submit(app, tenant, scale.starts // 4, fails=1)
            worker = site.worker("--concurrency", "4")
            for kill in range(scale.kills + 1):
                wanted = scale.starts * (kill + 1) // (scale.kills + 1)
                await site.until_event("begun", times=before + wanted)
                worker.kill()
                worker = site.worker("--concurrency", "4")
            first = site.journal("begun")[before : before + scale.starts]
            begun = Counter(event.details["tenant"] for event in first)
            print(f"\n{begun} of {scale.starts} starts, {scale.kills} kills")
            assert abs(begun["a"] / begun["b"] - 3) <= 3 * scale.within
            await site.all_ended(seconds=PATIENCE + scale.starts / 50)
        assert set(settled().values()) == {1}
        worker.kill()
        site.redis.flushdb()
        await until(lambda: site.redis.exists(site.key("fairness")), "shares are published again")
