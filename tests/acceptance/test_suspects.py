"""Tasks whose worker died: the innocent run on together, and the culprit is found."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import pytest
from acceptance.contention import scales
from acceptance.site import Site, result_states, submit_all
from acceptance.suspect_tasks import Dies, KillsItsWorker, Ordinary, Waits, WaitsInThread
from daemons import Daemon
from waits import WAIT_SECONDS, until

from nonet import BaseTask, Nonet

# Puts a queued task where it would be after the deaths of two workers.
_STRONG = """
local prefix, id = KEYS[1], ARGV[1]
local key, stream = prefix .. 't:' .. id, prefix .. 'tasks:normal:small'
redis.call('XTRIM', stream, 'MAXLEN', 0)
local entry = redis.call('XADD', prefix .. 'suspects:normal:small', '*', 'id', id,
  'gen', redis.call('HGET', key, 'gen'))
redis.call('HSET', key, 'suspect', 2, 'deaths', 2, 'pointer', 'suspects:normal:small ' .. entry)
redis.call('SET', prefix .. 'suspected:small', 1)
"""


@pytest.fixture
def suspects(site: Site) -> Site:
    """A site whose daemons know these tasks."""
    site.settings["NONET_TASKS"] = "acceptance.suspect_tasks"
    return site


@dataclass(frozen=True)
class Width:
    count: int
    lease: float
    within: float = 60.0


@scales(Width(60, 2), Width(5000, 10))
async def test_the_innocent_end_soon_beside_ordinary_work(suspects: Site, scale: Width) -> None:
    """What a wide worker ran ends within a minute of its reclaim, in few processes; what is
    submitted meanwhile starts at once."""
    site, gate = suspects, suspects.gate()
    site.settings["NONET_LEASE"] = str(scale.lease)
    site.settings["NONET_WORKER_TTL"] = str(scale.lease)
    victim = site.worker("--concurrency", str(scale.count))
    async with site.app() as app:
        ids = await submit_all(app, [Waits(gate, n) for n in range(scale.count)])
        await until(lambda: len(site.journal("start")) == scale.count, "all of them run")
        survivor = site.worker("--concurrency", "4")
        victim.kill()
        site.open(gate)
        meanwhile = asyncio.create_task(submit_ordinary(app))
        await until(
            lambda: len(site.journal("end", task="Waits")) >= scale.count,
            "all have ended",
            seconds=240,
        )
        meanwhile.cancel()
        submitted = await asyncio.gather(meanwhile, return_exceptions=True)
        await site.all_ended()
        assert await result_states(app, ids) == {"done": scale.count}
    again = site.journal("start", task="Waits")[scale.count :]
    assert len(again) == scale.count
    assert {item.pid for item in again}.isdisjoint({victim.pid, survivor.pid})
    assert len({item.pid for item in again}) <= 2 + scale.count // 40
    took = max(item.at for item in site.journal("end")) - min(item.at for item in again)
    delays = latencies(site, submitted[0])
    print(
        f"\n{scale.count} tasks of a killed worker: ended {took:.1f} s after the first of them ran "
        f"again, in {len({item.pid for item in again})} processes; {len(delays)} ordinary tasks "
        f"started after {statistics.median(delays):.3f} s (median), {max(delays):.3f} s at most"
    )
    assert took <= scale.within


Submitted = dict[str, float]


async def submit_ordinary(app: Nonet) -> Submitted:
    """Submit one task after the other until cancelled; when each was."""
    submitted: Submitted = {}
    try:
        while True:
            at = time.time()
            submitted[str(await app.submit(Ordinary()))] = at
            await asyncio.sleep(0.1)  # a load, not a wait for something
    except asyncio.CancelledError:
        return submitted


def latencies(site: Site, submitted: object) -> list[float]:
    """Seconds from each submission to the start."""
    assert isinstance(submitted, dict)
    started = {item.id: item.at for item in site.journal("start", task="Ordinary")}
    return [started[id] - at for id, at in submitted.items()]


@dataclass(frozen=True)
class Crowd:
    count: int
    seconds: float


@scales(Crowd(40, 0.5), Crowd(400, 4.0))
async def test_one_culprit_among_many_is_found(suspects: Site, scale: Crowd) -> None:
    """It ends dead after a few deaths of processes, and the others are done after a few runs."""
    site, gate = suspects, suspects.gate()
    victim = site.worker("--concurrency", str(scale.count))
    async with site.app() as app:
        others = await submit_all(
            app, [Waits(gate, n, scale.seconds) for n in range(scale.count - 1)]
        )
        culprit = await app.submit(Dies(gate))
        await until(lambda: len(site.journal("start")) == scale.count, "all of them run")
        survivor = site.worker("--concurrency", "4")
        site.open(gate)
        await until(lambda: not victim.alive, "it has killed its worker")
        await site.all_ended(seconds=240)
        assert await result_states(app, others) == {"done": scale.count - 1}
        status = await app.status(culprit)
    assert (status.state, status.reason) == ("dead", "crash")
    assert survivor.alive
    deaths = len(site.journal("start", id=str(culprit))) - 1
    most = max(len(site.journal("start", id=id)) for id in others)
    print(
        f"\na culprit among {scale.count}: {deaths} child processes died, an innocent task ran "
        f"{most} times at most"
    )
    assert deaths <= 12
    assert most <= 9


async def test_a_task_that_kills_its_workers_is_stopped(suspects: Site) -> None:
    """It takes few workers with it, others beside it are done, and one line says why it ends."""
    site, lost, logs = suspects, 0, list[Daemon]()
    async with site.app() as app:
        labels = {"size": "medium"}
        others = await submit_all(app, [Ordinary(n) for n in range(3)], labels=labels)
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
    print(f"\na task that kills its worker: {lost} workers were lost")
    assert (status.state, status.reason, status.crashes) == ("dead", "worker-lost", 3)
    told = f"task {culprit} (suspect_tasks:KillsItsWorker) ends dead, worker-lost: WorkerLost: its"
    assert sum(daemon.log.count(told) for daemon in logs) == 1
    # One that ran beside it at first may be a suspect for as long as it.
    assert lost <= 5


@pytest.mark.parametrize("kind", [Waits, WaitsInThread])
async def test_suspects_take_no_slot(suspects: Site, kind: type[Waits]) -> None:
    """A worker without a free slot runs them beside it."""
    site, gate, busy = suspects, suspects.gate(), suspects.gate()
    victim = site.worker("--concurrency", "2")
    async with site.app() as app:
        ids = await submit_all(app, [kind(gate, n) for n in range(2)])
        await until(lambda: len(site.journal("start")) == 2, "both run")
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


@pytest.mark.parametrize("kind", [Waits, WaitsInThread])
async def test_nothing_runs_beside_a_suspect_of_two_dead_workers(
    suspects: Site, kind: type[Waits]
) -> None:
    """Its worker lets what it has end first, and takes nothing more before that suspect has."""
    site, first, second = suspects, suspects.gate(), suspects.gate()
    async with site.app() as app:
        strong = await app.submit(kind(second, 1))
        site.redis.eval(_STRONG, 1, site.key(""), strong)
        site.redis.set(site.key("suspected:small"), 1)
        worker = site.worker("--concurrency", "4", wait=False)
        before = await app.submit(Waits(first))
        await until(lambda: worker.alive and site.journal("start", id=before), "another one runs")
        await until(lambda: site.redis.hget(site.key(f"t:{strong}"), "owner"), "it is in hand")
        after = await app.submit(Ordinary())
        assert site.journal("start", id=strong) == []
        site.open(first)
        await site.started(strong)
        assert site.journal("start", id=after) == []
        site.open(second)
        await site.all_ended()
    (end,), (start,) = site.journal("end", id=before), site.journal("start", id=strong)
    (late,) = site.journal("start", id=after)
    assert end.at <= start.at <= late.at


async def test_one_of_a_group_can_be_cancelled(suspects: Site) -> None:
    """It ends, and those that share its process do not notice."""
    site, gate = suspects, suspects.gate()
    victim = site.worker("--concurrency", "3")
    tasks: list[BaseTask] = [Waits(gate, n) for n in range(3)]
    async with site.app() as app:
        ids = await submit_all(app, tasks)
        await until(lambda: len(site.journal("start")) == 3, "all run")
        site.worker("--concurrency", "3")
        victim.kill()
        await until(lambda: len(site.journal("start")) == 6, "all run again")
        await app.client.cancel([ids[0]])
        await until(lambda: ids[0] not in site.live(), "it has ended")
        assert (await app.status(ids[0])).state == "cancelled"
        site.open(gate)
        await site.all_ended()
        assert await result_states(app, ids[1:]) == {"done": 2}
    assert len({item.pid for item in site.journal("start")[3:]}) == 1
