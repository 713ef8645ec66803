"""What explain says of real workers."""

from __future__ import annotations

from acceptance.probe_tasks import GatedMutex, Quick
from acceptance.site import Site
from waits import WAIT_SECONDS


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
