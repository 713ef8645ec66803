"""What many tasks on few locks, and many wake-ups, cost: figures, which only `make soak` takes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict

import pytest
from acceptance.blocking_tasks import Blink
from acceptance.contention import Commands, in_order, overlaps, parked, spans, workers
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site, run, submit_all
from daemons import Daemon, frozen
from waits import until

from nonet import Nonet

TASKS = "acceptance.lock_tasks,acceptance.blocking_tasks"
pytestmark = pytest.mark.soak


async def test_one_mutex_is_handed_on_without_a_pause(site: Site) -> None:
    """5000 tasks take at most 1.5 times their own time, 85 commands and 6 calls each, in order."""
    count, seconds = 5000, 0.01
    workers(site, 2, slots=4)
    counted = Commands(site.redis)
    async with site.app() as app:
        ids = await submit_all(app, [Holding(["M a"], seconds) for _ in range(count)])
        await app.result(ids[-1], timeout=count * seconds * 3 + 60)
        commands, calls = counted()
    runs = spans(site)
    took = runs[-1].end - runs[0].start
    print(f"\n{took:.2f} s; {commands / count:.1f} commands, {calls / count:.2f} calls per task")
    assert overlaps(runs) == []
    assert in_order(site, ids) == ids
    assert took <= 1.5 * count * seconds
    assert commands <= 85 * count
    assert calls <= 6 * count


async def test_many_waiters_cost_each_no_more_than_few(site: Site) -> None:
    """With 10,000 waiters on one mutex each costs within 10 % of the commands of 100."""
    workers(site, 2, slots=4)
    costs = []
    async with site.app() as app:
        for count in (100, 10_000):
            counted = Commands(site.redis)
            async with app.hold(lock_of("M a")):
                ids = await submit_all(app, [Holding(["M a"]) for _ in range(count)])
                await parked(site, "M a", count)
            await app.result(ids[-1], timeout=count * 0.02 + 60)
            costs.append(counted()[0] / count)
    print(f"\ncommands per task: {costs[0]:.1f} with 100 waiters, {costs[1]:.1f} with 10,000")
    assert costs[1] <= 1.1 * costs[0]


async def test_a_free_task_does_not_wait_behind_blocked_ones(site: Site) -> None:
    """Behind 10,000 blocked tasks one starts within 1 s, within 50 ms once they are parked."""
    (worker,) = workers(site, 1, slots=8)
    async with site.app() as app, app.hold(lock_of("M a")):
        with frozen(worker):
            blocked = await submit_all(app, [Holding(["M a"]) for _ in range(10_000)])
            free = await app.submit(Holding([]))
            thawed = time.time()
        (start,) = await site.started(free)
        await parked(site, "M a", 10_000)
        beside = statistics.median([await latency(site, app, worker) for _ in range(5)])
        for id in blocked:
            site.redis.delete(*(site.key(f"{kind}:{id}") for kind in "tbl"))
        site.redis.delete(site.key("tasks:delayed"), site.key("queue:lock:mutex:job:a"))
    print(f"\nstarted after {start.at - thawed:.3f} s, once they are parked {beside:.4f} s")
    assert start.at - thawed <= 1
    assert beside <= 0.05


async def latency(site: Site, app: Nonet, worker: Daemon) -> float:
    """Seconds from submitting a free task to an idle worker until it starts."""
    idle = site.key("idle:small")
    await until(lambda: site.redis.zscore(idle, worker.incarnation), "the worker is idle")
    began = time.time()
    await run(app, Holding([]), id=f"free-{began}")
    return site.journal("start", id=f"free-{began}")[0].at - began


@pytest.mark.parametrize(("processes", "slots", "ttl"), [(4, 16, 2), (64, 1, 30)])
async def test_no_gap_between_beats_is_longer_than_the_registration(
    site: Site, processes: int, slots: int, ttl: int
) -> None:
    """64 slots under constant wake-ups: the watchdog of each process beats in time."""
    site.settings["NONET_WORKER_TTL"] = str(ttl)
    workers(site, processes, slots=slots)
    seen: dict[str, list[int]] = defaultdict(list)

    def look() -> None:
        for name in site.redis.zrange(site.key("workers"), 0, -1):
            beat = int(site.redis.hget(site.key(f"w:{name}"), "beat") or 0)
            if beat and seen[name][-1:] != [beat]:
                seen[name].append(beat)

    deadline = time.monotonic() + 120
    async with site.app() as app:
        while time.monotonic() < deadline:
            ids = await submit_all(app, [Blink() for _ in range(processes * slots)])
            ended = asyncio.gather(*(app.result(id) for id in ids))
            while not ended.done():
                look()
                await asyncio.wait({ended}, timeout=0.02)
            ended.result()
    seconds, micros = site.redis.time()
    now = seconds * 1_000_000 + micros
    gap = max(
        later - beat
        for beats in seen.values()
        for beat, later in zip(beats, [*beats[1:], now], strict=True)
    )
    print(f"\n{processes} x {slots} slots: longest gap {gap / 1e6:.2f} of {ttl} s")
    assert len(seen) == processes, "a worker was forgotten and came back under another name"
    assert gap / 1e6 < ttl
