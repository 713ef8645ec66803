"""Code that ignores its cancellation keeps its locks until it has ended."""

from __future__ import annotations

import pytest
import records
from acceptance.site import SHORT, Site, run
from acceptance.stubborn_tasks import KINDS, StubbornLoop
from daemons import Daemon
from metrics_names import get
from ports import free_port
from waits import WAIT_SECONDS, until

from nonet import Nonet
from nonet.tasks.handles import Handle

TASKS = "acceptance.stubborn_tasks"
NAME = "lock:mutex:job:a"


@pytest.fixture
def worker(site: Site) -> Daemon:
    """A worker that gives up on cancelled code after 0.3 s."""
    site.settings |= SHORT
    return site.worker("--concurrency", "4", NONET_CANCEL_GRACE="0.3")


async def ignored(site: Site, app: Nonet, kind: str, locks: list[str]) -> tuple[Handle[None], str]:
    """A task that was cancelled, or timed out, and whose code runs on; its gate."""
    gate = site.gate()
    handle = await app.submit(KINDS[kind](gate, locks))  # type: ignore[call-arg]
    await site.started(handle)
    if "limited" not in kind:
        await app.client.cancel([str(handle)])
    key = site.key(f"t:{handle}~")
    await until(lambda: list(site.redis.scan_iter(f"{key}*")), "its locks are kept")
    return handle, gate


@pytest.mark.parametrize("kind", ["loop", "limited thread"])
async def test_no_other_holder_runs_beside_stubborn_code(
    site: Site, worker: Daemon, kind: str
) -> None:
    """The next holder of its mutex, or a retry of its own, starts only after its code has ended."""
    async with site.app() as app:
        handle, gate = await ignored(site, app, kind, ["M a", "C slot 1"])
        site.open(free := site.gate())
        # A limiter is no safety: its slot is free at once.
        await run(app, StubbornLoop(free, ["C slot 1"]))
        second = await app.submit(StubbornLoop(free, ["M a"]))
        await until(lambda: site.parked(second), "the second one waits")
        await site.until_beats(worker, 9)
        assert not site.journal("start", id=str(second))
        text = (await app.explain(second)).text
        assert f"waiting for {NAME}, held for " in text
        assert f" by code of task {handle} (stubborn_tasks:" in text
        assert "that ignores its cancellation." in text
        assert f"Restart worker {worker.pid}@" in text
        if "limited" not in kind:
            assert (await app.status(handle)).state == "cancelled"
        site.open(gate)
        await second.result(timeout=WAIT_SECONDS)
        (end, *_), (start,) = (
            site.journal("end", id=str(handle)),
            site.journal("start", id=str(second)),
        )
        assert end.at <= start.at
        again = site.journal("start", id=str(handle))[1:]
        assert [item.at >= end.at for item in again] == [True] * ("limited" in kind)
        await site.all_ended()


async def test_the_lock_of_stubborn_code_ends_with_its_process(site: Site, worker: Daemon) -> None:
    """A killed worker renews nothing more: the lock goes to the next within its TTL."""
    async with site.app() as app:
        await ignored(site, app, "thread", ["M a"])
        site.open(free := site.gate())
        second = await app.submit(StubbornLoop(free, ["M a"]))
        await until(lambda: site.parked(second), "the second one waits")
        worker.kill()
        site.worker()
        await second.result(timeout=WAIT_SECONDS)


async def test_an_operator_sees_code_that_ignores_its_cancellation(site: Site) -> None:
    """doctor names task and worker once that lasts longer than a lease; a metric counts it."""
    port = free_port()
    worker = site.worker(NONET_CANCEL_GRACE="0.3", NONET_METRICS_PORT=str(port))
    async with site.app() as app:
        handle, gate = await ignored(site, app, "loop", ["M a"])
        key = next(site.redis.scan_iter(site.key(f"t:{handle}~*")))
        records.hset(site.redis, key, "started", 1000)  # as if it had lasted for long
        found = await app.doctor(wait=0)
        (finding,) = [item for item in found.problems if item.what == handle]
        assert "StubbornLoop" in finding.problem and "ignored its cancellation" in finding.problem
        assert finding.hint.startswith(f"restart worker {worker.pid}@")
        assert "nonet_worker_code_left 1.0" in get(port, "/metrics")[1]
        site.open(gate)
        await until(
            lambda: "nonet_worker_code_left 0.0" in get(port, "/metrics")[1], "it has ended"
        )
        await site.all_ended()
