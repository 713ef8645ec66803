"""Uniqueness with real submitters and workers: who is the same task, and what runs."""

from __future__ import annotations

import pytest
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Latest, Refresh
from daemons import until

from nonet import InvalidArgumentsError, TaskCancelled, Unique, spawn_with_callback

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
        assert await again.result(timeout=30) == await first.result(timeout=30) == first
        assert (await Refresh(gate, "CERN").schedule()).created
    await site.all_ended()


async def test_only_the_latest_counts(unique_site: Site) -> None:
    """One runs, the newest waits behind it; those between are cancelled and name the newer one."""
    site, gate = unique_site, unique_site.gate()
    site.worker()
    async with site.app():
        first = await Latest(gate, 1).schedule()
        await site.started(first)
        middle = await Latest(gate, 2).schedule()
        last = await Latest(gate, 3).schedule()
        with pytest.raises(TaskCancelled, match=f"replaced by {last}"):
            await middle.result(timeout=30)
        await until(lambda: site.parked(last), "the newest waits for the one that runs")
        assert len(site.journal("start")) == 1
        site.open(gate)
        assert await first.result(timeout=30) == 1
        assert await last.result(timeout=30) == 3
    assert [event.details["version"] for event in site.journal("start")] == [1, 3]
    await site.all_ended()


async def test_by_default_class_and_arguments_are_the_key(unique_site: Site) -> None:
    """Given at the submission: equal arguments are the same task, others and other classes not."""
    async with unique_site.app() as app:
        unique = Unique.until_start()
        tasks = [Brief(1), Brief(1), Brief(1, seconds=0.2), Brief(2)]
        briefs = [await task.schedule(unique=unique) for task in tasks]
        briefs.append(await Brief(1).schedule())
        first, again, equal, other, common = briefs
        assert first == again == equal
        assert len({first, other, common}) == 3
        refreshes = [await Refresh("", "CERN").schedule(unique=None) for _ in range(2)]
        assert refreshes[0] != refreshes[1]
        await app.client.cancel([str(item) for item in [*refreshes, *briefs]])


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
