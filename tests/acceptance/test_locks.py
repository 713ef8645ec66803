"""Locks and limiters between real workers: who waits, who is next, and what a death frees."""

from __future__ import annotations

from acceptance.contention import in_order, parked, waits, workers
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import SHORT, Site, submit_all

TASKS = "acceptance.lock_tasks"


async def test_waiters_run_by_priority_then_by_ticket(site: Site) -> None:
    """Of the tasks that wait for a mutex realtime runs first, background last, the oldest first."""
    workers(site, 2, slots=2)
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


async def test_readers_do_not_starve_a_writer(site: Site) -> None:
    """Readers that come after a writer wait behind it, though other readers still run."""
    workers(site, 2, slots=4)
    first, second = site.gate(), site.gate()
    async with site.app() as app:
        readers = [await app.submit(Holding(["R doc"], gate=first)) for _ in range(3)]
        await site.until_event("start", 3)
        writer = await app.submit(Holding(["W doc"], gate=second))
        await waits(site, writer)
        late = [await app.submit(Holding(["R doc"])) for _ in range(3)]
        for handle in late:
            await waits(site, handle)
        site.open(first)
        await site.started(writer)
        assert set(in_order(site, [*readers, *late])) == set(readers)
        site.open(second)
        await site.all_ended()
    assert in_order(site, [writer, *late])[0] == writer


RATE = "L r 10 600"


async def test_waiting_for_a_mutex_burns_no_token(site: Site) -> None:
    """Tasks that wait for a busy mutex use nothing of their rate; then as many run as it allows."""
    workers(site, 2, slots=8)
    gate, tokens = site.gate(), site.key("limiter:rate:job:r")
    async with site.app() as app:
        await site.begin(app, Holding(["M a"], gate=gate))
        ids = await submit_all(app, [Holding(["M a", RATE]) for _ in range(12)])
        await parked(site, "M a", len(ids))
        assert not site.redis.exists(tokens)
        site.open(gate)
        await site.started(ids[9])
        await parked(site, RATE, 2)
        assert in_order(site, ids) == ids[:10]
        await app.cancel(ids[10:])
        await site.all_ended()


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
