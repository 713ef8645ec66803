"""Daemons where the surroundings, or the code of a task, are hostile to the process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from acceptance.hostile_tasks import CHANGES, Deaf, Elsewhere, Forking, LowersFiles
from acceptance.probe_tasks import Quick
from acceptance.site import SHORT, Site, run, stop
from waits import WAIT_SECONDS, until, wait_until

TASKS = "acceptance.probe_tasks,acceptance.hostile_tasks"
NOBODY = str(Path(__file__).parent / "nobody")
_HOMELESS = {"PYTHONPATH": f"{NOBODY}:{Path(__file__).parents[1]}", "XDG_STATE_HOME": ""}


def test_a_user_without_a_home_must_name_a_directory(site: Site) -> None:
    """No HOME and no passwd entry: one line that names the setting, and exit code 2."""
    for command in ("task-worker --size small", "task-scheduler", "task-run list"):
        program = site.program(*command.split(), **_HOMELESS, NONET_STATE_DIR="")
        assert program.wait() == 2, command
        (line,) = program.log.splitlines()
        assert line.startswith("error: ") and "set NONET_STATE_DIR" in line


def test_sigterm_ends_a_daemon_that_starts(site: Site) -> None:
    """A signal while the modules of tasks are imported gives an exit code, no death by signal."""
    for script in (["task-worker", "--size", "small"], ["task-scheduler"]):
        begun = site.gate()
        settings = {"NONET_TASKS": "acceptance.slow_module", "PROBE_IMPORT": begun}
        daemon = site.program(*script, **settings)
        wait_until(lambda path=begun: Path(path).exists(), "the import has begun")  # type: ignore[misc]
        daemon.terminate()
        assert daemon.wait() == 143, script


async def test_a_copy_of_the_worker_does_not_delay_its_end(site: Site) -> None:
    """A task that forks a child, which sleeps, leaves a worker that ends with 0.

    The copy has all connections and locks of the worker.
    """
    worker = site.worker()
    async with site.app() as app:
        await run(app, Elsewhere())  # there is a fork server, too
        handle = await app.submit(Forking())
        (event,) = await site.until_event("forked", id=handle)
        try:
            await handle.result(timeout=WAIT_SECONDS)
            assert stop(worker) == [0]
        finally:
            os.kill(event.details["child"], signal.SIGKILL)


async def test_a_worker_needs_neither_home_nor_locale(site: Site) -> None:
    """With a directory for its state, in ASCII, and with two modules in one option of a fleet."""
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = ("--max", "1", "--tasks", TASKS)
    site.worker(*options, wait=False, NONET_TASKS="", **ascii, **_HOMELESS)
    async with site.app() as app:
        assert await run(app, Quick(3)) == 3
        await run(app, Elsewhere())  # in a child process


async def test_a_task_cannot_make_its_worker_deaf(site: Site) -> None:
    """A worker takes its signals back from a task, says so, and ends at the next SIGTERM."""
    for change in CHANGES:
        worker = site.worker()
        async with site.app() as app:
            await run(app, Deaf(change))
            await until(
                lambda worker=worker: "signals" in worker.log, "the worker has taken them back"
            )
        worker.terminate()
        assert worker.wait() == 0, change


async def test_a_worker_that_can_open_no_file_ends(site: Site) -> None:
    """It says why and what to do, ends with 1, and what it ran runs elsewhere after the lease."""
    site.settings |= SHORT
    worker = site.worker()
    gate = site.gate()
    async with site.app() as app:
        handle = await app.submit(LowersFiles(gate))
        assert worker.wait() == 1
        (line,) = [line for line in worker.log.splitlines() if "RLIMIT_NOFILE" in line]
        assert line.endswith("isolate that class")
        site.open(gate)
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)
