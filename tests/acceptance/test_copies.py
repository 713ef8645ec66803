"""Tasks that fork themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from acceptance.copying_tasks import Deafens, Forks, ForksInDef, SavesInCopy
from acceptance.probe_tasks import Gated
from acceptance.site import SHORT, Site, result_states, stop, submit_all
from copying import KINDS, cases, expected
from waits import WAIT_SECONDS

from nonet import BaseTask, Nonet, Size

TASKS = "acceptance.probe_tasks,acceptance.copying_tasks"
NEIGHBOURS = 10


@pytest.fixture(autouse=True)
def tasks(site: Site) -> None:
    site.settings["NONET_TASKS"] = TASKS


async def codes_of(app: Nonet, tasks: dict[str, BaseTask], size: Size) -> dict[str, Any]:
    """Run tasks at the same time; return what each has returned."""
    labels = {"size": size}
    handles = {name: await app.submit(task, labels=labels) for name, task in tasks.items()}
    results = await asyncio.gather(*(each.result(WAIT_SECONDS) for each in handles.values()))
    return dict(zip(handles, results, strict=True))


async def check(
    site: Site, kinds: Sequence[str], size: Size = Size.SMALL, loop: str = "uvloop"
) -> None:
    """Run kinds of forks at the same time in one worker, beside innocent tasks."""
    worker = site.worker(size=size, NONET_UVLOOP=str(loop == "uvloop"))
    forks: dict[str, BaseTask] = {"checkpoint": SavesInCopy()}
    wanted = {"checkpoint": 1}
    for kind, way in cases():
        if kind in kinds:
            forks[f"{kind} {way}"], wanted[f"{kind} {way}"] = Forks(kind, way), expected(kind, way)
        if kind == "thread":
            forks[f"def {way}"], wanted[f"def {way}"] = ForksInDef(way), expected(kind, way)
    gate = site.gate()
    async with site.app() as app:
        count = NEIGHBOURS if size is Size.SMALL else 0
        neighbours = await submit_all(app, [Gated(gate)] * count)
        for each in neighbours:
            await site.started(each)
        assert await codes_of(app, forks, size) == wanted
        site.open(gate)
        await site.all_ended()
        assert await result_states(app, neighbours) == Counter(done=count)
        ends = [(event.id, event.pid) for event in site.journal("end")]
        assert sorted(ends) == sorted((id, worker.pid) for id in neighbours)
    assert stop(worker) == [0]
    assert "ValueError: in a copy" in worker.log and "it has no event loop" in worker.log


async def test_a_copy_of_a_worker_ends_with_the_code_that_forked_it(site: Site) -> None:
    """However it leaves this code: neighbours are done once, and the worker obeys SIGTERM."""
    await check(site, ["coroutine"])


async def test_a_copy_of_a_large_task_does_not_block_its_worker(site: Site) -> None:
    """The `def` task whose copy calls `sys.exit` reads the exit code."""
    worker = site.worker(size="large")
    async with site.app() as app:
        assert await codes_of(app, {"def": ForksInDef("exit")}, Size.LARGE) == {"def": 5}
    assert stop(worker) == [0]


@pytest.mark.soak
@pytest.mark.parametrize(("size", "loop"), list(product(Size, ["uvloop", "asyncio"])))
async def test_a_copy_ends_in_each_size_and_loop(site: Site, size: Size, loop: str) -> None:
    """The same in each size, with each event loop."""
    await check(site, list(KINDS), size, loop)


async def test_a_deaf_worker_ends(site: Site) -> None:
    """It says why and ends with 1 if threads cannot wake its event loop any more."""
    site.settings |= SHORT
    worker, gate = site.worker(), site.gate()
    async with site.app() as app:
        handle = await app.submit(Deafens(gate))
        assert worker.wait() == 1
        site.open(gate)
        site.worker()
        await handle.result(WAIT_SECONDS)
    (line,) = [line for line in worker.log.splitlines() if "deaf" in line]
    assert line.endswith("isolate that class")
