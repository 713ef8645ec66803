"""`task-run overview` names what is wrong, and what it says to type mends it: promise 20."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from acceptance.overview_tasks import Cleans, Exports, Kept, Mails, Merges, Poison
from acceptance.site import Site, submit_all
from servers import MariaServer
from waits import WAIT_SECONDS

from nonet import TaskFailed
from nonet.stores.sql.database import upgrade

_SCREEN = (80, 40)
_MAILS, _WRITERS, _DEAD = 20, 3, 5


@pytest.fixture
def frozen_sql() -> Iterator[MariaServer]:
    """A MariaDB that this test may freeze."""
    with MariaServer() as server:
        yield server
        with suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)


class Terminal:
    """Types commands as an operator of the site."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def type(self, command: str) -> str:
        """What a command prints on stdout; it must succeed."""
        program, *options = shlex.split(command)
        done = await asyncio.to_thread(
            subprocess.run,
            [str(Path(sys.executable).parent / program), *options],
            env={**os.environ, **self._site.settings, "COLUMNS": str(_SCREEN[0])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    async def findings(self) -> dict[str, dict[str, str]]:
        """What the overview finds, by its kind."""
        found = json.loads(await self.type("task-run overview --json"))
        return {item["kind"]: item for item in found["findings"]}


@pytest.mark.long
async def test_six_faults_at_once_are_named_and_mended(site: Site, frozen_sql: MariaServer) -> None:
    """Six faults are on one screen, and each next step, typed, mends its fault."""
    frozen_sql.execute("CREATE DATABASE letters CHARACTER SET utf8mb4")
    site.settings |= {
        "NONET_TASKS": "acceptance.overview_tasks",
        "NONET_DB_URL": frozen_sql.url("letters"),
    }
    await upgrade(frozen_sql.url("letters"))
    site.worker()
    site.scheduler()
    terminal = Terminal(site)
    async with site.app() as app:
        await terminal.type("task-run pause --stream background:small")
        (holder,) = await submit_all(app, [Exports(site.gate())])
        await until_state(app, holder, "running")
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
            with pytest.raises(TaskFailed):
                await app.result(id, timeout=WAIT_SECONDS)
        os.kill(frozen_sql.pid, signal.SIGSTOP)
        (kept,) = await submit_all(app, [Kept()])

        wanted = {"lock", "limiter", "pause", "worker", "class", "sql"}
        found: dict[str, Any] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while not wanted <= found.keys():
                found = await terminal.findings()
        assert set(found) == wanted
        screen = await terminal.type("task-run overview")
        assert all(len(line) <= _SCREEN[0] for line in screen.splitlines())
        assert len(screen.splitlines()) <= _SCREEN[1]
        for finding in found.values():
            assert finding["hint"] in screen
        text = _joined(screen)
        assert f"{_MAILS - 1} tasks wait for limiter:rate:job:smtp (overview_tasks:Mails)" in text
        assert f"{_WRITERS} tasks wait for lock:mutex:job:export (overview_tasks:Exports)" in text
        assert "no large worker is live: 1 task is queued" in text
        assert "background:small is paused since" in text
        assert f"{_DEAD} tasks of overview_tasks:Poison died within an hour" in text
        assert "the catalogue has no such column" in text
        assert "does not answer within 5 s" in text
        assert "40 % page 12 of 30" in text

        await terminal.type(found["lock"]["hint"])
        for id in writers:
            await app.result(id, timeout=WAIT_SECONDS)
        await terminal.type(found["limiter"]["hint"])
        for id in mails:
            await app.result(id, timeout=WAIT_SECONDS)
        await terminal.type(found["pause"]["hint"])
        await app.result(cleans, timeout=WAIT_SECONDS)
        site.program(*shlex.split(found["worker"]["hint"]))
        await app.result(merges, timeout=WAIT_SECONDS)
        await terminal.type(found["class"]["hint"])
        os.kill(frozen_sql.pid, signal.SIGCONT)  # the next step is to repair it
        await terminal.type("task-run db check")
        await until_state(app, kept, "dead")

        # Only the pause of the class is left, which tells who made it.
        left: dict[str, Any] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while left.keys() != {"pause"}:
                left = await terminal.findings()
        assert left["pause"]["what"] == "task:overview_tasks:Poison"
        await app.cancel(later)


async def until_state(app: Any, id: str, state: str) -> None:
    """Wait until a task is in a state."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await app.status(id)).state != state:  # noqa: ASYNC110  # of a task elsewhere
            await asyncio.sleep(0.05)


def _joined(screen: str) -> str:
    """The text without the breaks of lines."""
    return re.sub(r"\s*\n\s+", " ", screen)
