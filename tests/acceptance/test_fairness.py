"""Who comes first: priorities, age, writers among readers, limiters, and programs that hold."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import cycle

from acceptance.contention import (
    PATIENCE,
    PRODUCTION,
    in_order,
    parked,
    queue_length,
    scales,
    spans,
    waits,
    workers,
)
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site, submit_all
from daemons import Daemon, until

from nonet import BaseTask, Nonet


async def test_waiters_run_by_priority_then_by_ticket(contended: Site) -> None:
    """Of those who wait for a mutex realtime comes first, background last; within, the oldest."""
    site = contended
    workers(site, 2, slots=2, **PRODUCTION)
    queued: dict[str, list[str]] = {}
    async with site.app() as app:
        async with app.hold(lock_of("M a")):
            for priority in ("background", "normal", "realtime") * 3:
                handle = await app.submit(Holding(["M a"]), labels={"priority": priority})
                queued.setdefault(priority, []).append(str(handle))
                await waits(site, handle)
        await site.all_ended()
    order = in_order(site, [id for ids in queued.values() for id in ids])
    assert order == [*queued["realtime"], *queued["normal"], *queued["background"]]


async def test_who_has_waited_for_long_counts_as_realtime(contended: Site) -> None:
    """A background task that has waited for the time of aging goes before younger realtime ones."""
    site = contended
    workers(site, 2, slots=2, **PRODUCTION, NONET_LOCK_AGING="0.5")
    async with site.app() as app:
        async with app.hold(lock_of("M a")):
            old = str(await app.submit(Holding(["M a"]), labels={"priority": "background"}))
            key = site.key(f"t:{old}")
            await until(lambda: site.redis.hget(key, "aged") == "1", "it has come of age")
            young = str(await app.submit(Holding(["M a"]), labels={"priority": "realtime"}))
            await parked(site, "M a", 2)
        await site.all_ended()
    assert in_order(site, [old, young]) == [old, young]


@dataclass(frozen=True)
class Reading:
    seconds: float
    before: int


@scales(Reading(0.6, 4), Reading(5.0, 12))
async def test_a_writer_gets_in_among_endless_readers(contended: Site, scale: Reading) -> None:
    """Readers that overlap without end let a writer start within one reader's time and 1 s."""
    site = contended
    workers(site, 2, slots=4)
    async with site.app() as app:
        readers = asyncio.create_task(
            _endless(app, Holding(["R doc"], scale.seconds), every=scale.seconds / 3)
        )
        await site.until_event("end", times=scale.before)
        asked = time.time()
        writer = await app.submit(Holding(["W doc"]))
        (start,) = await site.started(writer)
        readers.cancel()
        await site.all_ended(seconds=scale.seconds * 10 + PATIENCE)
    runs = [run for run in spans(site) if run.id != writer]
    earlier = [run for run in runs if run.start < asked]
    print(
        f"\nwriter among readers of {scale.seconds:g} s: started {start.at - asked:.2f} s after it "
        f"was submitted, behind {len(earlier)} readers, before {len(runs) - len(earlier)}"
    )
    gaps = [b.start - max(a.end for a in runs[: n + 1]) for n, b in enumerate(earlier[1:])]
    assert max(gaps) < 0, "the readers did not overlap: the test has missed its point"
    assert all(run.end <= start.at or run.start >= start.at for run in runs)
    assert start.at - asked <= scale.seconds + 1.0


async def _endless(app: Nonet, *tasks: BaseTask, every: float) -> None:
    """Submit these tasks in turn until cancelled."""
    for task in cycle(tasks):
        await app.submit(task)
        await asyncio.sleep(every)  # a load, not a wait for something


async def test_waiting_for_a_limiter_reserves_no_lock(contended: Site) -> None:
    """A mutex goes to younger tasks while an older one that needs it waits for a rate limit."""
    site = contended
    workers(site, 1, slots=4, **PRODUCTION)
    async with site.app() as app:
        await (await app.submit(Holding(["L hourly 1 3600"]))).result(timeout=PATIENCE)
        limited = await app.submit(Holding(["M a", "L hourly 1 3600"]))
        await waits(site, limited)
        younger = await submit_all(app, [Holding(["M a"], 0.01) for _ in range(20)])
        await until(lambda: len(in_order(site, younger)) == 20, "the younger have run")
        assert site.journal("start", id=limited) == []
        assert queue_length(site, "M a") == 0
        site.redis.delete(site.key("limiter:rate:job:hourly"))
        site.hurry(limited)
        await limited.result(timeout=PATIENCE)
        await site.all_ended()


