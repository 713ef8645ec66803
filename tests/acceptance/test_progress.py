"""The progress of running tasks: reported from anywhere, and followed from outside."""

from __future__ import annotations

import asyncio

import pytest
from acceptance.reporting_tasks import (
    BlocksChild,
    FailsInChild,
    Kills,
    Reports,
    ReportsInChildThread,
    ReportsInThread,
)
from acceptance.site import PROBES, SHORT, Site, eventually
from servers import RedisServer
from waits import WAIT_SECONDS, until

from nonet import Handle, Nonet, Progress, TaskFailed

TASKS = f"{PROBES},acceptance.reporting_tasks"


async def shown(app: Nonet, handle: Handle, fraction: float) -> None:
    """Wait until status shows this fraction."""

    async def is_shown() -> bool:
        found = (await app.status(handle)).progress
        return found is not None and found.fraction == fraction

    await eventually(is_shown)


async def follow(site: Site, app: Nonet, kind: type[Reports]) -> None:
    """Follow a task to its end, and check what is seen; its last report is a mapping."""
    handle = await app.submit(kind(gate := site.gate()))
    seen: list[Progress] = []
    async for progress in handle.progress():
        seen.append(progress)
        if progress.fraction == 0.5:
            site.open(gate)
    await handle.result(timeout=WAIT_SECONDS)
    ended = (await app.status(handle)).progress
    assert [item async for item in handle.progress()] == [ended]
    said = [(item.fraction, item.text) for item in seen]
    # A thread may report twice before the event loop sends anything.
    assert said[0] == (0.25, "begun") or issubclass(kind, ReportsInThread)
    assert said[-2:] == [(0.5, "with ***"), (1.0, "files=3 key=***")]
    assert seen[-1].data == {"files": 3, "key": "***"} and seen[-2].data is None
    assert ended is not None and ended.data == seen[-1].data


async def test_progress_is_followed_until_the_end(site: Site) -> None:
    """From wherever it is reported: the first, the last of a second, and then the end.

    A child sends the report that it held back when it fails.
    """
    site.worker()
    async with site.app() as app, asyncio.timeout(WAIT_SECONDS):
        kinds = (Reports, ReportsInThread, ReportsInChildThread, BlocksChild)
        await asyncio.gather(*(follow(site, app, kind) for kind in kinds))
        handle = await app.submit(FailsInChild())
        with pytest.raises(TaskFailed):
            await handle.result(timeout=WAIT_SECONDS)
        assert [str(item) async for item in handle.progress()] == ["50 % half"]


async def test_an_error_of_redis_fails_no_task(own_server: RedisServer, own_site: Site) -> None:
    """A report that Redis refuses is lost, the task continues, and a later one is stored."""
    site = own_site
    site.worker()
    async with site.app() as app, asyncio.timeout(WAIT_SECONDS):
        handle = await app.submit(BlocksChild(gate := site.gate()))
        await shown(app, handle, 0.25)
        site.redis.execute_command("ACL", "SETUSER", "default", "-hset")
        await until(lambda: site.redis.execute_command("ACL", "LOG"), "a report was refused")
        site.redis.execute_command("ACL", "SETUSER", "default", "+hset")
        await shown(app, handle, 0.5)
        site.open(gate)
        await handle.result(timeout=WAIT_SECONDS)


async def test_suspects_report_from_the_child_that_they_share(site: Site) -> None:
    """A task of a killed worker runs in a child process of the next one."""
    gate = site.gate()
    site.settings |= SHORT
    first = site.worker()
    async with site.app() as app, asyncio.timeout(WAIT_SECONDS):
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
