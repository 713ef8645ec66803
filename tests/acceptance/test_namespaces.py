"""Three namespaces as one system: each has a scheduler and a worker, and tasks of its tenant."""

from __future__ import annotations

import pytest
from acceptance.namespace_tasks import Follow, Followed, Spawn
from acceptance.site import Site
from daemons import Daemon
from waits import WAIT_SECONDS, until

from nonet import TaskFailed

HOMES = {"atlas": "acceptance", "lhcb": "a", "cms": "b"}
CONFIG = 'vos: [atlas, lhcb, cms]\nnamespaces: {lhcb: a, cms: b, "*": acceptance}\n'


@pytest.fixture
async def split(site: Site) -> Site:
    """With a scheduler of each namespace, which has published the routes."""
    site.settings["NONET_TASKS"] = "acceptance.namespace_tasks,acceptance.periodic_tasks"
    path = site.write("routes.yaml", CONFIG)
    for name in HOMES.values():
        site.scheduler("--config", path, "--namespace", name)
    marks = [f"{{{name}}}:config" for name in HOMES.values()]
    await until(lambda: site.redis.exists(*marks) == len(marks), "routes are published")
    return site


def workers(site: Site) -> dict[str, Daemon]:
    return {name: site.worker("--namespace", name) for name in HOMES.values()}


async def test_a_task_runs_in_the_namespace_of_its_tenant(split: Site) -> None:
    """Wherever it is submitted; its handle finds it there."""
    async with split.app() as app:
        handles = {vo: await app.submit(Followed(vo)) for vo in HOMES}
        for vo, home in HOMES.items():
            assert split.redis.exists(f"{{{home}}}:t:{handles[vo]}"), vo
        workers(split)
        for handle in handles.values():
            await handle.result(timeout=WAIT_SECONDS)


async def test_no_entry_is_planned_twice(split: Site) -> None:
    """An entry of a tenant is planned where its tenant belongs, only."""
    workers(split)
    await until(lambda: len(split.journal("start")) >= 12, "twelve occurrences ran")
    for tenant, home in HOMES.items():
        events = [event for event in split.journal("start") if event.details.get("vo") == tenant]
        occurrences = [event.details["occurrence"] for event in events]
        assert len(set(occurrences)) == len(occurrences) >= 2, tenant
        entries = split.redis.hkeys(f"{{{home}}}:periodic:entries")
        of_vos = {entry.split("|")[1] for entry in entries}
        assert of_vos == ({tenant, ""} if home == "acceptance" else {tenant}), home


async def test_a_running_task_adds_none_of_another_namespace(split: Site) -> None:
    """It is refused with a sentence; one of its own tenant runs where it runs."""
    async with split.app() as app:
        workers(split)
        await (await app.submit(Follow("lhcb", "lhcb"))).result(timeout=WAIT_SECONDS)
        for task in (Follow("lhcb", "cms"), Spawn("lhcb", "cms")):
            handle = await app.submit(task)
            with pytest.raises(TaskFailed, match=r"in namespace b, but its parent runs"):
                await handle.result(timeout=WAIT_SECONDS)
        handle = await app.submit(Spawn("lhcb", "lhcb"))
        await handle.result(timeout=WAIT_SECONDS)
        await split.until_event("followed", times=3)
        assert {event.details["tenant"] for event in split.journal("followed")} == {"lhcb"}
