"""Redis dies, forgets, stands still or cannot be reached, under load."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time

import pytest
import redis
from acceptance.contention import scales
from acceptance.site import eventually
from faults.conftest import MakeRig
from faults.fault_tasks import KeptTalks, Talks, Timed
from faults.rig import Rig, under_load
from waits import WAIT_SECONDS, until

from nonet.operate import logs


async def test_redis_killed_and_started_empty(rig: Rig) -> None:
    """The same daemons continue, and a task that had ended does not end again."""
    async with under_load(rig) as own:
        await own.is_busy()
        rig.server.kill()
        shutil.rmtree(rig.server.data)
        own.load.wiped()
        rig.server.start()
        await own.until_it_serves()
        own.judged("SIGKILL of Redis, started empty")


@scales(1, 10)
async def test_redis_killed_and_started_with_its_data(rig: Rig, scale: int) -> None:
    """Nothing is lost, and nothing ends twice."""
    async with under_load(rig) as own:
        for _ in range(scale):
            await own.is_busy()
            rig.server.kill()
            rig.server.start()
            await own.until_it_serves()
        own.judged(f"{scale} x SIGKILL of Redis, data kept")


async def test_redis_started_with_older_data(rig: Rig) -> None:
    """A task that ended after the copy is unfinished in it, and may be executed again."""
    older = rig.server.data.with_name("older")
    async with under_load(rig) as own:
        await own.is_busy()
        copied = set(rig.owed)
        shutil.copytree(rig.server.data, older)
        await own.is_busy()
        rig.server.kill()
        before = rig.settled.ids()
        shutil.rmtree(rig.server.data)
        older.rename(rig.server.data)
        own.load.wiped(keeping=copied)
        rig.server.start()
        await own.until_it_serves()
        own.judged("SIGKILL of Redis, older data put back", may_end_again=before)


async def test_flushed_while_tasks_log(rig: Rig) -> None:
    """A lost task leaves no lines; a durable one has those of its next run, and ends as ever."""
    site, gates = rig.site, (rig.site.gate(), rig.site.gate())
    (worker,) = rig.workers(1, slots=2).daemons
    site.scheduler()
    async with site.app(db_url="") as app:
        lost = await site.begin(app, Talks(gates[0]))
        (durable,) = await rig.submit(app, [KeptTalks(gates[1])])
        for id in (lost, durable):
            await eventually(lambda id=id: app.client.stores.broker.logs(id))
        site.redis.flushall()
        site.open(gates[0])
        await site.started(durable, 2)
        site.open(gates[1])
        await app.result(durable, timeout=WAIT_SECONDS)
        (attempt,) = (await logs.get(app.client, durable)).attempts
        assert await app.client.stores.broker.logs(lost) == {}
    fence = site.journal("start", id=durable)[1].fence
    lines = [line.split("author: ")[1] for line in attempt.log.splitlines()]
    assert lines == [f"before, with fence {fence}", f"after, with fence {fence}"]
    assert "Traceback" not in worker.log and " ERROR " not in worker.log
    await rig.judge("FLUSHALL while two tasks log")


@pytest.mark.soak
@pytest.mark.parametrize("scale", [10])
async def test_flushed_every_three_seconds(rig: Rig, scale: int) -> None:
    """All tasks that are submitted after the last FLUSHALL end."""
    async with under_load(rig) as own:
        for _ in range(scale):
            due = time.time() + 3
            await own.is_busy()
            rig.site.redis.flushall()
            own.load.wiped()
            await own.until_it_serves()
            await asyncio.sleep(max(0.0, due - time.time()))  # the pace of the fault
        own.judged(f"{scale} x FLUSHALL, every 3 s")


@pytest.mark.soak
@pytest.mark.parametrize("scale", [60])
async def test_clients_killed_all_the_time(rig: Rig, scale: float) -> None:
    """All connections are killed twice a second: nothing is lost, nothing ends twice."""
    async with under_load(rig) as own:
        kills = 0
        await own.is_busy()
        began = time.time()
        while time.time() < began + scale:
            rig.kill_clients()
            kills += 1
            await asyncio.sleep(0.5)  # the pace of the fault
        await own.until_it_serves()
        own.judged(f"{kills} x CLIENT KILL TYPE normal, every 0.5 s")


@pytest.mark.soak
@pytest.mark.parametrize("scale", [3])
async def test_redis_sleeps_beyond_the_lease(make_rig: MakeRig, scale: int) -> None:
    """Attempts that run during a DEBUG SLEEP of two leases are voided in time, and end once."""
    rig = make_rig("--enable-debug-command", "local")
    async with under_load(rig) as own:
        for _ in range(scale):
            await own.is_busy()
            await asyncio.to_thread(_sleep, rig, 4)
            await own.until_it_serves()
        own.judged(f"{scale} x DEBUG SLEEP of 4 s, lease 2 s")


def _sleep(rig: Rig, seconds: int) -> None:
    """Let Redis do nothing else for so long."""
    with redis.Redis(port=rig.server.port, socket_timeout=60) as client:
        client.execute_command("DEBUG", "SLEEP", seconds)


@pytest.mark.soak
@pytest.mark.parametrize("scale", [20])
async def test_redis_stands_still(rig: Rig, scale: float) -> None:
    """Redis is stopped (SIGSTOP) far beyond every lease and continues: nothing is lost."""
    async with under_load(rig) as own:
        await own.is_busy()
        os.kill(rig.server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(scale)  # the fault itself
        finally:
            os.kill(rig.server.pid, signal.SIGCONT)
        await own.until_it_serves()
        own.judged(f"SIGSTOP of Redis for {scale} s")


@scales(2, 60)
async def test_network_is_a_black_hole(proxied: Rig, scale: float) -> None:
    """Nothing passes, in either direction, and then all of it arrives late: nothing is lost."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    async with under_load(rig) as own:
        await own.is_busy()
        long = await rig.submit(own.load.app, [Timed(scale / 2, "long")])
        await rig.site.started(long[0])
        proxy.black_hole()
        await until(
            lambda: rig.site.journal("cancelled", id=long[0]), "its own deadline voids what runs"
        )
        await asyncio.sleep(scale)  # the fault itself
        proxy.restore()
        await own.until_it_serves()
        own.judged(f"black hole of {scale} s", seconds=90)


@pytest.mark.soak
@pytest.mark.parametrize("scale", [(2.0, 25)])
async def test_slow_network_with_resets(proxied: Rig, scale: tuple[float, float]) -> None:
    """Long round trips and 5 % of commands reset: slower, but nothing is lost or ends twice."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    latency, seconds = scale
    rig.site.settings |= {"NONET_LEASE": "15", "NONET_LOCK_TTL": "12", "NONET_WORKER_TTL": "12"}
    async with under_load(rig) as own:
        await own.is_busy()
        proxy.delay(latency)
        proxy.reset_probability = 0.05
        await asyncio.sleep(seconds)  # as long as the fault lasts
        hit = proxy.dropped
        proxy.reset_probability = 0.0
        proxy.delay(0.0)
        await own.until_it_serves()
        assert hit
        own.judged(f"latency {latency:g} s, {hit} resets (5 %)", within=30)


@pytest.mark.soak
async def test_half_closed_connections(proxied: Rig) -> None:
    """The server's side of every connection ends while it still executes what is sent."""
    assert proxied.proxy
    async with under_load(proxied) as own:
        for _ in range(3):
            await own.is_busy()
            proxied.proxy.half_close()
        await own.until_it_serves()
        own.judged("3 x every connection half closed")
