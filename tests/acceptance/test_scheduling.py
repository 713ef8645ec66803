"""Periodic occurrences and delayed tasks: promise 13, and punctual promotion."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from acceptance.probe_tasks import Quick
from acceptance.site import PROBES, Site
from daemons import Daemon
from waits import WAIT_SECONDS, until

PERIODIC = f"{PROBES},acceptance.periodic_tasks"
FIRED = re.compile(r"occurrence FIRED: entry=(\S*Tick\S*) at=(\S+)")


async def test_frozen_leader_does_not_lead_on_after_a_loss_of_data(site: Site) -> None:
    """Its memory is old: its successor, which fired since, goes first and repeats nothing."""
    site.worker(NONET_TASKS=PERIODIC)
    frozen = site.scheduler(NONET_TASKS=PERIODIC)
    await until(lambda: len(_fired(frozen)) >= 2, "the first scheduler has fired twice")
    frozen.freeze()
    other = site.scheduler(NONET_TASKS=PERIODIC)
    await until(lambda: len(_fired(other)) >= 4, "the standby has fired four times")
    site.redis.flushall()
    frozen.thaw()
    count = len(_fired(other))
    await until(lambda: len(_fired(other)) >= count + 3, "its successor goes on")
    ran = [event.details["occurrence"] for event in site.journal("start", task="Tick")]
    assert len(ran) == len(set(ran)), "an occurrence ran twice"
    decided = re.findall(
        r"occurrence (?:FIRED|SKIPPED): entry=\S+:Tick\|\|default at=(\S+)", other.log
    )
    instants = [datetime.fromisoformat(instant) for instant in decided]
    steps = {later - one for one, later in pairwise(instants)}
    assert steps == {timedelta(seconds=1)}, "an occurrence was neither fired nor skipped"
    for scheduler in (frozen, other):
        scheduler.kill()


async def test_schedules_of_all_kinds_and_vos(site: Site) -> None:
    """Cron, recurrence rule, an exhausted one and one per VO are planned beside each other."""
    config = site.write("nonet.yaml", "vos: [lhcb, gridpp]\n")
    scheduler = site.scheduler("--config", config, NONET_TASKS=PERIODIC)
    site.worker(NONET_TASKS=PERIODIC)
    await until(
        lambda: (
            {event.details["vo"] for event in site.journal("start", task="TickOfVo")}
            == {"lhcb", "gridpp"}
        ),
        "both VOs have ticked",
    )
    assert "ERROR" not in scheduler.log, scheduler.log
    scheduler.terminate()
    assert scheduler.wait() == 0
    await site.all_ended()
    assert {event.task for event in site.journal()} == {"Tick", "TickOfVo"}


async def test_delays_need_no_scheduler(site: Site) -> None:
    """Without any scheduler the workers promote delayed tasks, none early."""
    site.worker()
    at = datetime.now(UTC) + timedelta(seconds=1)
    async with site.app() as app:
        handles = await app.submit_many([Quick(n) for n in range(20)], at_time=at)
        for handle in handles:
            await handle.result(timeout=WAIT_SECONDS)
    assert min(event.at for event in site.journal("start")) >= at.timestamp()


async def test_standby_takes_the_delays_over(site: Site) -> None:
    """A delayed task is promoted although the leader was killed before it was due."""
    first = site.scheduler()
    await until(lambda: "leading: term=" in first.log, "the first scheduler leads")
    second = site.scheduler()
    site.worker()
    async with site.app() as app:
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        handle = await app.submit(Quick(1), at_time=at)
        first.kill()
        assert await handle.result(timeout=WAIT_SECONDS) == 1
    assert "leading: term=" in second.log


def _fired(scheduler: Daemon) -> list[datetime]:
    """The occurrences that a scheduler says it has fired."""
    found = [item for item in FIRED.findall(scheduler.log) if "TickOfVo" not in item[0]]
    return [datetime.fromisoformat(instant) for _, instant in found]
