"""Child processes where the kernel lacks what only Linux has: each is a new interpreter.

What is claimed of forked children holds for them, but for what a task detaches from its process.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import psutil
import pytest
from acceptance import isolated_tasks as tasks, test_isolation as forked
from acceptance.site import Site
from waits import WAIT_SECONDS, until

TESTS = Path(__file__).parent.parent


TASKS = "acceptance.isolated_tasks"


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose daemons run as on macOS, see `without_linux/sitecustomize.py`."""
    site.settings["PYTHONPATH"] = f"{TESTS / 'without_linux'}:{TESTS}"
    return site


test_a_child_has_all = forked.test_a_task_in_a_child_has_all_that_a_task_has
test_a_worker_takes_its_children_along = (
    forked.test_a_worker_that_is_killed_or_frozen_takes_its_children_along
)
test_a_stop_ends_children = forked.test_a_stop_ends_children_and_hands_their_tasks_back


async def test_each_child_is_an_interpreter_of_its_own(site: Site) -> None:
    """Not a fork: its command line is the one for children, without the fork server's argument."""
    site.worker(size="medium")
    async with site.app() as app:
        gate = site.gate()
        handle = await app.submit(tasks.GatedChild(gate))
        (start,) = await site.started(handle)
        assert psutil.Process(start.pid).cmdline()[1:] == ["-P", "-m", "nonet.worker.child_process"]
        site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)


async def test_limits_of_time_memory_and_cpu_are_enforced(site: Site) -> None:
    """The fork server kills what exceeds them, and a crash is reported as one."""
    site.worker("--concurrency", "4", size="medium", NONET_CRASH_LIMIT="1")
    async with site.app() as app:
        culprits = [await app.submit(made()) for made in tasks.CULPRITS]
        told = [await forked.why_dead(app, id) for id in culprits]
        neighbour = await app.submit(tasks.Neighbour(1))
        assert await neighbour.result(timeout=WAIT_SECONDS) is not None
    assert told == list(forked.REASONS.values())


async def test_a_child_that_cannot_load_the_tasks_says_why(site: Site) -> None:
    """The log has the reason, and the task runs when the modules are whole again."""
    code = inspect.getsource(tasks)
    place = Path(site.write("isolated_tasks.py", code)).parent
    site.settings["NONET_TASKS"] = "isolated_tasks"
    site.settings["PYTHONPATH"] += f":{place}"
    worker = site.worker(size="medium")
    site.write("isolated_tasks.py", "raise ValueError('broken now')\n")
    async with site.app(tasks=("acceptance.isolated_tasks",)) as app:
        handle = await app.submit(tasks.Neighbour(1))
        await until(lambda: "broken now" in worker.log, "the child has said why")
        site.write("isolated_tasks.py", code)
        assert await handle.result(timeout=WAIT_SECONDS) == 1


async def test_what_a_task_leaves_ends_with_it_or_its_worker(site: Site) -> None:
    """In a session of its own, too; only a process with another parent by then lives on."""
    await forked.test_no_process_that_a_task_leaves_lives_on(site, "other environment")
