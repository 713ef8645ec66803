"""Which waiting task runs first: by priority and age, and a writer before later readers."""

from __future__ import annotations

from acceptance.contention import in_order, waits, workers
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site

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
