"""Uniqueness with real submitters and workers."""

from __future__ import annotations

import pytest
from acceptance.site import Site
from acceptance.unique_tasks import Brief, Refresh
from waits import until

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


async def test_many_processes_submit_one_task(site: Site) -> None:
    """At the same time: one of them made the task, all get its id, and it runs once."""
    gate, start, number = site.gate(), site.gate(), 6
    processes = [site.program("python", "-c", SUBMIT, gate, start) for _ in range(number)]
    for process in processes:
        await until(lambda p=process: "ready" in p.log, "it is ready")
    site.open(start)
    said: list[list[str]] = []
    for process in processes:
        await until(lambda p=process: "id " in p.log, "it has submitted")
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


async def test_a_group_or_a_wrong_value_refuses_uniqueness(site: Site) -> None:
    """The error says what to do instead, and nothing is submitted."""
    async with site.app() as app:
        for wrong in ("until_done", Unique.until_done, True):
            with pytest.raises(InvalidArgumentsError, match=r"unique: is .* must be a nonet\.Uniq"):
                await app.submit(Brief(1), unique=wrong)  # type: ignore[arg-type]
        for children, callback in (
            ([Refresh("", "CERN")], Brief(1)),
            ([Brief(1)], Refresh("", "CERN")),
        ):
            with pytest.raises(InvalidArgumentsError, match="unique: a group or workflow waits"):
                await spawn_with_callback(children, callback)
    assert site.live() == []
