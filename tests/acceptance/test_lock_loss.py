"""Holders that are killed, and woken tasks that nobody takes: how soon the next one runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from acceptance.contention import PATIENCE, PRODUCTION, in_order, parked, scales, waits, workers
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site
from daemons import until

# What is held, and what is refused by it.
_RIVALS = {"M mutex": "M mutex", "W page": "R page", "R book": "W book", "C slot 1": "C slot 1"}


@dataclass(frozen=True)
class Leases:
    lock_ttl: float
    lease: float


@scales(Leases(1, 2), Leases(30, 45))
async def test_locks_of_a_killed_worker_end_with_their_ttl(contended: Site, scale: Leases) -> None:
    """Who waits for a lock of any kind runs within its TTL and 2 s after the holder was killed."""
    site = contended
    site.settings |= {"NONET_LOCK_TTL": str(scale.lock_ttl), "NONET_LEASE": str(scale.lease)}
    gate, victim = site.gate(), site.worker()
    async with site.app() as app:
        for held in _RIVALS:
            await site.started(await app.submit(Holding([held], gate=gate)))
        other = site.worker()
        rivals = {held: await app.submit(Holding([rival])) for held, rival in _RIVALS.items()}
        for rival in rivals.values():
            await waits(site, rival)
        victim.kill()
        killed = time.time()
        limit = f"a lock TTL of {scale.lock_ttl:g} s and 2 s"
        starts = {}
        for held, rival in rivals.items():
            await until(
                lambda rival=rival: site.journal("start", id=rival), f"{limit} are over", seconds=90
            )
            (event,) = site.journal("start", id=rival)
            assert event.pid == other.pid
            starts[held] = event.at - killed
        site.open(gate)
        await site.all_ended(seconds=3 * scale.lease + PATIENCE)
    print(
        f"\nkilled holder, lock TTL {scale.lock_ttl:g} s; the waiter ran after "
        + ", ".join(f"{took:.2f} s ({held.split()[0]})" for held, took in starts.items())
    )
    assert max(starts.values()) <= scale.lock_ttl + 2


def asked_ms_ago(site: Site, size: str) -> int:
    """How long ago a worker of a size asked for tasks, or a fetch of it that waited was made."""
    consumers = site.redis.xinfo_consumers(site.key(f"tasks:normal:{size}"), "workers")
    return min(int(consumer["idle"]) for consumer in consumers)


async def test_a_woken_task_that_nobody_takes_lets_others_run(contended: Site) -> None:
    """While the only worker of its size is frozen its reservation lapses after 5 s.

    It keeps its ticket.
    """
    site = contended
    medium = site.worker(size="medium", wait=False, **PRODUCTION)
    workers(site, 1, slots=2, **PRODUCTION)
    medium.wait_ready()
    async with site.app() as app:
        async with app.hold(lock_of("M a")):
            untaken = await app.submit(Holding(["M a"]), labels={"size": "medium"})
            await waits(site, untaken)
            medium.freeze()
            await until(lambda: asked_ms_ago(site, "medium") > 2100, "it waits in Redis no more")
            behind = await app.submit(Holding(["M a"]))
            await waits(site, behind)
            released = time.time()
        (start,) = await site.started(behind)
        assert site.journal("start", id=untaken) == []
        async with app.hold(lock_of("M a"), wait=5):  # the one behind may still run
            younger = await app.submit(Holding(["M a"]))
            await waits(site, younger)
            medium.thaw()
            await parked(site, "M a", 2)
        await site.all_ended()
    print(f"\nbehind a woken task that nobody took: ran {start.at - released:.2f} s after release")
    assert 4.5 <= start.at - released <= 5 + 2
    assert in_order(site, [untaken, younger]) == [untaken, younger]
