"""Tasks whose worker died: the innocent run on together, and the culprit is found."""

from __future__ import annotations

import pytest
import records
from acceptance.contention import scales
from acceptance.probe_tasks import Quick
from acceptance.site import SHORT, Site, result_states, submit_all
from acceptance.suspect_tasks import Dies, KillsItsWorker, Waits, WaitsInThread
from daemons import Daemon
from waits import WAIT_SECONDS, until

from nonet import BaseTask
from nonet.stores.connection.redis import with_parts

TASKS = "acceptance.suspect_tasks,acceptance.probe_tasks"
# Puts a queued task where it would be after the deaths of two workers.
_STRONG = with_parts(
    """-- @include base
local id, stream = ARGV[1], P .. 'tasks:normal:small'
redis.call('XTRIM', stream, 'MAXLEN', 0)
local entry = redis.call('XADD', P .. 'suspects:normal:small', '*', 'id', id,
  'gen', read_record(id).gen)
change(id, {suspect = 2, deaths = 2, pointer = 'suspects:normal:small ' .. entry})
redis.call('SET', P .. 'suspected:small', 1)
"""
)


@pytest.fixture(autouse=True)
def _short(site: Site) -> None:
    site.settings |= SHORT


async def all_run(site: Site, times: int) -> None:
    """Wait until so many executions have begun."""
    await until(lambda: len(site.journal("start")) == times, f"{times} have begun")


@scales(60, 5000)
async def test_the_innocent_end_soon_beside_ordinary_work(site: Site, scale: int) -> None:
    """What a wide worker ran ends in few child processes; ordinary tasks run meanwhile."""
    gate = site.gate()
    if scale > 60:
        site.settings |= {"NONET_LEASE": "10", "NONET_WORKER_TTL": "10"}
    victim = site.worker("--concurrency", str(scale))
    async with site.app() as app:
        ids = await submit_all(app, [Waits(gate, n) for n in range(scale)])
        await all_run(site, scale)
        survivor = site.worker("--concurrency", "4")
        victim.kill()
        await site.until_event("start", scale + 1, task="Waits")
        for n in range(10):
            await app.result(await app.submit(Quick(n)), timeout=WAIT_SECONDS)
        assert site.journal("end", task="Waits") == [], "ordinary work waits for no suspect"
        site.open(gate)
        await site.all_ended(seconds=240)
        assert await result_states(app, ids) == {"done": scale}
    again = site.journal("start", task="Waits")[scale:]
    processes = {item.pid for item in again}
    took = max(item.at for item in site.journal("end")) - min(item.at for item in again)
    print(f"\n{scale} tasks of a killed worker: {took:.1f} s, in {len(processes)} processes")
    assert len(again) == scale
    assert processes.isdisjoint({victim.pid, survivor.pid})
    assert len(processes) <= 2 + scale // 40


@scales((40, 0.5), (400, 4.0))
async def test_one_culprit_among_many_is_found(site: Site, scale: tuple[int, float]) -> None:
    """It ends dead after a few deaths of processes, and the others are done after a few runs."""
    (count, seconds), gate = scale, site.gate()
    victim = site.worker("--concurrency", str(count))
    async with site.app() as app:
        others = await submit_all(app, [Waits(gate, n, seconds) for n in range(count - 1)])
        culprit = await app.submit(Dies(gate))
        await all_run(site, count)
        survivor = site.worker("--concurrency", "4")
        site.open(gate)
        await until(lambda: not victim.alive, "it has killed its worker")
        await site.all_ended(seconds=240)
        assert await result_states(app, others) == {"done": count - 1}
        status = await app.status(culprit)
    assert (status.state, status.reason) == ("dead", "crash")
    assert survivor.alive
    deaths = len(site.journal("start", id=str(culprit))) - 1
    most = max(len(site.journal("start", id=id)) for id in others)
    print(
        f"\na culprit among {count}: {deaths} processes died, an innocent ran {most} times at most"
    )
    assert deaths <= 12
    assert most <= 9


