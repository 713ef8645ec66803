"""In whose event loop daemons run: uvloop's where it can be imported, asyncio's elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from acceptance.probe_tasks import Quick
from acceptance.site import Site
from daemons import until

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


async def runs_in(site: Site, loop: str, **environment: str) -> None:
    """See that daemons run in a loop, say which, execute a task and stop."""
    worker, scheduler = site.worker(**environment), site.scheduler(**environment)
    for daemon in (worker, scheduler):
        assert re.search(rf"event.loop(=| of ){loop}\n", daemon.log)
    async with site.app() as app:
        await (await app.submit(Quick())).result(timeout=30)
        (found,) = await app.client.results.workers()
        assert found.loop == loop
    for daemon in (worker, scheduler):
        daemon.terminate()
    for daemon in (worker, scheduler):
        assert await until(lambda daemon=daemon: not daemon.alive, "it has ended")
        assert daemon.wait() == 0, daemon.log
