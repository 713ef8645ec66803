"""Three namespaces as one system: each has a scheduler and a worker, and its tenant."""

from __future__ import annotations

from acceptance.namespace_tasks import Follow, Spawn
from acceptance.site import Site, failure, run, stop
from daemons import Daemon
from waits import until

TASKS = "acceptance.namespace_tasks"
HOMES = {"atlas": "acceptance", "lhcb": "a", "cms": "b"}
CONFIG = 'vos: [atlas, lhcb, cms]\nnamespaces: {lhcb: a, cms: b, "*": acceptance}\n'


async def system(site: Site) -> list[Daemon]:
    """Start a scheduler and a worker of each namespace; the schedulers have published routes."""
    path = site.write("routes.yaml", CONFIG)
    daemons = [
        start("--namespace", name, *options)
        for name in HOMES.values()
        for start, options in ((site.scheduler, ("--config", path)), (site.worker, ()))
    ]
    marks = [f"{{{name}}}:config" for name in HOMES.values()]
    await until(lambda: site.redis.exists(*marks) == len(marks), "routes are published")
    return daemons


async def test_no_entry_is_planned_twice(site: Site) -> None:
    """An entry of a tenant is planned where its tenant belongs, only."""
    site.settings["NONET_TASKS"] += ",acceptance.periodic_tasks"
    daemons = await system(site)

    def occurrences(tenant: str) -> list[str]:
        events = [event for event in site.journal("start") if event.details.get("vo") == tenant]
        return [event.details["occurrence"] for event in events]

    await until(lambda: all(len(occurrences(tenant)) >= 2 for tenant in HOMES), "each runs twice")
    for tenant, home in HOMES.items():
        started = occurrences(tenant)
        assert len(set(started)) == len(started), tenant
        entries = site.redis.hkeys(f"{{{home}}}:periodic:entries")
        of_vos = {entry.split("|")[1] for entry in entries}
        assert of_vos == ({tenant, ""} if home == "acceptance" else {tenant}), home
    stop(*daemons)
    site.redis.flushall()  # of occurrences that no worker runs any more


async def test_a_running_task_adds_no_task_of_another_namespace(site: Site) -> None:
    """It is refused with a sentence; one of its own tenant runs where it runs."""
    await system(site)
    async with site.app() as app:
        await run(app, Follow("lhcb", "lhcb"))
        for task in (Follow("lhcb", "cms"), Spawn("lhcb", "cms")):
            assert "in namespace b, but its parent runs" in str(await failure(app, task))
        await run(app, Spawn("lhcb", "lhcb"))
        await site.until_event("followed", times=3)
        assert {event.details["tenant"] for event in site.journal("followed")} == {"lhcb"}