async def test_a_task_that_kills_its_workers_is_stopped(site: Site) -> None:
    """It takes few workers with it, others beside it are done, and one line says why it ends."""
    lost, logs = 0, list[Daemon]()
    async with site.app() as app:
        labels = {"size": "medium"}
        others = await submit_all(app, [Quick(n) for n in range(3)], labels=labels)
        culprit = await app.submit(KillsItsWorker())
        while (await app.status(culprit)).state not in ("dead", "dying"):
            worker = site.worker("--concurrency", "2", size="medium")
            logs.append(worker)
            await until(
                lambda worker=worker: not worker.alive or culprit not in site.live(),
                "it has killed its worker, or has ended",
            )
            lost += not worker.alive
        await site.all_ended()
        assert await result_states(app, others) == {"done": 3}
        status = await app.status(culprit)
    assert (status.state, status.reason, status.crashes) == ("dead", "worker-lost", 3)
    told = f"task {culprit} (suspect_tasks:KillsItsWorker) ends dead, worker-lost: WorkerLost: its"
    assert sum(daemon.log.count(told) for daemon in logs) == 1
    # One that ran beside it at first may be a suspect for as long as it.
    assert lost <= 5


async def test_suspects_take_no_slot(site: Site) -> None:
    """A worker without a free slot runs them beside it."""
    gate, busy = site.gate(), site.gate()
    victim = site.worker("--concurrency", "2")
    async with site.app() as app:
        ids = await submit_all(app, [Waits(gate), WaitsInThread(gate)])
        await all_run(site, 2)
        survivor = site.worker("--concurrency", "1")
        holder = await app.submit(Waits(busy))
        await until(lambda: site.journal("start", pid=survivor.pid), "its slot is taken")
        victim.kill()
        site.open(gate)
        for id in ids:
            await app.result(id, timeout=WAIT_SECONDS)
        assert (await app.status(holder)).state == "running"
        site.open(busy)
        await site.all_ended()


async def test_nothing_runs_beside_a_suspect_of_two_dead_workers(site: Site) -> None:
    """Its worker lets what it has end first, and takes nothing more before that suspect has."""
    first, second = site.gate(), site.gate()
    async with site.app() as app:
        strong = await app.submit(Waits(second, 1))
        site.redis.eval(_STRONG, 1, site.key(""), strong)
        site.redis.set(site.key("suspected:small"), 1)
        worker = site.worker("--concurrency", "4", wait=False)
        before = await app.submit(Waits(first))
        await until(lambda: worker.alive and site.journal("start", id=before), "another one runs")
        await until(
            lambda: records.hget(site.redis, site.key(f"t:{strong}"), "owner"), "it is in hand"
        )
        after = await app.submit(Quick())
        assert site.journal("start", id=strong) == []
        site.open(first)
        await site.started(strong)
        assert site.journal("start", id=after) == []
        site.open(second)
        await site.all_ended()
    (end,), (start,) = site.journal("end", id=before), site.journal("start", id=strong)
    (late,) = site.journal("start", id=after)
    assert end.at <= start.at <= late.at


async def test_one_suspect_of_a_group_can_be_cancelled(site: Site) -> None:
    """It ends, and those that share its process do not notice."""
    gate = site.gate()
    victim = site.worker("--concurrency", "3")
    tasks: list[BaseTask] = [Waits(gate, n) for n in range(3)]
    async with site.app() as app:
        ids = await submit_all(app, tasks)
        await all_run(site, 3)
        site.worker("--concurrency", "3")
        victim.kill()
        await all_run(site, 6)
        await app.client.cancel([ids[0]])
        await until(lambda: ids[0] not in site.live(), "it has ended")
        assert (await app.status(ids[0])).state == "cancelled"
        site.open(gate)
        await site.all_ended()
        assert await result_states(app, ids[1:]) == {"done": 2}
    assert len({item.pid for item in site.journal("start")[3:]}) == 1
