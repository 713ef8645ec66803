"""Redis is full, the disk for logs is full, no process reads the logs, no file may be opened."""

from __future__ import annotations

import textwrap

import pytest
from acceptance.contention import scales
from acceptance.probe_tasks import Gated, MayFail
from faults.conftest import MakeRig
from faults.fault_tasks import Greedy, Heavy, Timed
from faults.rig import Rig
from waits import until

from nonet import BrokerFullError, Nonet

_MB = 2**20


@scales(5, 60)
async def test_redis_is_full(make_rig: MakeRig, scale: int) -> None:
    """Submit fails and says why, what runs settles, all drains, and submit works again."""
    rig = make_rig("--maxmemory-policy", "noeviction")
    site = rig.site
    gate = site.gate()
    fleet = rig.workers(2, slots=10)
    site.scheduler()
    async with site.app() as app:
        running = await rig.submit(app, [Gated(gate) for _ in range(20)])
        await site.until_event("start", 20)
        used = int(site.redis.info("memory")["used_memory"])
        site.redis.config_set("maxmemory", used + scale * _MB)
        accepted, refusal = await flood(rig, app)
        assert "out of memory" in str(refusal)
        site.open(gate)
        await rig.settles([*running, *accepted])
        assert all(daemon.alive for daemon in fleet.daemons)
        site.redis.config_set("maxmemory", used + 2 * scale * _MB)
        await rig.settles(await rig.submit(app, [Timed(0.01) for _ in range(50)]))
    await rig.judge(f"maxmemory reached after {len(accepted)} tasks")


async def flood(rig: Rig, app: Nonet) -> tuple[list[str], BrokerFullError]:
    """Submit until Redis refuses; what it has accepted, and its refusal."""
    accepted = []
    for _ in range(100_000):
        try:
            accepted += await rig.submit(app, [Heavy(b"x" * 50_000)])
        except BrokerFullError as error:
            return accepted, error
    raise AssertionError("Redis is never full")


DISK_FULL = """
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1), os.dup2(full, 2)
"""
NOBODY_READS = """
    reader, writer = os.pipe()
    os.dup2(writer, 1), os.dup2(writer, 2)
    os.close(reader)
"""


@pytest.mark.parametrize("output", [DISK_FULL, NOBODY_READS], ids=["disk full", "closed"])
async def test_logs_that_cannot_be_written(rig: Rig, output: str) -> None:
    """A worker and a scheduler that cannot log work on, and drain."""
    site = rig.site
    scheduler = site.program("python", "-c", program(output, "task-scheduler"))
    worker = site.program("python", "-c", program(output, "task-worker", "--size", "small"))
    async with site.app() as app:
        ids = await rig.submit(app, [Timed(0.01, f"lock-{n % 5}") for n in range(100)])
        dead = await rig.submit(app, [MayFail(0, fails=True) for _ in range(3)])  # each is logged
        await rig.settles([*ids, *dead])
        late = await rig.submit(app, [Gated(gate := site.gate())])
        await site.started(late[0])
        await until(lambda: site.redis.exists(site.key("leader")), "the scheduler leads")
        worker.terminate()
        site.open(gate)
        await rig.settles(late)
        scheduler.terminate()
        assert (worker.wait(), scheduler.wait()) == (0, 0)
    await rig.judge("no log can be written", dead=dead)


async def test_no_file_can_be_opened(rig: Rig) -> None:
    """A worker that may have 64 files survives tasks that use them all; nothing is lost."""
    site = rig.site
    limit = "    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    worker = site.program("python", "-c", program(limit, "task-worker", "--size", "small"))
    worker.wait_ready()
    async with site.app() as app:
        ids = []
        for _ in range(5):
            ids += await rig.submit(app, [Greedy(), *(Timed(0.05) for _ in range(60))])
        await rig.settles(ids)
        states = rig.states(ids)
        # A task that cannot write its journal fails, as its author would expect.
        dead = [id for id, state in states.items() if state == "dead"]
        await rig.settles(await rig.submit(app, [Timed(0.01) for _ in range(10)]))
    assert worker.alive, worker.log[-2000:]
    await rig.judge("ulimit -n 64, all of them in use", dead=dead)


def program(preparation: str, *command: str) -> str:
    lines = f"""
import os, pathlib, resource, sys
{textwrap.dedent(preparation)}
command = {list(command)!r}
os.execv(pathlib.Path(sys.executable).parent / command[0], command)
"""
    return lines
