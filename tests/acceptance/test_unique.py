"""Uniqueness with real submitters and workers: who is the same task, and what runs."""

from __future__ import annotations

import pytest
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Refresh
from waits import WAIT_SECONDS, until

from nonet import InvalidArgumentsError, Unique, spawn_with_callback

TASKS = "acceptance.unique_tasks"
SUBMIT = """
import asyncio, sys
from nonet import Nonet
from acceptance.probe_tasks import passed
from acceptance.unique_tasks import Refresh

async def main():
    async with Nonet.from_settings():
        print("ready", flush=True)
        await passed(sys.argv[2])
        handle = await Refresh(sys.argv[1], "CERN").schedule()
        print("id", handle, handle.created, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def unique_site(site: Site) -> Site:
    site.settings["NONET_TASKS"] = TASKS
    return site


@pytest.mark.parametrize("number", [6, pytest.param(50, marks=pytest.mark.soak)])
async def test_many_processes_submit_one_task(unique_site: Site, number: int) -> None:
    """At the same time: one is told that it made the task, all get its id, and it runs once."""
    site, gate = unique_site, unique_site.gate()
    start = site.gate()
    processes = [site.program("python", "-c", SUBMIT, gate, start) for _ in range(number)]
    for process in processes:
        await until(lambda p=process: "ready" in p.log, "it is ready", seconds=120)
    site.open(start)
    said: list[list[str]] = []
    for process in processes:
        await until(lambda p=process: "id " in p.log, "it has submitted", seconds=120)
        (line,) = [line for line in process.log.splitlines() if line.startswith("id ")]
        said.append(line.split()[1:])
    ids = {id for id, _ in said}
    assert len(ids) == 1
    assert sorted(created for _, created in said) == ["False"] * (number - 1) + ["True"]
    site.worker()
    (id,) = ids
    await site.started(id)
    site.open(gate)
    await site.all_ended()
    assert len(site.journal("start")) == 1
    assert not list(site.redis.scan_iter(site.key("u:*")))


async def test_a_repeat_awaits_the_same_result(unique_site: Site) -> None:
    """The handle of a repeat is that of the first; after its end the next is a new one."""
    site, gate = unique_site, unique_site.gate()
    site.worker()
    async with site.app() as app:
        first = await Refresh(gate, "CERN").schedule()
        await site.started(first)
        again = await Refresh("elsewhere", "CERN").schedule()
        other = await Refresh(gate, "CNAF").schedule()
        assert (again, again.created, other.created) == (first, False, True)
        assert [h.created for h in await app.submit_many([Refresh(gate, "CERN")])] == [False]
        site.open(gate)
        assert (
            await again.result(timeout=WAIT_SECONDS)
            == await first.result(timeout=WAIT_SECONDS)
            == first
        )
        assert (await Refresh(gate, "CERN").schedule()).created
    await site.all_ended()


async def test_what_is_no_unique_is_told(unique_site: Site) -> None:
    """As for the attribute of a class; the method without its call is the usual slip."""
    async with unique_site.app() as app:
        for wrong in ("until_done", Unique.until_done, True):
            with pytest.raises(InvalidArgumentsError, match=r"unique: is .* must be a nonet\.Uniq"):
                await app.submit(Brief(1), unique=wrong)  # type: ignore[arg-type]
    assert unique_site.live() == []


async def test_a_group_refuses_a_unique_task(unique_site: Site) -> None:
    """It waits for tasks of its own; the error tells what to do instead, and nothing was begun."""
    async with unique_site.app():
        with pytest.raises(InvalidArgumentsError, match="unique: a group or workflow waits for"):
            await spawn_with_callback([Refresh("", "CERN")], Brief(1))
        with pytest.raises(InvalidArgumentsError, match="unique: a group or workflow"):
            await spawn_with_callback([Brief(1)], Refresh("", "CERN"))
    assert unique_site.live() == []
