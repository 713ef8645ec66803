"""What a worker takes, and how much of it: promises 4 and 5."""

from __future__ import annotations

import time

from acceptance.probe_tasks import Gated, Quick, TwoAtATime
from acceptance.site import Site, submit_all
from daemons import until


async def test_priority_is_strict(site: Site) -> None:
    """A busy worker takes realtime, then normal, then background, whatever was queued first."""
    gate = site.gate()
    site.worker("--concurrency", "1")
    async with site.app() as app:
        busy = await app.submit(Gated(gate))
        await site.started(busy)
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


async def test_sizes_do_not_mix(site: Site) -> None:
    """A task goes to a worker of its size: a label may choose another one than the class."""
    small = site.worker()
    site.worker(size="large")
    async with site.app() as app:
        handles = await app.submit_many([Quick() for _ in range(5)], labels={"size": "large"})
        for handle in handles:
            await handle.result(timeout=10)
    used = {event.pid for event in site.journal("start")}
    assert len(used) == 5, "a process each"
    assert small.alive and small.pid not in used


async def test_limiter_holds_across_workers(site: Site) -> None:
    """Twelve tasks under a limit of two, on two workers: never more than two at a time."""
    site.worker()
    site.worker()
    async with site.app() as app:
        await submit_all(app, [TwoAtATime() for _ in range(12)])
        await site.all_ended()
    running, most = 0, 0
    for event in site.journal():
        running += 1 if event.event == "start" else -1
        most = max(most, running)
    assert len(site.journal("end")) == 12
    assert most <= 2


async def test_idle_worker_starts_at_once(site: Site) -> None:
    """A task wakes an idle worker: it does not wait for a poll."""
    worker = site.worker()
    async with site.app() as app:
        latencies = []
        for _ in range(5):
            await until(
                lambda: site.redis.zscore(site.key("idle:small"), worker.incarnation),
                "the worker is idle",
            )
            began = time.time()
            handle = await app.submit(Quick())
            await handle.result(timeout=10)
            latencies.append(site.journal("start", id=handle)[0].at - began)
    # The bounded poll behind the wake-up takes up to 2 s: five of them would show.
    assert sorted(latencies)[2] < 0.5, latencies
