"""Redis dies, forgets, stands still or cannot be reached, under load."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis
from acceptance.contention import scales
from daemons import Daemon
from faults.conftest import MakeRig
from faults.fault_tasks import Timed
from faults.rig import Fleet, Load, Rig, same_processes
from waits import until

# A sleeping worker looks again after 2 s; a leader is replaced after its lease of 1 s; a delivery
# that was lost with a reply comes back after its lease of 2 s and a sweep.
RECOVERY = 10.0


@dataclass
class Crew:
    """Two workers, a scheduler and a client that submits all the time."""

    rig: Rig
    fleet: Fleet
    scheduler: Daemon
    load: Load

    async def is_busy(self) -> None:
        """Submit more than all slots can take, and wait until some of it is executed."""
        load = [Timed(0.3, f"stock-{n}" if n % 2 else "") for n in range(40)]
        ids = await self.rig.submit(self.load.app, load)
        await until(lambda: set(ids) & self.rig.settled.ids(), "some of the stock has ended")

    async def goes_on(self, since: float) -> float:
        """Wait until something that was submitted from now on has ended; seconds since `since`."""
        before = len(self.load.accepted)
        await until(
            # Not the first: they may have been on their way before.
            lambda: self.rig.settled.ids() & set(self.load.accepted[before + self.load.clients :]),
            "what is submitted now ends",
        )
        return time.time() - since


@contextmanager
def crew(rig: Rig, load: Load) -> Iterator[Crew]:
    """The daemons; at the end they must be the same processes."""
    fleet = rig.workers(2, slots=10)
    scheduler = rig.site.scheduler()
    with same_processes(*fleet.daemons, scheduler):
        yield Crew(rig, fleet, scheduler, load)


def held(n: int) -> Timed:
    """A short task, every other one under a mutex."""
    return Timed(0.05, f"lock-{n % 7}" if n % 2 else "")


async def test_redis_killed_and_started_empty(rig: Rig) -> None:
    """Redis starts empty under load: the same daemons go on, what ended does not end again."""
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                await own.is_busy()
                rig.server.kill()
                shutil.rmtree(rig.server.data)
                load.wiped()
                rig.server.start()
                back = time.time()
                recovery = await own.goes_on(back)
            await rig.settles(rig.owed)
            await rig.judge("SIGKILL of Redis, started empty", recovery=recovery, within=RECOVERY)


@scales(1, 10)
async def test_redis_killed_and_started_with_its_data(rig: Rig, scale: int) -> None:
    """Redis is killed and starts with its data: nothing is lost, nothing ends twice."""
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            recoveries = []
            async with load.running():
                for _ in range(scale):
                    await own.is_busy()
                    rig.server.kill()
                    rig.server.start()
                    recoveries.append(await own.goes_on(time.time()))
            await rig.settles(rig.owed)
            await rig.judge(
                f"{scale} x SIGKILL of Redis, data kept", recovery=max(recoveries), within=RECOVERY
            )


async def test_redis_started_with_older_data(rig: Rig) -> None:
    """A copy of the data that is older is put back: the daemons go on, nothing hangs.

    What ended after the copy was made is in it as unfinished, and may be executed again.
    """
    older = rig.server.data.with_name("older")
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                await own.is_busy()
                copied = set(rig.owed)
                shutil.copytree(rig.server.data, older)
                await own.is_busy()
                rig.server.kill()
                before = rig.settled.ids()
                shutil.rmtree(rig.server.data)
                older.rename(rig.server.data)
                load.wiped(keeping=copied)
                rig.server.start()
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            await rig.judge(
                "SIGKILL of Redis, older data put back",
                recovery=recovery,
                within=RECOVERY,
                may_end_again=before,
            )


@scales(2, 10)
async def test_flushed_every_three_seconds(rig: Rig, scale: int) -> None:
    """FLUSHALL every 3 s under load: all that is submitted after the last one ends."""
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            recoveries = []
            async with load.running():
                for _ in range(scale):
                    due = time.time() + 3
                    await own.is_busy()
                    rig.site.redis.flushall()
                    load.wiped()
                    recoveries.append(await own.goes_on(time.time()))
                    await asyncio.sleep(max(0.0, due - time.time()))  # the pace of the fault
            await rig.settles(rig.owed)
            await rig.judge(
                f"{len(recoveries)} x FLUSHALL, every 3 s",
                recovery=max(recoveries),
                within=RECOVERY,
            )


@scales(2, 60)
async def test_clients_killed_all_the_time(rig: Rig, scale: float) -> None:
    """All connections are killed twice a second: nothing is lost, nothing ends twice."""
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            kills = 0
            async with load.running():
                await own.is_busy()
                began = time.time()
                while time.time() < began + scale:
                    rig.kill_clients()
                    kills += 1
                    await asyncio.sleep(0.5)  # the pace of the fault
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            await rig.judge(
                f"{kills} x CLIENT KILL TYPE normal, every 0.5 s",
                recovery=recovery,
                within=RECOVERY,
            )


@scales(1, 3)
async def test_redis_sleeps_beyond_the_lease(make_rig: MakeRig, scale: int) -> None:
    """DEBUG SLEEP for two leases: what runs is voided in time, and ends once afterwards."""
    rig = make_rig("--enable-debug-command", "local")
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            recoveries = []
            async with load.running():
                for _ in range(scale):
                    await own.is_busy()
                    await asyncio.to_thread(_sleep, rig, 4)
                    recoveries.append(await own.goes_on(time.time()))
            await rig.settles(rig.owed)
            await rig.judge(
                f"{scale} x DEBUG SLEEP of 4 s, lease 2 s",
                recovery=max(recoveries),
                within=RECOVERY,
            )


def _sleep(rig: Rig, seconds: int) -> None:
    """Let Redis do nothing else for so long."""
    with redis.Redis(port=rig.server.port, socket_timeout=60) as client:
        client.execute_command("DEBUG", "SLEEP", seconds)


@scales(2, 20)
async def test_redis_stands_still(rig: Rig, scale: float) -> None:
    """Redis is stopped (SIGSTOP) far beyond every lease and goes on: nothing is lost."""
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                await own.is_busy()
                os.kill(rig.server.pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(scale)  # the fault itself
                finally:
                    os.kill(rig.server.pid, signal.SIGCONT)
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            await rig.judge(f"SIGSTOP of Redis for {scale} s", recovery=recovery, within=RECOVERY)


@scales(2, 60)
async def test_network_is_a_black_hole(proxied: Rig, scale: float) -> None:
    """Nothing passes, in either direction, and then all of it arrives late: nothing is lost."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                await own.is_busy()
                long = await rig.submit(app, [Timed(scale / 2, "long")])
                await rig.site.started(long[0])
                proxy.black_hole()
                await until(
                    lambda: rig.site.journal("cancelled", id=long[0]),
                    "its own deadline voids what runs",
                )
                await asyncio.sleep(scale)  # the fault itself
                proxy.restore()
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            await rig.judge(
                f"black hole of {scale} s", recovery=recovery, within=RECOVERY, seconds=90
            )


