"""Who comes first: priorities, age, writers among readers, limiters, and programs that hold."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import cycle

from acceptance.contention import PATIENCE, PRODUCTION, in_order, scales, spans, waits, workers
from acceptance.lock_tasks import Holding, lock_of
from acceptance.site import Site

from nonet import BaseTask, Nonet


async def test_waiters_run_by_priority_then_by_ticket(contended: Site) -> None:
    """Of those who wait for a mutex realtime comes first, background last; within, the oldest."""
    site = contended
    workers(site, 2, slots=2, **PRODUCTION)
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


@dataclass(frozen=True)
class Reading:
    seconds: float
    before: int


@scales(Reading(0.6, 4), Reading(5.0, 12))
async def test_a_writer_gets_in_among_endless_readers(contended: Site, scale: Reading) -> None:
    """Readers that overlap without end let a writer start within one reader's time and 1 s."""
    site = contended
    workers(site, 2, slots=4)
    async with site.app() as app:
        readers = asyncio.create_task(
            _endless(app, Holding(["R doc"], scale.seconds), every=scale.seconds / 3)
        )
        await site.until_event("end", times=scale.before)
        asked = time.time()
        writer = await app.submit(Holding(["W doc"]))
        (start,) = await site.started(writer)
        readers.cancel()
        await site.all_ended(seconds=scale.seconds * 10 + PATIENCE)
    runs = [run for run in spans(site) if run.id != writer]
    earlier = [run for run in runs if run.start < asked]
    print(
        f"\nwriter among readers of {scale.seconds:g} s: started {start.at - asked:.2f} s after it "
        f"was submitted, behind {len(earlier)} readers, before {len(runs) - len(earlier)}"
    )
    gaps = [b.start - max(a.end for a in runs[: n + 1]) for n, b in enumerate(earlier[1:])]
    assert max(gaps) < 0, "the readers did not overlap: the test has missed its point"
    assert all(run.end <= start.at or run.start >= start.at for run in runs)
    assert start.at - asked <= scale.seconds + 1.0


async def _endless(app: Nonet, *tasks: BaseTask, every: float) -> None:
    """Submit these tasks in turn until cancelled."""
    for task in cycle(tasks):
        await app.submit(task)
        await asyncio.sleep(every)  # a load, not a wait for something


@dataclass(frozen=True)
class Crowd:
    waiters: int
