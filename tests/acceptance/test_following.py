"""How real daemons follow the configuration while it is edited."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise

from acceptance.site import PROBES, Site, stop
from waits import until

TASKS = f"{PROBES},acceptance.periodic_tasks"


def ticks(seconds: int) -> str:
    """A configuration in which `Tick` fires every so often, and nothing else."""
    off = "".join(
        f"    {name}: [{{enabled: false}}]\n" for name in ("AtNight", "OnMondays", "Exhausted")
    )
    schedule = f"{{class: IntervalSecondsSchedule, arg: {seconds}}}"
    return f"common:\n  periodic-tasks:\n    Tick: [{{schedule: {schedule}}}]\n{off}"


async def test_an_edited_file_holds_without_a_restart(site: Site) -> None:
    """From one second to two and back: each point of the grid that held is decided once."""
    site.worker()
    scheduler = site.scheduler("--config", site.write("config.yaml", ticks(1)))
    await site.until_event("start", 2, task="Tick")
    for seconds in (2, 1):
        before = site.redis.hget(site.key("config"), "version")
        site.write("config.yaml", ticks(seconds))
        await until(
            lambda: site.redis.hget(site.key("config"), "version") != before,  # noqa: B023
            "another version is published",
        )
        await site.until_event("start", len(site.journal("start")) + 3, task="Tick")
    assert stop(scheduler) == [0]
    await site.all_ended()
    occurrences = [event.details["occurrence"] for event in site.journal("start", task="Tick")]
    assert len(occurrences) == len(set(occurrences)), "an occurrence ran twice"
    # On a busy machine one may still run when the next is due, which is skipped then.
    decided = re.findall(
        r"occurrence (?:FIRED|SKIPPED): entry=\S+:Tick\|\|default at=(\S+)", scheduler.log
    )
    instants = sorted({datetime.fromisoformat(instant) for instant in decided})
    steps = {(later - one).total_seconds() for one, later in pairwise(instants)}
    assert steps == {1.0, 2.0}, "an occurrence is missing"
