"""A lock that is taken away from a live worker by hand, and what explain says of real workers."""

from __future__ import annotations

from acceptance.probe_tasks import GatedMutex, Quick
from acceptance.site import SHORT, Site
from waits import WAIT_SECONDS, until

NAME = "lock:mutex:job:shared"
WHO = "operator@here 1"


async def test_a_forced_release_moves_the_lock_and_runs_both(site: Site) -> None:
    """The holder is cancelled at its next renewal, the next waiter starts, both end once.

    The attempt that lost its lock is refused when it settles; its task uses no attempt.
    """
    settles = site.settles()
    stuck, free = site.gate(), site.gate()
    site.settings |= SHORT
    worker = site.worker()
    async with site.app() as app:
        board = app.stores.locks
        holder = await app.submit(GatedMutex(stuck))
        (first,) = await site.started(holder)
        waiter = await app.submit(GatedMutex(free))
        await until(lambda: site.parked(waiter), "the second one waits")
        text = (await app.explain(waiter)).text
        assert text.startswith(f"waiting for {NAME}, held for ")
        assert f" by task {holder} (probe_tasks:GatedMutex on {worker.pid}@" in text
        assert f"running on {worker.pid}@" in (await app.explain(holder)).text

        done = await board.release(NAME, WHO)
        assert [item.id for item in done.voided] == [holder] and done.woken == (waiter,)
        await site.until_event("cancelled", id=holder)
        (second,) = await site.started(waiter)
        stale = await until(
            lambda: site.redis.hget(site.key("counters"), "settle:stale"), "a settle was refused"
        )
        assert f" by task {waiter}" in (await app.explain(holder)).text
        site.open(free)
        await waiter.result(timeout=WAIT_SECONDS)
        _, again = await site.started(holder, 2)
        site.open(stuck)
        await holder.result(timeout=WAIT_SECONDS)
    assert (first.attempt, again.attempt) == (1, 1)
    assert first.fence < second.fence < again.fence
    assert (stale, settles()) == ("1", {str(holder): 1, str(waiter): 1})
    await site.all_ended()


async def test_explain_follows_a_task_through_its_life(site: Site) -> None:
    """No worker; then a full one; then it runs; then it has ended."""
    gate = site.gate()
    async with site.app() as app:
        first = await app.submit(GatedMutex(gate))
        last = await app.submit(Quick())
        assert (await app.explain(last)).cause == "worker"
        worker = site.worker("--concurrency", "1")
        await site.started(first)
        found = await app.explain(last)
        assert (found.cause, found.ahead) == ("queue", 0)
        assert "The only live small worker is busy (1 slot); it starts when" in found.text
        assert (await app.explain(first)).worker.startswith(f"{worker.pid}@")
        site.open(gate)
        await last.result(timeout=WAIT_SECONDS)
        assert (await app.explain(last)).text == "done"
