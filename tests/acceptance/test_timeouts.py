"""Tasks that take longer than they may, in real workers."""

from __future__ import annotations

from acceptance.override_tasks import Hanging, Saving
from acceptance.probe_tasks import Quick
from acceptance.site import PROBES, Site, failure, run, stop
from waits import WAIT_SECONDS, until

TASKS = f"{PROBES},acceptance.override_tasks"


async def test_a_limit_is_a_failed_attempt(site: Site) -> None:
    """Its slot is free; code that runs on is void when it asks, and never commits."""
    gate, worker = site.gate(), site.worker("--concurrency", "2")
    async with site.app() as app:
        handle = await app.submit(Hanging(gate))
        failed = await failure(app, handle)
        assert failed.error_type == "TaskTimeoutError"
        assert "hard timeout of " in str(failed)
        assert [item.attempt for item in site.journal("start")] == [1, 2]
        assert await run(app, Quick(3)) == 3
        saved = await run(app, Saving(site.gate()))
        assert saved == "half of it", "a cancelled task may save a checkpoint for its next attempt"
        site.open(gate)
        await site.until_event("rolled back", 2)
        voided = await site.until_event("voided", 2)
        assert {item.details["error"] for item in voided} == {"LeaseLostError"}
        assert (await handle.status()).state == "dead"
    assert site.journal("committed") == []
    assert stop(worker) == [0]


async def test_abandoned_threads_take_slots_once_they_are_as_many_as_slots(site: Site) -> None:
    """The worker reports that it must be restarted, and ends with 0 though one still runs."""
    worker, gate = site.worker("--concurrency", "1"), site.gate()
    async with site.app() as app:
        await failure(app, Hanging(gate))
        await until(lambda: "restart this worker" in worker.log, "it says so")
        waiting = await app.submit(Quick(3))
        assert (await waiting.status()).state == "queued"
        site.open(gate)
        assert await waiting.result(timeout=WAIT_SECONDS) == 3
        await failure(app, Hanging(site.gate()))
    assert stop(worker) == [0]
