"""`task-run overview` names what is wrong, and what it says to type mends it: promise 20."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import records
from acceptance.overview_tasks import Cleans, Exports, Kept, Mails, Merges, Poison
from acceptance.site import Site, eventually, failure, submit_all
from acceptance.test_dead_letters import BURIALS, OFTEN
from doors import Door
from waits import WAIT_SECONDS

from nonet.stores.sql.database import upgrade

TASKS = "acceptance.overview_tasks"
_MAILS, _WRITERS, _DEAD = 20, 3, 5


async def findings(site: Site) -> dict[str, dict[str, str]]:
    """What the overview finds, by its kind."""
    found = json.loads(await site.type("task-run overview --json"))
    return {item["kind"]: item for item in found["findings"]}


@pytest.mark.long
async def test_six_faults_at_once_are_named_and_mended(
    site: Site, mariadb_behind_a_door: tuple[Door, str]
) -> None:
    """Six faults are on one screen, and each command, typed, mends its fault."""
    door, url = mariadb_behind_a_door
    site.settings |= {"NONET_DB_URL": url, "NONET_WORKER_TTL": "6"}
    await upgrade(url)
    site.changed_worker(BURIALS, **OFTEN)
    site.scheduler(wait=False)  # it reads from SQL, through the door of this loop
    async with site.app() as app:
        await site.type("task-run pause --stream background:small")
        await site.type("task-run limits set limiter:rate:job:smtp --rate 1 --window 600")
        site.open(first := site.gate())
        await app.result(await app.submit(Exports(first)), timeout=WAIT_SECONDS)
        (holder,) = await submit_all(app, [Exports(site.gate())])
        await until_state(app, holder, "running")
        await hold_for_an_hour(app, holder)
        site.open(gate := site.gate())
        writers = await submit_all(app, [Exports(gate) for _ in range(_WRITERS)])
        mails = await submit_all(app, [Mails(number) for number in range(_MAILS)])
        (cleans,) = await submit_all(app, [Cleans()])
        (merges,) = await submit_all(app, [Merges()])
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        # So that there is what a pause stops.
        later = await submit_all(app, [Poison()], at_time=tomorrow)
        poisoned = await submit_all(app, [Poison() for _ in range(_DEAD)])
        for id in poisoned:
            await failure(app, id)
        door.freeze()
        (kept,) = await submit_all(app, [Kept()])

        wanted = {"lock", "limiter", "pause", "worker", "class", "sql"}
        found: dict[str, Any] = {}
        screen = ""
        async with asyncio.timeout(WAIT_SECONDS):
            # Each waits for SQL; they are typed at once, so that one may see more than the other.
            while not all(name in found and found[name]["command"] in screen for name in wanted):
                typed = site.type("task-run overview")
                found, screen = await asyncio.gather(findings(site), typed)
        assert set(found) == wanted
        assert all(len(line) <= 80 for line in screen.splitlines())
        assert len(screen.splitlines()) <= 40
        text = _joined(screen)
        assert f"{_MAILS - 1} tasks wait for limiter:rate:job:smtp (overview_tasks:Mails)" in text
        assert f"{_WRITERS} tasks wait for lock:mutex:job:export (overview_tasks:Exports)" in text
        assert "no large worker is live: 1 task is queued" in text
        assert "background:small is paused since" in text
        assert "set the limit by hand" in text and "it is 100 per 600 s without that" in text
        assert "overview_tasks:Poison dies: ValueError: the catalogue has no such column" in text
        assert "does not answer within 5 s" in text
        assert "40 % page 12 of 30" in text

        await site.type(found["lock"]["command"])
        for id in writers:
            await app.result(id, timeout=WAIT_SECONDS)
        await site.type(found["limiter"]["command"])
        for id in mails:
            await app.result(id, timeout=WAIT_SECONDS)
        await site.type(found["pause"]["command"])
        await app.result(cleans, timeout=WAIT_SECONDS)
        site.program(*shlex.split(found["worker"]["command"]))
        await app.result(merges, timeout=WAIT_SECONDS)
        await site.type(found["class"]["command"])
        door.thaw()  # the next step is to repair it
        await site.type("task-run db check")
        await until_state(app, kept, "dead")

        # The pause of the class is left, which tells who made it, and the end of `Kept`.
        left: dict[str, Any] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while left.keys() != {"pause", "class"}:
                left = await findings(site)
        assert left["class"]["what"] == "rare failures"
        assert left["pause"]["what"] == "task:overview_tasks:Poison"
        await app.cancel(later)


async def hold_for_an_hour(app: Any, id: str) -> None:
    """Let a task have held its locks for an hour, of whose class 99 % run for a moment."""

    async def is_counted() -> bool:
        return any(item.name.endswith(":Exports") for item in await app.stores.counts.figures())

    await eventually(is_counted)
    client = app.stores.broker.client
    await records.hincrby(client, f"{{{app.settings.namespace}}}:t:{id}", "started", -3_600_000_000)


async def until_state(app: Any, id: str, state: str) -> None:
    """Wait until a task is in a state."""

    async def is_there() -> bool:
        return (await app.status(id)).state == state

    await eventually(is_there)


def _joined(screen: str) -> str:
    """The text without the breaks of lines."""
    return re.sub(r"\s*\n\s+", " ", screen)
