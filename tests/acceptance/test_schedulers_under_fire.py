"""Periodic entries while their schedulers are killed, stopped and restarted."""

from __future__ import annotations

import asyncio
import math
import random
import time
from datetime import UTC, datetime
from itertools import pairwise

from acceptance.contention import scales
from acceptance.site import PROBES, Site
from daemons import Daemon
from waits import until

PERIODIC = f"{PROBES},acceptance.periodic_tasks"
BLOWS = {"killed", "frozen", "stopped"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@scales(scaled=9, full=120)
async def test_each_occurrence_is_fired_once_whatever_happens_to_the_leaders(
    site: Site, scale: int
) -> None:
    """Three schedulers killed, frozen and stopped at random: each second once, on one grid."""
    choose = random.Random(scale)
    site.worker(NONET_TASKS=PERIODIC)
    daemons = [_scheduler(site) for _ in range(3)]
    await until(lambda: site.journal("start", task="Tick"), "it ticks")
    began, blows = time.time(), []
    while time.time() < began + scale:
        victim = next((one for one in daemons if _leads(site, one)), choose.choice(daemons))
        blow = choose.choice(sorted(BLOWS - set(blows[-2:])))  # each in any three
        blows.append(blow)
        if blow == "frozen":
            victim.freeze()
            await asyncio.sleep(choose.uniform(0.5, 3))  # more or less than the lease
            victim.thaw()
        else:
            victim.kill() if blow == "killed" else victim.terminate()
            victim.wait()
            daemons[daemons.index(victim)] = _scheduler(site)
        await asyncio.sleep(choose.uniform(0.5, 3))  # sometimes before there is a new leader
    ended = time.time()
    await until(
        lambda: max(_occurrences(site)) >= datetime.fromtimestamp(ended, UTC),
        "what was missed is made up for",
    )
    for daemon in daemons:
        daemon.kill()
    await site.all_ended()
    found = _occurrences(site)
    print(f"\n{len(found)} occurrences in {ended - began:.0f} s; leaders were {', '.join(blows)}")
    _lie_on_one_grid(found, seconds=1)
    assert len(found) >= scale - 1


@scales(scaled=(3, 1.5, 9), full=(10, 3, 120))
async def test_restarts_neither_lose_nor_shift_an_interval(
    site: Site, scale: tuple[int, float, int]
) -> None:
    """A scheduler restarted more often than its entry fires: the entry runs at its interval."""
    interval, pause, duration = scale
    config = site.write(
        "nonet.yaml",
        "common:\n  periodic-tasks:\n    Tick:\n"
        f"      - schedule: {{class: IntervalSecondsSchedule, arg: {interval}}}\n"
        "        misfire-grace: 60\n",
    )
    site.worker(NONET_TASKS=PERIODIC)
    scheduler = _scheduler(site, "--config", config)
    await until(lambda: _leads(site, scheduler), "the scheduler leads")
    began = ended = time.time()
    restarts = 0
    while ended < began + duration:
        await asyncio.sleep(pause)
        scheduler.terminate()
        assert scheduler.wait() == 0
        ended = time.time()
        scheduler = _scheduler(site, "--config", config)
        restarts += 1
    scheduler.kill()
    await site.all_ended()
    found = _occurrences(site)
    seconds = ended - began
    print(f"\n{len(found)} runs in {seconds:.0f} s, every {interval} s, with {restarts} restarts")
    _lie_on_one_grid(found, seconds=interval)
    assert abs(len(found) - seconds / interval) < 2  # one at each end may lie outside


def _scheduler(site: Site, *options: str) -> Daemon:
    return site.scheduler(*options, NONET_TASKS=PERIODIC)


def _leads(site: Site, daemon: Daemon) -> bool:
    return (site.redis.hget(site.key("leader"), "owner") or "").startswith(f"{daemon.pid}@")


def _occurrences(site: Site) -> list[datetime]:
    """The occurrences of the entry that were executed, in order."""
    return sorted(
        datetime.fromisoformat(event.details["occurrence"])
        for event in site.journal("start", task="Tick")
    )


def _lie_on_one_grid(found: list[datetime], seconds: int) -> None:
    """Each point of the grid of the epoch between the first and the last, once."""
    assert math.fmod((found[0] - EPOCH).total_seconds(), seconds) == 0
    steps = {(later - earlier).total_seconds() for earlier, later in pairwise(found)}
    assert steps == {seconds}, "an occurrence is missing or doubled, or the grid has shifted"
