"""Run the demo of the dashboard: daemons with ``task-web``, and work until a signal comes."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nonet.app import Nonet
from nonet.config.settings import plain_settings
from nonet.daemon.health import free_port
from nonet.daemon.service import stop_on_signals
from nonet.demo.daemons import Daemon, StoppedError, running, unless_stopped, workers_ready
from nonet.demo.shop import (
    ChargeCard,
    ImportFeed,
    ResizeImage,
    SendMail,
    SendNewsletter,
    WriteReport,
)
from nonet.demo.workspace import workspace
from nonet.tasks.task import BaseTask

_TASKS = "nonet.demo.shop"
_COMMANDS = [
    ["task-scheduler"],
    # Fleets replace a worker that is killed to see what happens.
    ["task-worker", "--size=small", "--min=2", "--max=3", "--concurrency=10"],
    ["task-worker", "--size=medium", "--min=1", "--max=2", "--concurrency=4"],
    ["task-worker", "--size=large", "--min=1", "--max=1"],
]
# A link in the log of task-web, by which one browser logs in.
_LINK = re.compile(r"http://\S+/login\?code=[\w-]+")
_HOST, _PORTS_ABOVE = "127.0.0.1", 8799
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.1
_STEP_SECONDS = 1.0
# Submit nothing while this many tasks have not ended: a slow machine must not pile them up.
_MOST_LIVE = 300


async def run_live(state_dir: Path, say: Callable[[str], None]) -> None:
    """Start a system with a dashboard, open it if there is a display, and work until a signal.

    Args:
        state_dir: absolute path of the parent of the demo's data, which are deleted at the end.
        say: prints a line.

    Raises:
        ConfigurationError: no Redis server is installed, or no ``task-web``.
        NonetError: a daemon ended early.
    """
    with workspace(state_dir / "demo") as directory:
        values = {
            "redis_url": "embedded://",
            "namespace": "shop",
            "tasks": _TASKS,
            "state_dir": str(directory),
            "grace": "1",
            "log_format": "console",
        }
        environment = {f"NONET_{name.upper()}": value for name, value in values.items()}
        say("starting the server and the daemons")
        async with (
            stop_on_signals() as stop,
            Nonet(plain_settings(**values)) as app,
            running([_web(), *_COMMANDS], environment, directory) as daemons,
        ):
            with suppress(StoppedError):
                await unless_stopped(_work(app, daemons[0], say), daemons, stop)
    say("stopped everything")


async def _work(app: Nonet, web: Daemon, say: Callable[[str], None]) -> None:
    await workers_ready(app)
    address = await _address(web)
    say(f"the dashboard, by a link for one login: {address}")
    if _has_display():
        await asyncio.to_thread(webbrowser.open, address)
    say("working until Ctrl-C")
    for step in itertools.count():
        page = await app.list_tasks(limit=1)
        if page.total < _MOST_LIVE:
            await _submit(app, step)
        await asyncio.sleep(_STEP_SECONDS)


async def _address(web: Daemon) -> str:
    """Return the link that the dashboard has printed."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            log = await asyncio.to_thread(web.log.read_text, encoding="utf-8", errors="replace")
            if found := _LINK.search(log):
                return found[0]
            await asyncio.sleep(_POLL_SECONDS)


def _web() -> list[str]:
    return ["task-web", f"--host={_HOST}", f"--port={free_port(_HOST, _PORTS_ABOVE, ())}"]


def _has_display() -> bool:
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


async def _submit(app: Nonet, step: int) -> None:
    """Submit the work of one second."""
    for task, delay in _tasks(step):
        due = datetime.now(UTC) + timedelta(seconds=delay)
        labels = {"customer": f"c{step % 7}", "shop": "demo"}
        await app.submit(task, labels=labels, at_time=due if delay else None)


def _tasks(step: int) -> Iterator[tuple[BaseTask, float]]:
    """Yield the tasks of one second, and in how many seconds each is due."""
    for number in range(random.randint(1, 4)):
        yield SendMail(f"buyer-{step}-{number}@example.org"), 0
    yield ChargeCard(f"c{step % 3}", step), 0
    if step % 3 == 0:
        yield ResizeImage(step), 0
    if step % 6 == 0:
        yield ImportFeed(random.choice(["globex", "hooli", "acme", "initech"])), 0
    if step % 5 == 0:
        yield SendMail("me@example.org"), random.uniform(20, 90)
    if step % 15 == 0:
        yield SendNewsletter(step // 15), 0
        for order in range(8):
            yield ChargeCard("c0", 1000 * step + order), 0
    if step % 40 == 0:
        yield WriteReport(1 + step // 40 % 12), 0
