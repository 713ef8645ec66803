"""Many tasks on few locks: nobody overlaps, nothing stands still, and what that costs."""

from __future__ import annotations

import heapq
import random
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
from daemons import Daemon, frozen, until

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
class Pairs:
    tasks: int
    seconds: float
    objects: int
    slots: tuple[int, ...]
    within: float
    seed: int = 7

    def draw(self) -> list[tuple[str, str]]:
        """Which two objects each task needs."""
        chosen = random.Random(self.seed)
        return [
            (f"M {a}", f"M {b}")
            for a, b in (chosen.sample(range(self.objects), 2) for _ in range(self.tasks))
        ]


@scales(Pairs(64, 0.1, 32, (8,), within=15), Pairs(256, 0.5, 128, (1, 2, 4, 8, 16), within=1.15))
async def test_locks_cost_little_more_than_waiting_in_line(contended: Site, scale: Pairs) -> None:
    """Tasks that need two objects each end within 1.15 times the strict first-in-first-out ideal.

    Their tickets exclude that anybody starts before an older task that wants one of its objects.
    """
    site = contended
    pairs = scale.draw()
    for slots in scale.slots:
        before = len(spans(site))
        started = workers(site, max(1, slots // 8), slots=min(slots, 8))
        async with site.app() as app:
            began = time.time()
            ids = await submit_all(app, [Holding(list(pair), scale.seconds) for pair in pairs])
            await site.all_ended(seconds=scale.tasks * scale.seconds * 2 + PATIENCE)
        runs = spans(site)[before:]
        took, ideal = (
            max(run.end for run in runs) - began,
            strict_ideal(pairs, scale.seconds, slots),
        )
        print(
            f"\n{scale.tasks} tasks of {scale.seconds:g} s on 2 of {scale.objects} objects, "
            f"{slots} slots: {took:.2f} s, {took / ideal:.3f} times the ideal of {ideal:.2f} s"
        )
        order = in_order(site, ids)
        for name in {name for pair in pairs for name in pair}:
            own = [id for id, pair in zip(ids, pairs, strict=True) if name in pair]
            assert overlaps([run for run in runs if run.id in own]) == []
            assert [id for id in order if id in own] == own, f"{name} was overtaken"
        assert took <= scale.within * ideal
        stop(started)


def strict_ideal(pairs: Sequence[tuple[str, str]], seconds: float, slots: int) -> float:
    """How long it takes if nobody ever overtakes an older one that wants one of its objects."""
    waiting, running, now = list(pairs), list[tuple[float, tuple[str, str]]](), 0.0
    while waiting or running:
        taken = {name for _, pair in running for name in pair}
        left = []
        for pair in waiting:
            if len(running) < slots and taken.isdisjoint(pair):
                heapq.heappush(running, (now + seconds, pair))
            else:
                left.append(pair)
            taken.update(pair)  # who waits keeps its place, too
        waiting = left
        now, _ = heapq.heappop(running)
        while running and running[0][0] <= now:
            heapq.heappop(running)
    return now


def test_the_ideal_is_that_of_waiting_in_line() -> None:
    """Three in a chain run one after the other but for who is free: the yardstick itself."""
    chain = [("a", "b"), ("b", "c"), ("c", "d")]
    assert strict_ideal(chain, 1.0, 4) == 3.0
    assert strict_ideal([*chain, ("x", "y")], 1.0, 4) == 3.0
    assert strict_ideal([("a", "b"), ("c", "d"), ("e", "f")], 1.0, 2) == 2.0


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


@dataclass(frozen=True)
class Opposite:
    tasks: int
    seconds: float = 0.002


@scales(Opposite(100), Opposite(1000))
async def test_opposite_orders_do_not_deadlock(contended: Site, scale: Opposite) -> None:
    """Tasks that name A, B and as many that name B, A all end, never two at a time, in order."""
    site = contended
    workers(site, 2, slots=4)
    orders = [["M a", "M b"], ["M b", "M a"]]
    async with site.app() as app:
        ids = await submit_all(
            app, [Holding(orders[n % 2], scale.seconds) for n in range(2 * scale.tasks)]
        )
        await app.result(ids[-1], timeout=scale.tasks * 0.05 + PATIENCE)
        await site.all_ended()
    runs = spans(site)
    print(
        f"\n{scale.tasks} tasks in each order: {runs[-1].end - runs[0].start:.2f} s, all done, "
        "no two at a time"
    )
    assert overlaps(runs) == []
    assert in_order(site, ids) == ids
