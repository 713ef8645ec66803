"""Three namespaces as one system: a worker and a scheduler of all, and tasks of each tenant."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable

import pytest
from acceptance.contention import held_twice
from acceptance.share_tasks import Mine, Telling, TellingApart
from acceptance.site import Site
from daemons import Daemon, until
from servers import RedisServer

from nonet import Nonet, TaskFailed

TENANTS = ("atlas", "lhcb", "cms")
NAMESPACES = "acceptance,a,b"
CONFIG = 'vos: [atlas, lhcb, cms]\nnamespaces: {lhcb: a, cms: b, "*": acceptance}\n'


@pytest.fixture
def split(site: Site) -> Site:
    site.settings["NONET_TASKS"] = "acceptance.share_tasks"
    site.settings["NONET_NAMESPACES"] = NAMESPACES
    return site


async def led(site: Site, **environment: str) -> Daemon:
    """A scheduler that leads all three, and has published the routes."""
    scheduler = site.scheduler("--config", site.write("routes.yaml", CONFIG), **environment)
    names = NAMESPACES.split(",")
    marks = [f"{{{name}}}:routed" for name in names]
    await until(lambda: site.redis.exists(*marks) == len(marks), "routes are published")
    return scheduler


async def submit(app: Nonet, number: int, **options: float) -> list[str]:
    """So many tasks of each tenant, in one batch."""
    tasks = [
        Mine(tenant, **options).with_options(labels={"vo": tenant})
        for _ in range(number)
        for tenant in TENANTS
    ]
    return [str(handle) for handle in await app.submit_many(tasks)]


def live(site: Site) -> list[str]:
    return [
        key for name in NAMESPACES.split(",") for key in site.redis.scan_iter(f"{{{name}}}:t:*")
    ]


async def test_a_worker_runs_the_tasks_of_all(split: Site) -> None:
    """Each namespace gets the same number of starts while all have a backlog; none waits long."""
    await led(split)
    async with split.app() as app:
        await app.client.live_config.refresh()
        await submit(app, 100, seconds=0.01)
        split.worker("--concurrency", "4")
        await until(lambda: not live(split), "every task has ended")
        begun = [event.details["tenant"] for event in split.journal("begun")]
        assert Counter(begun) == dict.fromkeys(TENANTS, 100)
        start = max(begun.index(tenant) for tenant in TENANTS)  # all readers have begun
        for end in range(30, 271, 30):
            counts = Counter(begun[start:end])
            # A slow answer costs a turn, which is caught up later.
            assert max(counts.values()) - min(counts[one] for one in TENANTS) <= 10, (end, counts)
        # The worker idles with all slots free; a task of any namespace wakes it.
        for tenant in TENANTS:
            sent = time.monotonic()
            handle = await app.submit(Mine(tenant), labels={"vo": tenant})
            await handle.result(timeout=10)
            assert time.monotonic() - sent < 1.0


async def test_nobody_is_starved_by_a_full_pool(split: Site) -> None:
    """While one namespace keeps all slots busy, a task of another gets the next free one."""
    await led(split)
    async with split.app() as app:
        await app.client.live_config.refresh()
        tasks = [Mine("lhcb", seconds=0.05) for _ in range(400)]
        await app.submit_many(tasks, labels={"vo": "lhcb"})
        split.worker("--concurrency", "2")
        await split.until_event("begun", times=20)
        waits = []
        for _ in range(20):
            sent = time.time()
            handle = await app.submit(Mine("cms"), labels={"vo": "cms"})
            (event,) = await split.until_event("begun", id=handle)
            waits.append(event.at - sent)
        assert sorted(waits)[15] < 0.4, waits
        assert len(live(split)) > 0
        split.redis.flushdb()


async def test_a_killed_worker_loses_no_task(split: Site) -> None:
    """Those of all namespaces run elsewhere."""
    await led(split)
    async with split.app() as app:
        await app.client.live_config.refresh()
        ids = await submit(app, 20, seconds=0.2)
        first = split.worker("--concurrency", "9")
        await split.until_event("begun", times=9)
        first.kill()
        split.worker("--concurrency", "30")
        await until(lambda: not live(split), "every task has ended")
        assert {event.id for event in split.journal("begun")} == set(ids)


async def test_a_line_names_its_namespace(own_server: RedisServer, own_site: Site) -> None:
    """Of its daemon or its task; also lines of threads, of child processes and of an outage."""
    site = own_site
    site.settings |= {"NONET_TASKS": "acceptance.share_tasks", "NONET_NAMESPACES": NAMESPACES}
    await led(site)
    texts, documents = site.worker(), site.worker(NONET_LOG_FORMAT="json")
    async with site.app() as app:
        await app.client.live_config.refresh()
        for kind in (Telling, TellingApart):
            for tenant in TENANTS:
                tasks = [kind(tenant) for _ in range(10)]
                await app.submit_many(tasks, labels={"vo": tenant})
        await until(lambda: not live(site), "every task has ended")
    own_server.kill()
    for worker in (texts, documents):
        await until(
            lambda worker=worker: worker.log.count("registration lost") == 3, "all are lost"
        )

    def told(named: Callable[[str], str], log: str) -> set[tuple[str, str]]:
        lines = (line for line in log.splitlines() if "told by" in line)
        return {(re.findall(r"told by (\w+)", line)[0], named(line)) for line in lines}

    def named(line: str) -> str:
        return re.findall(r" namespace=(\w+)", line)[0]

    found = told(named, texts.log)
    found |= told(lambda line: json.loads(line)["namespace"], documents.log)
    assert found == {("atlas", "acceptance"), ("lhcb", "a"), ("cms", "b")}
    for said in ("Redis is away", "registration lost", "ready: "):
        lines = [line for line in texts.log.splitlines() if said in line]
        assert {named(line) for line in lines} == {"acceptance", "a", "b"}, (said, lines)


async def test_an_idle_worker_costs_what_one_of_each_namespace_costs(split: Site) -> None:
    """No reader polls in a loop."""

    async def commands(seconds: float = 6.0) -> float:
        await asyncio.sleep(2.5)
        before = split.redis.info("stats")["total_commands_processed"]
        await asyncio.sleep(seconds)
        return (split.redis.info("stats")["total_commands_processed"] - before - 1) / seconds

    names, single = NAMESPACES, 0.0
    for name in names.split(","):
        worker = split.worker(NONET_NAMESPACES=name, NONET_NAMESPACE=name)
        single += await commands()
        worker.terminate()
        assert worker.wait() == 0
    split.worker()
    together = await commands()
    print(f"\nidle: {together:.1f} commands/s together, {single:.1f} apart")
    assert together <= 1.15 * single + 1


async def test_one_scheduler_leads_all_and_plans_nothing_twice(split: Site) -> None:
    """An entry of a tenant is planned where its tenant belongs, only."""
    split.settings["NONET_TASKS"] = "acceptance.periodic_tasks"
    scheduler = await led(split, NONET_LEADER_TTL="30")
    split.worker()
    await until(lambda: len(split.journal("start")) >= 12, "twelve occurrences ran")
    scheduler.terminate()
    assert scheduler.wait() == 0
    for tenant in TENANTS:
        at = [event.at for event in split.journal("start") if event.details.get("vo") == tenant]
        assert 2 <= len(at) <= at[-1] - at[0] + 2, tenant
    for name, vo in (("acceptance", "atlas"), ("a", "lhcb"), ("b", "cms")):
        entries = split.redis.hkeys(f"{{{name}}}:periodic:entries")
        of_vos = {entry.split("|")[1] for entry in entries}
        assert of_vos == ({vo, ""} if name == "acceptance" else {vo}), name


async def test_a_running_task_adds_none_of_another_namespace(split: Site) -> None:
    """It is refused with a sentence; one of its own tenant runs where it runs."""
    split.settings["NONET_TASKS"] = "acceptance.namespace_tasks"
    await led(split)
    from acceptance.namespace_tasks import Follow, Spawn

    async with split.app() as app:
        await app.client.live_config.refresh()
        split.worker()
        await (await app.submit(Follow("lhcb", "lhcb"))).result(timeout=20)
        for task in (Follow("lhcb", "cms"), Spawn("lhcb", "cms")):
            handle = await app.submit(task)
            with pytest.raises(TaskFailed, match=r"in namespace b, but its parent runs"):
                await handle.result(timeout=20)
        handle = await app.submit(Spawn("lhcb", "lhcb"))
        await handle.result(timeout=20)
        await split.until_event("followed", times=3)
        assert {event.details["tenant"] for event in split.journal("followed")} == {"lhcb"}


async def test_a_tenant_moves_under_load(split: Site) -> None:
    """Each task and each occurrence runs once, and no lock is held in both."""
    split.settings["NONET_TASKS"] = "acceptance.namespace_tasks"
    await led(split)
    from acceptance.namespace_tasks import Exclusive

    ids: list[str] = []
    is_over = asyncio.Event()

    async def load(home: str) -> None:
        async with split.app(namespace=home) as app:
            await app.client.live_config.refresh()
            while not is_over.is_set():
                tasks = [Exclusive(vo, n) for n in range(3) for vo in ("lhcb", "cms")]
                ids.extend(map(str, await app.submit_many(tasks)))
                ids.append(str(await app.submit(Exclusive("lhcb", 1), delay=1.5)))
                await asyncio.sleep(0.1)

    split.worker("--concurrency", "8")
    loading = [asyncio.create_task(load(home)) for home in ("acceptance", "a", "b")]
    await split.until_event("held", times=100)
    async with split.app() as app:  # it takes the old namespace a while to end these
        await app.client.live_config.refresh()
        many = await app.submit_many([Exclusive("lhcb", n) for n in range(300)])
        ids.extend(map(str, many))
    move = ("task-run", "tenants", "move", "lhcb", "--to", "b", "--with-delayed")
    assert await asyncio.to_thread(split.program(*move).wait) == 0
    moved_at = time.time()
    await until(lambda: not split.redis.exists("{b}:paused"), "namespace a has none of its tasks")
    await asyncio.sleep(2)
    is_over.set()
    await asyncio.gather(*loading)
    await until(lambda: not live(split), "every task has ended")
    runs = Counter(event.id for event in split.journal("held"))
    assert runs == dict.fromkeys(ids, 1)
    assert held_twice(split) == []
    ticks = [event for event in split.journal("ticked") if event.details["tenant"] == "lhcb"]
    occurrences = Counter(event.details["occurrence"] for event in ticks)
    assert max(occurrences.values()) == 1, occurrences
    assert ticks[0].at < moved_at < ticks[-1].at
