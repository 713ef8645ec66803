"""In whose event loop daemons run: uvloop's where it can be imported, asyncio's elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from acceptance.loop_tasks import WhichLoop
from acceptance.probe_tasks import Quick
from acceptance.site import Site
from preloaded import run
from waits import WAIT_SECONDS, until

TESTS = Path(__file__).parent.parent
HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


@pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")
async def test_daemons_run_in_uvloop(site: Site) -> None:
    """Where it is installed, worker and scheduler use it and say so."""
    await runs_in(site, "uvloop")


async def test_daemons_run_without_uvloop(site: Site) -> None:
    """It is an extra: without it the loop is asyncio's, and all else is the same."""
    hidden = Path(site.write("uvloop.py", "raise ImportError('not for this platform')\n")).parent
    await runs_in(site, "asyncio", PYTHONPATH=f"{hidden}:{TESTS}")


async def test_uvloop_can_be_turned_off(site: Site) -> None:
    """With ``NONET_UVLOOP=0`` daemons, and the child processes of tasks, run in asyncio's loop."""
    await runs_in(site, "asyncio", NONET_UVLOOP="0")
    site.settings["NONET_TASKS"] = WhichLoop.__module__
    site.worker(size="medium", NONET_UVLOOP="0")
    async with site.app() as app:
        assert await (await app.submit(WhichLoop())).result(timeout=WAIT_SECONDS) == "asyncio"


def test_a_switch_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    """The loop starts before the settings are loaded, and the mistake is told as any other."""
    ended = run("task-run", "queues", variables={"NONET_UVLOOP": "maybe"}, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "error: settings: NONET_UVLOOP: must be true or false\n"


def test_the_switch_may_stand_in_a_file(tmp_path: Path) -> None:
    """In ``.env``, as all settings."""
    (tmp_path / ".env").write_text("NONET_UVLOOP=maybe\n")
    ended = run("task-run", "queues", variables={}, cwd=tmp_path)
    assert ended.stderr == "error: settings: NONET_UVLOOP: must be true or false\n"


async def runs_in(site: Site, loop: str, **environment: str) -> None:
    """See that daemons run in a loop, say which, execute a task and stop."""
    worker, scheduler = site.worker(**environment), site.scheduler(**environment)
    for daemon in (worker, scheduler):
        assert re.search(rf"event.loop(=| of ){loop}\n", daemon.log)
    async with site.app() as app:
        await (await app.submit(Quick())).result(timeout=WAIT_SECONDS)
        (found,) = await app.client.results.workers()
        assert found.loop == loop
    for daemon in (worker, scheduler):
        daemon.terminate()
    for daemon in (worker, scheduler):
        assert await until(lambda daemon=daemon: not daemon.alive, "it has ended")
        assert daemon.wait() == 0, daemon.log
