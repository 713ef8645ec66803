"""Locks of workers that are killed."""

from __future__ import annotations

from acceptance.contention import waits
from acceptance.lock_tasks import Holding
from acceptance.site import SHORT, Site

TASKS = "acceptance.lock_tasks"
# What is held, and what is refused by it.
RIVALS = {"M mutex": "M mutex", "W page": "R page", "R book": "W book", "C slot 1": "C slot 1"}


async def test_locks_of_a_killed_worker_end_with_their_ttl(site: Site) -> None:
    """A task that waits for a lock of any kind runs once the lease of its killed holder is over."""
    gate, victim = site.gate(), site.worker(**SHORT)
    async with site.app() as app:
        for held in RIVALS:
            await site.begin(app, Holding([held], gate=gate))
        other = site.worker(**SHORT)
        rivals = [await app.submit(Holding([rival])) for rival in RIVALS.values()]
        for rival in rivals:
            await waits(site, rival)
        victim.kill()
        for rival in rivals:
            (start,) = await site.started(rival)
            assert start.pid == other.pid
        site.open(gate)
        await site.all_ended()
