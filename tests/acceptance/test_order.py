"""What a worker takes, and how much of it: promises 4 and 5."""

from __future__ import annotations

from acceptance.probe_tasks import BlockingThread, Gated, Quick
from acceptance.site import Site, submit_all
from waits import until


async def test_priority_is_strict(site: Site) -> None:
    """A busy worker takes realtime, then normal, then background, whatever was queued first."""
    gate = site.gate()
    site.worker("--concurrency", "1")
    async with site.app() as app:
        await site.begin(app, Gated(gate))
        queued = {
            priority: await submit_all(app, [Quick(), Quick()], labels={"priority": priority})
            for priority in ("background", "normal", "realtime")
        }
        site.open(gate)
        await site.all_ended()
    order = [event.id for event in site.journal("start", task="Quick")]
    assert order == [*queued["realtime"], *queued["normal"], *queued["background"]]


async def test_worker_takes_no_more_than_its_free_slots(site: Site) -> None:
    """Of 50 queued tasks a worker of three slots never holds more than three unended ones."""
    gate = site.gate()
    site.worker("--concurrency", "3")
    held = []
    async with site.app() as app:
        await submit_all(app, [Gated(gate) for _ in range(50)])

        def look() -> None:
            taken = 50 - (site.entries() - site.pending())
            held.append(taken - len(site.journal("end")))

        await until(lambda: len(site.journal("start")) == 3, "three tasks run")
        look()
        site.open(gate)
        while site.live():
            look()
    assert max(held) == 3
    assert len(site.journal("end")) == 50


async def test_plain_functions_run_in_few_threads(site: Site) -> None:
    """A worker of 100 slots holds one more of them than it runs; the others are for a second one.

    Drained, it hands the waiting one back.
    """
    gate = site.gate()
    async with site.app() as app:
        await submit_all(app, [BlockingThread(gate) for _ in range(9)])
        first = site.worker(NONET_THREADS="2")
        await until(lambda: site.pending() == 3, "two run and one waits")
        site.worker(NONET_THREADS="2")
        await until(lambda: site.pending() == 6, "another worker has taken as many")
        assert len(await site.until_event("start", 4)) == 4
        first.terminate()
        await until(lambda: site.pending() == 5, "it gives back the one that waits")
        site.open(gate)
        assert first.wait() == 0
        await site.all_ended()
    assert sorted(event.attempt for event in site.journal("start")) == [1] * 9
