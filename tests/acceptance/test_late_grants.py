"""Locks that were granted to a worker which could not look at them before they had ended."""

from __future__ import annotations

from acceptance.contention import overlaps, spans
from acceptance.lock_tasks import HoggingAtGrant, Holding
from acceptance.site import SHORT, Site
from waits import until

TASKS = "acceptance.lock_tasks"


async def test_a_task_does_not_start_after_its_locks_have_ended(site: Site) -> None:
    """A loop is blocked for longer than the TTL of the locks that it is granted meanwhile.

    Another worker takes them; the task that is late does not start beside that holder.
    """
    site.settings |= SHORT
    late_gate, held_gate = site.gate(), site.gate()
    late_worker = site.worker("--concurrency", "4")
    async with site.app() as app:
        await site.begin(app, HoggingAtGrant(late_gate))
        late = await app.submit(Holding(["M a"]))
        await until(lambda: site.redis.exists(site.key("lock:mutex:job:a")), "it is granted")
        other = site.worker()
        holder = await app.submit(Holding(["M a"], gate=held_gate))
        (start,) = await site.started(holder)
        assert start.pid == other.pid
        site.open(late_gate)
        await until(
            lambda: (
                f"task {late}: attempt voided" in late_worker.log or site.journal("start", id=late)
            ),
            "the late task is voided, or runs",
        )
        assert site.journal("start", id=late) == [], "it runs beside the holder"
        site.open(held_gate)
        await site.all_ended()
        assert (await app.status(late)).state == "done"
    assert [span.id for span in spans(site)] == [holder, late]
    assert overlaps(spans(site)) == []