async def test_an_aged_task_gets_a_busy_lock_and_a_full_limiter(contended: Site) -> None:
    """A task that needs both, neither of which is ever free, runs soon after it has come of age."""
    site = contended
    workers(site, 2, slots=8, **PRODUCTION, NONET_LOCK_AGING="1")
    async with site.app() as app:
        # Of different lengths, so that the two are never given back at one time.
        load = [
            asyncio.create_task(_endless(app, Holding([lock], took), every=took * 0.9))
            for lock, took in (("M a", 0.31), ("C b 1", 0.43))
        ]
        await until(lambda: queue_length(site, "M a") and queue_length(site, "C b 1"), "both wait")
        asked = time.time()
        both = await app.submit(Holding(["M a", "C b 1"]))
        (start,) = await site.started(both)
        for feeder in load:
            feeder.cancel()
        await site.all_ended(seconds=PATIENCE)
    took = start.at - asked
    print(f"\nneeds a busy mutex and a full limiter, of age at 1 s: ran after {took:.2f} s")
    assert took <= 1 + 0.31 + 0.43 + 2


@dataclass(frozen=True)
class Crowd:
    waiters: int


@scales(Crowd(200), Crowd(1000))
async def test_a_hold_takes_its_turn_among_tasks(contended: Site, scale: Crowd) -> None:
    """A program that waits for a lock comes before all tasks that wait, as a realtime one would.

    Nobody overtakes it, and nobody runs while it holds.
    """
    site = contended
    workers(site, 2, slots=4, **PRODUCTION)
    granted = asyncio.Event()
    leave = asyncio.Event()

    async def hold(app: Nonet) -> None:
        async with app.hold(lock_of("M a"), wait=PATIENCE):
            granted.set()
            await leave.wait()

    async with site.app() as app:
        async with app.hold(lock_of("M a")):
            ids = await submit_all(app, [Holding(["M a"], 0.001) for _ in range(scale.waiters)])
            await parked(site, "M a", scale.waiters)
            holding = asyncio.create_task(hold(app))
            await parked(site, "M a", scale.waiters + 1)
            realtime = await app.submit(Holding(["M a"]), labels={"priority": "realtime"})
            await parked(site, "M a", scale.waiters + 2)
            released = time.time()
        async with asyncio.timeout(PATIENCE):
            await granted.wait()
        took = time.time() - released
        assert site.journal("start") == []
        leave.set()
        await holding
        await app.result(ids[-1], timeout=PATIENCE)
        await site.all_ended()
    print(f"\nhold among {scale.waiters} waiting tasks: granted {took * 1000:.0f} ms after release")
    assert in_order(site, [*ids, realtime]) == [str(realtime), *ids]
    assert took <= 1.0


_HOLDER = """
import asyncio
from nonet import MutexLock, Nonet

async def main():
    async with Nonet.from_settings() as app, app.hold(MutexLock("job", "a"), wait=600):
        pass

asyncio.run(main())
"""


async def test_a_killed_program_that_waited_holds_up_nobody_for_long(contended: Site) -> None:
    """The turn of a hold whose program is gone passes to the next within its reservation of 5 s."""
    site = contended
    workers(site, 1, slots=4, **PRODUCTION)
    async with site.app() as app:
        async with app.hold(lock_of("M a")):
            program = _waiting_program(site)
            await parked(site, "M a", 1)
            behind = await app.submit(Holding(["M a"]))
            await parked(site, "M a", 2)
            program.kill()
            released = time.time()
        (start,) = await site.started(behind)
        await site.all_ended()
    print(f"\nbehind a killed program that waited: ran {start.at - released:.1f} s after release")
    assert start.at - released <= 5 + 2


@scales(True, False)
async def test_a_program_that_asks_no_more_is_forgotten(contended: Site, scale: bool) -> None:
    """A hold whose program is gone leaves every queue within some 15 s, and no key stays."""
    hurried, site = scale, contended
    workers(site, 1, slots=1, **PRODUCTION)
    async with site.app() as app, app.hold(lock_of("M a")):
        program = _waiting_program(site)
        await parked(site, "M a", 1)
        (id,) = site.redis.zrange(site.key("queue:lock:mutex:job:a"), 0, -1)
        program.kill()
        killed = time.time()
        if hurried:  # as if it had asked eleven seconds ago, and was looked at now
            site.redis.hincrby(site.key(f"t:{id}"), "seen", -11_000_000)
            site.hurry(id)
        await until(lambda: not site.redis.exists(site.key(f"t:{id}")), "it is forgotten")
        took = time.time() - killed
        assert queue_length(site, "M a") == 0
        assert not site.parked(id)
    print(f"\na killed program that waited was forgotten after {took:.1f} s")
    assert took <= 20


def _waiting_program(site: Site) -> Daemon:
    return site.program("python", "-c", _HOLDER)
