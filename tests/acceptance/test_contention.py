"""Many tasks on few locks: nobody overlaps, nothing stands still, and what that costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from acceptance.contention import (
    PATIENCE,
    PRODUCTION,
    Commands,
    in_order,
    overlaps,
    parked,
    scales,
    spans,
    workers,
)
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site, submit_all
from daemons import Daemon, frozen
from waits import until

from nonet import Nonet

# Figures are held at full size, on a machine of one's own. A scaled run shares its machine: its
# bounds only tell what goes on at once from what waits to be found by a look or a lease, and leave
# room for the beats of daemons that take long.


@dataclass(frozen=True)
class OneMutex:
    tasks: int
    within: float
    commands: int
    seconds: float = 0.01


@scales(OneMutex(150, within=20, commands=90), OneMutex(5000, within=1.5, commands=85))
async def test_one_mutex_is_handed_on_without_a_pause(contended: Site, scale: OneMutex) -> None:
    """Tasks on one mutex take at most 1.5 times their own time, in the order of their tickets.

    From submit to settle each costs at most 85 commands, those inside scripts included, and 6
    calls. At its turn it takes 60; the rest are looks at those who wait a minute, and the walk over
    all keys.
    """
    site = contended
    workers(site, 2, slots=4, **PRODUCTION)
    counted = Commands(site.redis)
    async with site.app() as app:
        ids = await submit_all(app, [Holding(["M a"], scale.seconds) for _ in range(scale.tasks)])
        await app.result(ids[-1], timeout=scale.tasks * scale.seconds * 3 + PATIENCE)
        commands, calls = counted()
    runs = spans(site)
    took, ideal = runs[-1].end - runs[0].start, scale.tasks * scale.seconds
    print(
        f"\n{scale.tasks} tasks of {scale.seconds * 1000:g} ms on one mutex, 8 slots: "
        f"{took:.2f} s, {took / ideal:.2f} times the ideal; "
        f"{commands / scale.tasks:.1f} commands and {calls / scale.tasks:.2f} calls per task"
    )
    assert overlaps(runs) == []
    assert in_order(site, ids) == ids
    assert len(runs) == scale.tasks
    assert took <= scale.within * ideal
    assert commands <= scale.commands * scale.tasks
    assert calls <= 6 * scale.tasks


@dataclass(frozen=True)
class Depths:
    few: int
    many: int


@scales(Depths(100, 1000), Depths(100, 10_000))
async def test_many_waiters_cost_each_no_more_than_few(contended: Site, scale: Depths) -> None:
    """With many waiters on one mutex each costs within 10 % of the commands of a few."""
    site = contended
    workers(site, 2, slots=4, **PRODUCTION)
    costs = []
    async with site.app() as app:
        for count in (scale.few, scale.many):
            counted = Commands(site.redis)
            async with app.hold(lock_of("M a")):
                ids = await submit_all(app, [Holding(["M a"]) for _ in range(count)])
                await parked(site, "M a", count)
            await app.result(ids[-1], timeout=count * 0.02 + PATIENCE)
            costs.append(counted()[0] / count)
            assert in_order(site, ids) == ids
    few, many = costs
    print(
        f"\ncommands per task from submit to settle: {few:.1f} with {scale.few} waiters, "
        f"{many:.1f} with {scale.many}"
    )
    assert many <= 1.1 * few


@dataclass(frozen=True)
class Crowd:
    waiters: int
    behind: float
    beside: float


@scales(Crowd(1000, behind=20, beside=2), Crowd(10_000, behind=1, beside=0.05))
async def test_a_free_task_does_not_wait_behind_blocked_ones(contended: Site, scale: Crowd) -> None:
    """Behind many blocked tasks a free one starts within 1 s, within 50 ms once they are parked."""
    site = contended
    (worker,) = workers(site, 1, slots=8, **PRODUCTION)
    async with site.app() as app:
        alone = [await latency(site, app, worker) for _ in range(5)]
        async with app.hold(lock_of("M a")):
            with frozen(worker):
                blocked = await submit_all(app, [Holding(["M a"]) for _ in range(scale.waiters)])
                free = await app.submit(Holding([]))
                thawed = time.time()
            (start,) = await site.started(free)
            await parked(site, "M a", scale.waiters)
            beside = [await latency(site, app, worker) for _ in range(5)]
            for id in blocked:  # their run is the subject of others
                site.redis.delete(*(site.key(f"{kind}:{id}") for kind in "tbl"))
            site.redis.delete(site.key("tasks:delayed"), site.key("queue:lock:mutex:job:a"))
    print(
        f"\na free task behind {scale.waiters} blocked ones: {(start.at - thawed) * 1000:.0f} ms; "
        f"once they are parked {statistics.median(beside) * 1000:.1f} ms (alone "
        f"{statistics.median(alone) * 1000:.1f} ms)"
    )
    assert start.at - thawed <= scale.behind
    assert statistics.median(beside) <= scale.beside


async def latency(site: Site, app: Nonet, worker: Daemon) -> float:
    """Seconds from submitting a free task to an idle worker until it starts."""
    idle = site.key("idle:small")
    await until(lambda: site.redis.zscore(idle, worker.incarnation), "the worker is idle")
    began = time.time()
    handle = await app.submit(Holding([]))
    await handle.result(timeout=PATIENCE)
    return site.journal("start", id=handle)[0].at - began


def stop(started: Sequence[Daemon]) -> None:
    """End workers that have nothing to do."""
    for worker in started:
        worker.terminate()
    for worker in started:
        assert worker.wait() == 0
