"""Periodic entries while their schedulers are killed, stopped and restarted."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from itertools import pairwise

from acceptance.contention import scales
from acceptance.site import PROBES, SHORT, Site, stop
from daemons import Daemon
from waits import until

TASKS = f"{PROBES},acceptance.periodic_tasks"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@scales(scaled=1, full=20)
async def test_each_occurrence_is_fired_once_whatever_happens_to_the_leaders(
    site: Site, scale: int
) -> None:
    """The leaders of three schedulers killed, frozen and stopped: each second once, on one grid."""
    site.settings |= SHORT
    site.worker()
    daemons = [site.scheduler() for _ in range(3)]
    blows = ["killed", "frozen", "stopped"] * scale
    random.Random(scale).shuffle(blows)
    for blow in blows:
        await _ticked(site, 2)
        (victim,) = await until(lambda: _leaders(site, daemons), "a scheduler leads")
        if blow == "frozen":
            victim.freeze()
            await until(lambda one=victim: _leaders(site, daemons, but=one), "another one leads")  # type: ignore[misc]
            victim.thaw()
            continue
        victim.kill() if blow == "killed" else victim.terminate()
        victim.wait()
        daemons[daemons.index(victim)] = site.scheduler()
    await _ticked(site, 2)
    for daemon in daemons:
        daemon.kill()
    await site.all_ended()
    _lie_on_one_grid(site, seconds=1)


async def test_restarts_neither_lose_nor_shift_an_interval(site: Site) -> None:
    """A scheduler restarted more often than its entry fires: the entry runs at its interval."""
    config = site.write(
        "nonet.yaml",
        "common:\n  periodic-tasks:\n    Tick:\n"
        "      - schedule: {class: IntervalSecondsSchedule, arg: 2}\n"
        "        misfire-grace: 60\n",
    )
    site.worker()
    scheduler = site.scheduler("--config", config)
    for _ in range(5):
        await asyncio.sleep(0.5)  # less than the interval: some of them fire nothing
        assert stop(scheduler) == [0]
        scheduler = site.scheduler("--config", config)
    await site.until_event("start", 3, task="Tick")
    scheduler.kill()
    await site.all_ended()
    _lie_on_one_grid(site, seconds=2)


def _leaders(site: Site, daemons: list[Daemon], but: Daemon | None = None) -> list[Daemon]:
    """The scheduler that leads now, if it is one of these."""
    owner = site.redis.hget(site.key("leader"), "owner") or ""
    return [one for one in daemons if one is not but and owner.startswith(f"{one.pid}@")]


async def _ticked(site: Site, times: int) -> None:
    """Wait until the entry was executed so often from now on."""
    count = len(site.journal("start", task="Tick"))
    await site.until_event("start", count + times, task="Tick")


def _lie_on_one_grid(site: Site, seconds: int) -> None:
    """Each point of the grid of the epoch between the first and the last was executed, once."""
    found = sorted(
        datetime.fromisoformat(event.details["occurrence"])
        for event in site.journal("start", task="Tick")
    )
    assert (found[0] - EPOCH).total_seconds() % seconds == 0
    steps = {(later - earlier).total_seconds() for earlier, later in pairwise(found)}
    assert steps == {seconds}, "an occurrence is missing or doubled, or the grid has shifted"
