"""Workers and schedulers that are killed or frozen under load."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from acceptance.contention import scales
from acceptance.site import LEASE
from faults.fault_tasks import Timed
from faults.rig import PRODUCTION, Load, Rig
from waits import until


@dataclass(frozen=True)
class Kills:
    tasks: int
    seconds: float
    workers: int
    slots: int
    lease: float
    settings: Mapping[str, str] = field(default_factory=dict)


@scales(Kills(600, 0.2, 3, 15, 2.0), Kills(10_000, 0.5, 4, 100, 45.0, PRODUCTION))
async def test_workers_killed_every_second(rig: Rig, scale: Kills) -> None:
    """Killed workers lose and double nothing, cost at most their slots, and use no attempt."""
    fleet = rig.workers(scale.workers, slots=scale.slots, **scale.settings)
    async with rig.site.app() as app:
        ids = await rig.submit(app, [Timed(scale.seconds) for _ in range(scale.tasks)])
        await fleet.kill_every(1.0, lambda: rig.site.entries() == rig.site.pending())
        await rig.settles(ids, seconds=4 * scale.lease + 60)
    executions = Counter(event.id for event in rig.site.journal("start"))
    print(f"\n{len(fleet.deaths)} kills, {sum(executions.values()) - scale.tasks} repetitions")
    assert all(len(death.held) <= scale.slots for death in fleet.deaths)
    assert sum(executions.values()) - scale.tasks <= len(fleet.deaths) * scale.slots
    last = next(death for death in reversed(fleet.deaths) if death.held)
    await rig.judge(
        f"{len(fleet.deaths)} x SIGKILL of a worker, lease {scale.lease:g} s",
        recovery=fleet.recovery(last),
        within=2 * scale.lease,
    )


@pytest.mark.soak
@pytest.mark.parametrize("scale", [5])
async def test_workers_frozen_beyond_their_lease(rig: Rig, scale: int) -> None:
    """Workers that stood still for two leases settle no task that another worker has."""
    fleet = rig.workers(3, slots=10)
    chosen = random.Random(5)
    async with rig.site.app() as app:
        load = Load(rig, app, lambda n: Timed(0.05, f"lock-{n % 20}"))
        async with load.running():
            for _ in range(scale):
                victim = chosen.choice(fleet.daemons)
                await until(lambda who=victim: fleet.held_by(who.pid), "it executes something")
                victim.freeze()
                stopped = time.time()
                await asyncio.sleep(2 * LEASE)  # the fault itself
                victim.thaw()
                await until(
                    lambda at=stopped: any(e.at > at + LEASE for e in rig.site.journal("end")),
                    "while one stood still, the others went on",
                )
        await rig.settles(load.accepted)
    await rig.judge(f"{scale} x SIGSTOP of a worker for two leases")


@pytest.mark.soak
@pytest.mark.parametrize("scale", [20])
async def test_leaders_killed_every_two_seconds(rig: Rig, scale: float) -> None:
    """Of three schedulers the leader dies every two seconds: no occurrence is lost or doubled."""
    site = rig.site
    settings = {"NONET_TASKS": f"{site.settings['NONET_TASKS']},acceptance.periodic_tasks"}
    fleet = rig.workers(2, slots=10, **settings)
    schedulers = [site.scheduler(**settings) for _ in range(3)]
    longest = 0.0
    began = time.time()
    while time.time() < began + scale:
        leader = await until(lambda: site.redis.hget(site.key("leader"), "owner"), "one leads")
        (victim,) = [one for one in schedulers if f"{one.pid}@" in leader]
        victim.kill()
        died = time.time()
        schedulers[schedulers.index(victim)] = site.scheduler(wait=False, **settings)
        await until(
            lambda gone=leader: site.redis.hget(site.key("leader"), "owner") not in (None, gone),
            "another one leads",
        )
        longest = max(longest, time.time() - died)
        await asyncio.sleep(max(0.0, 2 - (time.time() - died)))  # the pace of the fault
    ticks = len(site.journal("start", task="Tick"))
    await site.until_event("start", ticks + 2, task="Tick")
    for scheduler in schedulers:
        scheduler.terminate()
        scheduler.wait()
    await site.all_ended()
    fleet.daemons[0].terminate()
    starts = site.journal("start", task="Tick")
    seconds = sorted(
        round(datetime.fromisoformat(event.details["occurrence"]).timestamp()) for event in starts
    )
    assert seconds == list(range(seconds[0], seconds[-1] + 1)), "one is missing or ran twice"
    rig.accepted({event.id for event in starts})
    # Lease of a dead leader, the look of a standby, and a moment.
    await rig.judge("SIGKILL of the leading scheduler every 2 s", recovery=longest, within=4)
