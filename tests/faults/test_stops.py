"""Stopping is at least as kind as crashing, also with a long backlog and amid kills."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import pytest
import records
from acceptance.probe_tasks import Gated
from acceptance.site import STREAM
from faults.fault_tasks import Timed
from faults.rig import Rig
from waits import until

SLOTS = 10


@dataclass(frozen=True)
class Backlog:
    tasks: int
    slots: int
    grace: float


@pytest.mark.soak
@pytest.mark.parametrize("scale", [Backlog(10_000, 100, 5.0)])
async def test_stop_with_a_backlog(rig: Rig, scale: Backlog) -> None:
    """SIGTERM: the exit comes with the grace, nothing stays pending, the backlog is intact."""
    site = rig.site
    gate = site.gate()
    worker = site.worker("--concurrency", str(scale.slots), "--grace", f"{scale.grace:g}")
    async with site.app() as app:
        ids = await rig.submit(app, [Gated(gate) for _ in range(scale.tasks)])
        await site.until_event("start", scale.slots)
        worker.terminate()
        began = time.monotonic()
        await until(lambda: not worker.alive, "the worker has ended")
        took = time.monotonic() - began
        assert worker.wait() == 1, worker.log[-2000:]
        assert (site.entries(), site.pending()) == (scale.tasks, 0)
        assert site.consumers(site.key(STREAM)) == set()
        found = [records.paired(records.hgetall(site.redis, site.key(f"t:{id}"))) for id in ids]
        states = Counter((record["state"], record.get("attempt", "0")) for record in found)
        assert states == {("queued", "0"): scale.tasks}
        assert not any(record.get("deaths") for record in found)
        assert len(site.journal("start")) == scale.slots
        site.open(gate)
        site.worker("--concurrency", str(scale.slots))
        await rig.settles(ids)
    assert {event.attempt for event in site.journal("start")} == {1}
    await rig.judge(
        f"SIGTERM, grace {scale.grace:g} s, backlog of {scale.tasks}",
        recovery=took,
        within=scale.grace + 2,
    )


@pytest.mark.soak
@pytest.mark.parametrize("scale", [15])
async def test_stops_and_kills_in_turn(rig: Rig, scale: int) -> None:
    """Workers are replaced all the time, every other one without being asked."""
    site = rig.site
    fleet = rig.workers(3, slots=SLOTS)
    async with site.app() as app:
        ids = await rig.submit(app, [Timed(0.3) for _ in range(80 * scale)])
        stopped = []
        for _ in range(scale):
            due = time.monotonic() + 0.8
            leaver = fleet.daemons.pop(0)
            leaver.terminate()
            stopped.append(leaver)
            fleet.daemons.append(fleet.hire())
            fleet.kill_one()
            await asyncio.sleep(max(0.0, due - time.monotonic()))  # the pace of the fault
        await rig.settles(ids)
        codes = {daemon.wait() for daemon in stopped}
    assert codes <= {0, 143}, "each drained, or had not even begun"
    repetitions = len(site.journal("start")) - len(ids)
    # Not only what they were executing: also what had ended and was not settled yet.
    assert repetitions <= SLOTS * len(fleet.deaths)
    await rig.judge(f"{scale} x SIGTERM and {scale} x SIGKILL of workers in turn")
