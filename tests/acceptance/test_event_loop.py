"""In whose event loop daemons run: uvloop's where it can be imported, asyncio's elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import preloaded
import pytest
from acceptance.blocking_tasks import WhichLoop
from acceptance.site import Site, run, stop

TASKS = "acceptance.blocking_tasks"
TESTS = Path(__file__).parent.parent
HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None


@pytest.mark.parametrize(
    ("loop", "environment"),
    [
        pytest.param(
            *("uvloop", {}),
            marks=pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed"),
            id="installed",
        ),
        pytest.param("asyncio", {}, id="not installed"),
        pytest.param("asyncio", {"NONET_UVLOOP": "0"}, id="turned off"),
    ],
)
async def test_daemons_and_children_run_in_one_kind_of_loop_and_say_which(
    site: Site, loop: str, environment: dict[str, str]
) -> None:
    """They run uvloop where it is installed unless it is turned off, else asyncio's loop."""
    if loop == "asyncio" and not environment:
        hidden = Path(site.write("uvloop.py", "raise ImportError('not for this platform')\n"))
        environment = {"PYTHONPATH": f"{hidden.parent}:{TESTS}"}
    worker = site.worker(size="medium", **environment)
    scheduler = site.scheduler(**environment)
    for daemon in (worker, scheduler):
        assert re.search(rf"event.loop(=| of ){loop}\n", daemon.log)
    async with site.app() as app:
        assert await run(app, WhichLoop()) == loop
        (found,) = await app.stores.results.workers()
        assert found.loop == loop
    assert stop(worker, scheduler) == [0, 0]


def test_a_switch_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    """Also one in ``.env``, though the loop starts before the settings are loaded."""
    (tmp_path / ".env").write_text("NONET_UVLOOP=maybe\n")
    ended = preloaded.run("task-run", "queues", variables={}, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "error: settings: NONET_UVLOOP: must be true or false\n"
