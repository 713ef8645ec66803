"""The clock of the Redis host is set, forwards and back."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from acceptance.probe_tasks import Alone, GatedMutex
from faults.conftest import MakeRig
from faults.fault_tasks import FailsOnce, Timed
from faults.rig import RECOVERY, Load, Rig, held, same_processes
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import MutexLock

_SOURCE = Path(__file__).with_name("shifted_clock.c")


class Clock:
    """The clock of a server that runs under it.

    Attributes:
        environment: variables of the server.
    """

    def __init__(self, home: Path) -> None:
        compiler = shutil.which("cc")
        if not compiler:
            pytest.skip("there is no C compiler (cc) to build a clock that can be set")
        library, self._file = home / "shifted_clock.so", home / "shift"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
        subprocess.run(command, check=True)
        self._file.write_bytes(struct.pack("l", 0))
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self._file)}

    def set(self, seconds: int) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("l", seconds))


async def test_no_lock_ends_with_the_step(tmp_path: Path) -> None:
    """A step beyond all leases: holders keep their locks, and no other task gets them."""
    clock = Clock(tmp_path)
    with (
        RedisServer(environment=clock.environment) as server,
        closing(Rig("a step", tmp_path, server, None, alone=False)) as rig,
    ):
        await _keeps_locks(rig, clock)


async def _keeps_locks(rig: Rig, clock: Clock) -> None:
    site, gate = rig.site, rig.site.gate()
    rig.workers(2, slots=1)
    site.scheduler()
    async with site.app() as app, app.hold(MutexLock("job", "held")):
        holder = await site.begin(app, GatedMutex(gate))
        waiting = await app.submit(Alone())
        blocked = await app.submit(Timed(0.1, "held"))
        clock.set(300)
        stepped, locks = site.key("clock:stepped"), site.redis.keys(site.key("lock:*"))
        assert len(locks) == 2
        await until(lambda: site.redis.exists(stepped), "the leader has corrected the time")
        before = site.redis.mget(locks)
        await until(
            lambda: not {*before} & {*site.redis.mget(locks)},
            "both holders have renewed their locks",
        )
        assert not site.journal("start", id=waiting) + site.journal("start", id=blocked)
        site.open(gate)
        await holder.result(timeout=WAIT_SECONDS)
        await waiting.result(timeout=WAIT_SECONDS)
        assert len(site.journal("start", id=holder)) == 1
        assert not site.journal("start", id=blocked)
    async with site.app() as app:
        await app.result(blocked, timeout=WAIT_SECONDS)


@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(60, id="scaled-forwards"),
        pytest.param(20, id="full-little-forwards", marks=pytest.mark.soak),
        pytest.param(-20, id="full-little-back", marks=pytest.mark.soak),
        pytest.param(3600, id="full-forwards", marks=pytest.mark.soak),
        pytest.param(-3600, id="full-back", marks=pytest.mark.soak),
    ],
)
async def test_clock_of_redis_is_set(make_rig: MakeRig, tmp_path: Path, shift: int) -> None:
    """What runs, waits, is due or dies around the step ends once, as soon as without it."""
    clock = Clock(tmp_path)
    rig = make_rig(**clock.environment)
    site = rig.site
    fleet = rig.workers(2, slots=10)
    scheduler = site.scheduler()
    async with site.app() as app:
        load = Load(rig, app, held)
        with same_processes(scheduler):
            async with load.running():
                await rig.submit(app, [Timed(0.5, f"long-{n % 9}") for n in range(30)])
                await rig.submit(app, [FailsOnce() for _ in range(10)])
                await until(lambda: site.journal("end"), "some have ended")
                stepped = time.time()
                clock.set(shift)
                error = site.redis.time()[0] - shift
                assert stepped - 1 <= error <= time.time() + 1, "the clock was not set"
                fleet.kill_one()
                await site.until_event("start", len(site.journal("start")) + 20)
            await rig.settles(rig.owed)
            recovery = max(rig.settled.last(id) for id in rig.owed) - stepped
        before = time.time()
        logical = (await app.broker.logical_now()).timestamp()
        assert before - 1 < logical < time.time() + 1, "logical time did not go on evenly"
    faults = f"clock of Redis set by {shift:+} s, a worker killed"
    await rig.judge(faults, recovery=recovery, within=RECOVERY)
