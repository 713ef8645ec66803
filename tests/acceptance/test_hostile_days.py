"""Servers that freeze, and locks that vanish under a thread."""

from __future__ import annotations

import os
import signal

from acceptance.probe_tasks import BlockingMutexThread, GatedMutex, Quick
from acceptance.site import SHORT, Site
from servers import RedisServer
from waits import WAIT_SECONDS, until


async def test_a_frozen_redis_counts_no_death(own_server: RedisServer, own_site: Site) -> None:
    """After a freeze that outlasts a lease the voided task runs again as the same attempt."""
    site, gate = own_site, own_site.gate()
    site.settings |= SHORT
    worker = site.worker()
    async with site.app() as app:
        handle = await site.begin(app, GatedMutex(gate))
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            await until(lambda: site.journal("cancelled"), "the attempt is voided")
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        first, second = await site.started(handle, 2)
        assert (await handle.status()).worker_deaths == 0
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == worker.pid
        await site.all_ended()
    assert (first.attempt, second.attempt) == (1, 1)
    assert (first.pid, second.pid) == (worker.pid, worker.pid)
    assert len(site.journal("end")) == 1


async def test_an_abandoned_thread_keeps_its_slot(site: Site) -> None:
    """A ``def`` task whose lock was taken away uses its slot until its thread has ended."""
    gate = site.gate()
    site.settings |= SHORT
    worker = site.worker("--concurrency", "1")
    async with site.app() as app:
        blocking = await site.begin(app, BlockingMutexThread(gate))
        site.redis.delete(site.key("lock:mutex:job:shared"))
        await until(lambda: "attempt voided" in worker.log, "the attempt is voided")
        after = await app.submit(Quick(1))
        await site.until_beats(worker, 1)
        assert site.journal("start", id=after) == []
        site.open(gate)
        assert await after.result(timeout=WAIT_SECONDS) == 1
        await blocking.result(timeout=WAIT_SECONDS)
        await site.all_ended()
