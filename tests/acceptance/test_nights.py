"""What breaks at night: the first lines of an overview name it, and no command does harm."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import preloaded
import pytest
from acceptance.overview_tasks import (
    Blocks,
    Bomb,
    Cleans,
    Eats,
    Exports,
    Fails,
    Mails,
    Merges,
    Poison,
    Works,
)
from acceptance.probe_tasks import Quick
from acceptance.site import SHORT, Site, submit_all
from acceptance.test_overview import until_state
from daemons import Daemon
from doors import Door
from waits import WAIT_SECONDS

from nonet import Workflow
from nonet.stores.sql.database import upgrade

TASKS = "acceptance.overview_tasks"
_WITHIN = 10.0
_DAEMONS = ("task-worker", "task-scheduler")


@dataclass
class Night:
    """A system that breaks: its scheduler leads, and two small workers and a medium one run."""

    site: Site
    app: Any
    scheduler: Daemon


Break: TypeAlias = Callable[[Night], Awaitable[None]]


async def _stuck_mutex(night: Night) -> None:
    await submit_all(night.app, [Exports(night.site.gate()), Exports(night.site.gate())])


async def _lowered_limit(night: Night) -> None:
    await night.site.type("task-run limits set limiter:rate:job:smtp --rate 1 --window 600")
    await submit_all(night.app, [Mails(number) for number in range(20)])


async def _forgotten_pause(night: Night) -> None:
    await night.site.type("task-run pause --stream background:small")
    await submit_all(night.app, [Cleans()])


async def _missing_size(night: Night) -> None:
    await submit_all(night.app, [Merges()])


async def _undeployed_class(night: Night) -> None:
    await submit_all(night.app, [Quick()])


async def _near_its_memory(night: Night) -> None:
    night.site.redis.config_set("maxmemory", int(night.site.redis.info()["used_memory"] / 0.88))


async def _over_its_memory(night: Night) -> None:
    night.site.redis.config_set("maxmemory", int(night.site.redis.info()["used_memory"] / 1.2))


async def _dead_leader(night: Night) -> None:
    night.scheduler.kill()


async def _blocked_loop(night: Night) -> None:
    await submit_all(night.app, [Blocks()])


async def _memory_eater(night: Night) -> None:
    await submit_all(night.app, [Eats()])


async def _letters_of_three_causes(night: Night) -> None:
    await night.app.submit_many([Fails(number % 3) for number in range(1000)])


async def _flooding_tenant(night: Night) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for vo, number in (("gridpp", 10), ("lhcb", 1500)):
        tasks = [Cleans() for _ in range(number)]
        await night.app.submit_many(tasks, labels={"vo": vo}, at_time=tomorrow)


async def _poison(night: Night) -> None:
    await submit_all(night.app, [Bomb()])


async def _dead_step(night: Night) -> None:
    workflow = Workflow("nightly import")
    workflow.step(Cleans(), after=workflow.step(Poison()))
    await night.app.submit_workflow(workflow)


BREAKAGES: dict[str, tuple[Break, Sequence[str]]] = {
    "stuck mutex": (_stuck_mutex, ["lock:mutex:job:export"]),
    "limit lowered by hand": (_lowered_limit, ["limiter:rate:job:smtp"]),
    "forgotten pause": (_forgotten_pause, ["stream:background:small"]),
    "missing size": (_missing_size, ["large"]),
    "undeployed class": (_undeployed_class, ["probe_tasks:Quick"]),
    "near its memory": (_near_its_memory, ["memory"]),
    "over its memory": (_over_its_memory, ["writes|memory"]),
    "dead leader": (_dead_leader, ["leader"]),
    "blocked loop": (_blocked_loop, ["overview_tasks:Blocks"]),
    "memory eater": (_memory_eater, ["overview_tasks:Eats"]),
    "three causes": (_letters_of_three_causes, ["overview_tasks:Fails"] * 3),
    "flooding tenant": (_flooding_tenant, ["lhcb"]),
    "poison": (_poison, ["overview_tasks:Bomb"]),
    "dead step": (_dead_step, ["nightly import"]),
}
TOGETHER = (
    ("stuck mutex", "limit lowered by hand", "missing size"),
    ("forgotten pause", "memory eater", "dead leader"),
    ("poison", "undeployed class", "over its memory"),
)


@asynccontextmanager
async def night_on(site: Site) -> AsyncIterator[Night]:
    """Start the daemons, and open an application that knows one module more than they do."""
    site.settings |= {**SHORT, "NONET_LEADER_TTL": "30"}
    scheduler = site.scheduler()
    for size in ("small", "small", "medium"):
        site.worker(size=size)
    async with site.app(tasks=(TASKS, "acceptance.probe_tasks")) as app:
        yield Night(site, app, scheduler)
    site.redis.config_set("maxmemory", 0)


async def named(app: Any, wanted: Sequence[str], most: int) -> list[Any]:
    """Wait until the first findings name all of these; return them."""
    ends = time.monotonic() + _WITHIN
    while True:
        first = list((await app.overview()).findings[:most])
        left = [f"{item.what} {item.problem}" for item in first]
        for want in wanted:
            found = [text for text in left if any(one in text for one in want.split("|"))]
            left = [text for text in left if text not in found[:1]]
        if len(left) == len(first) - len(wanted):
            return first
        assert time.monotonic() < ends, first
        await asyncio.sleep(0.2)


async def typed(site: Site, command: str) -> None:
    """Type a command as it was printed. A daemon is only started; some ask for a confirmation."""
    words = shlex.split(command)
    if words and words[0] in _DAEMONS:
        site.program(*words).wait_ready()
    elif words and words[0] == "task-run":
        done = await asyncio.to_thread(
            preloaded.run, *words, variables=site.settings, cwd=Path.cwd()
        )
        assert done.returncode in (0, 1) or "--yes" in done.stderr, (command, done.stderr)


@pytest.mark.soak
@pytest.mark.parametrize("name", BREAKAGES)
async def test_the_first_lines_name_what_is_broken(own_site: Site, name: str) -> None:
    """Within 10 s; the commands can be typed, and an innocent task runs on."""
    breaks, wanted = BREAKAGES[name]
    async with night_on(own_site) as night:
        gate = night.site.gate()
        (innocent,) = await submit_all(night.app, [Works(gate)])
        await until_state(night.app, innocent, "running")
        await breaks(night)
        for finding in await named(night.app, wanted, max(2, len(wanted))):
            await typed(night.site, finding.command)
        night.site.redis.config_set("maxmemory", 0)
        night.site.open(gate)
        await night.app.result(innocent, timeout=WAIT_SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
async def test_three_at_once_are_the_first_three_lines(
    own_site: Site, names: Sequence[str]
) -> None:
    """No consequence of one of them comes before another one."""
    async with night_on(own_site) as night:
        for name in names:
            await BREAKAGES[name][0](night)
        await named(night.app, [want for name in names for want in BREAKAGES[name][1]], 3)


@pytest.mark.soak
async def test_a_frozen_database_is_the_first_line(
    own_site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """The overview does not wait for it longer than 5 s."""
    door, url = mariadb_behind_a_door
    own_site.settings["NONET_DB_URL"] = url
    await upgrade(url)
    own_site.scheduler(wait=False)
    async with own_site.app(db_url=url) as app:
        door.freeze()
        (first, *_) = await named(app, ["SQL: "], 1)
        assert (first.severity, first.command) == ("critical", "task-run db check")
        door.thaw()