@scales((0.4, 2), (2.0, 25))
async def test_slow_network_with_resets(proxied: Rig, scale: tuple[float, float]) -> None:
    """Long round trips and 5 % of commands reset: slower, but nothing is lost or ends twice."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    latency, seconds = scale
    rig.site.settings |= {"NONET_LEASE": "15", "NONET_LOCK_TTL": "12", "NONET_WORKER_TTL": "12"}
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                await own.is_busy()
                proxy.delay(latency)
                proxy.reset_probability = 0.05
                await asyncio.sleep(seconds)  # as long as the fault lasts
                hit = proxy.dropped
                proxy.reset_probability = 0.0
                proxy.delay(0.0)
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            assert hit
            await rig.judge(
                f"latency {latency:g} s, {hit} resets (5 %)", recovery=recovery, within=30
            )


async def test_half_closed_connections(proxied: Rig) -> None:
    """The server's side of every connection ends while it still executes what is sent."""
    rig, proxy = proxied, proxied.proxy
    assert proxy
    async with rig.site.app() as app:
        load = Load(rig, app, held)
        with crew(rig, load) as own:
            async with load.running():
                for _ in range(3):
                    await own.is_busy()
                    proxy.half_close()
                recovery = await own.goes_on(time.time())
            await rig.settles(rig.owed)
            await rig.judge("3 x every connection half closed", recovery=recovery, within=RECOVERY)
