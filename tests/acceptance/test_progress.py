"""The progress of running tasks: reported from anywhere, and followed from outside."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from acceptance.reporting_tasks import (
    BlocksChild,
    Kills,
    Reports,
    ReportsInChild,
    ReportsInChildThread,
    ReportsInThread,
)
from acceptance.site import PROBES, Site
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import Handle, Nonet, NotFoundError, Progress

TASKS = (PROBES, "acceptance.reporting_tasks")


@pytest.fixture
def reporting(site: Site) -> Site:
    site.settings["NONET_TASKS"] = ",".join(TASKS)
    return site


async def shown(app: Nonet, handle: Handle, fraction: float) -> Progress:
    """Wait until status shows this fraction."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = (await app.status(handle)).progress
            if found is not None and found.fraction == fraction:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "kind", [Reports, ReportsInThread, ReportsInChild, ReportsInChildThread, BlocksChild]
)
async def test_progress_is_followed_until_the_end(reporting: Site, kind: type[Reports]) -> None:
    """From wherever it is reported: the first, the last of a second, and then the end."""
    site = reporting
    site.worker()
    async with site.app(tasks=TASKS) as app, asyncio.timeout(WAIT_SECONDS):
        handle = await app.submit(kind(gate := site.gate()))
        seen: list[Progress] = []
        async for progress in handle.progress():
            seen.append(progress)
            if progress.fraction == 0.5:
                site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)
        assert (await app.status(handle)).progress is None
    said = [(item.fraction, item.text) for item in seen]
    # A thread may report twice before the event loop sends anything.
    assert said[0] == (0.25, "begun") or kind in (ReportsInThread, ReportsInChildThread)
    assert said[-1] == (0.5, "with ***")
    assert all((b.at - a.at).total_seconds() > 0.9 for a, b in itertools.pairwise(seen))


async def test_suspects_report_from_the_child_that_they_share(reporting: Site) -> None:
    """A task of a killed worker runs in a child process of the next one."""
    site, gate = reporting, reporting.gate()
    first = site.worker()
    async with site.app(tasks=TASKS) as app, asyncio.timeout(WAIT_SECONDS):
        handles = [await app.submit(Kills(gate)) for _ in range(2)]
        for handle in handles:
            await site.started(handle)
        first.kill()
        site.worker()
        for handle in handles:
            await site.started(handle, 2)
            await shown(app, handle, 0.5)
        site.open(gate)
        for handle in handles:
            await handle.result(timeout=WAIT_SECONDS)


async def test_an_error_of_redis_fails_no_task(own_server: RedisServer, own_site: Site) -> None:
    """A report that Redis refuses is lost, the task continues, and a later one is stored."""
    site = own_site
    site.settings["NONET_TASKS"] = ",".join(TASKS)
    site.worker()
    async with site.app(tasks=TASKS) as app, asyncio.timeout(WAIT_SECONDS):
        handle = await app.submit(BlocksChild(gate := site.gate()))
        await shown(app, handle, 0.25)
        site.redis.execute_command("ACL", "SETUSER", "default", "-hset")
        await until(lambda: site.redis.execute_command("ACL", "LOG"), "a report was refused")
        site.redis.execute_command("ACL", "SETUSER", "default", "+hset")
        await shown(app, handle, 0.5)
        site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)


async def test_the_progress_of_an_ended_task_is_over(reporting: Site) -> None:
    """The iterator ends at once; an unknown id is an error."""
    site = reporting
    site.worker()
    async with site.app(tasks=TASKS) as app:
        handle = await app.submit(Reports(gate := site.gate()))
        site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)
        assert [item async for item in handle.progress()] == []
        with pytest.raises(NotFoundError):
            await anext(app.client.progress("unknown"))
    await until(lambda: not site.live(), "nothing is left")
