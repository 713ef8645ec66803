"""Holders that are killed, and woken tasks that nobody takes: how soon the next one runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from acceptance.contention import PATIENCE, scales, waits
from acceptance.lock_tasks import Holding
from acceptance.site import Site
from waits import until

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
