"""Servers that freeze, locks that vanish, and tasks that return or wait for the wrong thing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from acceptance.probe_tasks import BlockingMutexThread, Gated, GatedMutex, Quick, ReturnsOdd
from acceptance.site import LEASE, NAMESPACE, Site
from daemons import Daemon
from servers import RedisServer, Server
from waits import WAIT_SECONDS, until

from nonet import ResultUnavailable
from nonet.stores.sql.dead_letters import DeadLetter, DeadLetters

# Nothing runs out while a test lasts, and every time-out is as long as it gets.
PRODUCTION = {"NONET_LEASE": "45", "NONET_LOCK_TTL": "30", "NONET_WORKER_TTL": "30"}
UNHURRIED, PROMPT = 15.0, 8.0


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """A server that takes connections and bytes, and answers nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_frozen_redis_counts_no_death(own_server: RedisServer, own_site: Site) -> None:
    """After a freeze longer than lease and lock TTL the voided task runs again; nobody died."""
    site = own_site
    gate = site.gate()
    worker = site.worker()
    async with site.app() as app:
        handle = await app.submit(GatedMutex(gate))
        await site.started(handle)
        with frozen(own_server):
            await until(lambda: site.journal("cancelled"), "the attempt is voided")
            await until(_after(LEASE), "its lease has ended")
        first, second = await site.started(handle, 2)
        status = await handle.status()
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == worker.pid
        await site.all_ended()
    assert status.worker_deaths == 0
    assert (first.attempt, second.attempt) == (1, 1)
    assert (first.pid, second.pid) == (worker.pid, worker.pid)
    assert len(site.journal("end")) == 1


async def test_abandoned_thread_keeps_its_slot(site: Site) -> None:
    """A ``def`` task whose lock was taken away uses its slot until its thread has ended."""
    gate = site.gate()
    worker = site.worker("--concurrency", "1")
    async with site.app() as app:
        blocking = await app.submit(BlockingMutexThread(gate))
        await site.started(blocking)
        site.redis.delete(site.key("lock:mutex:job:shared"))
        await until(lambda: "attempt voided" in worker.log, "the attempt is voided")
        after = await app.submit(Quick(1))
        passed = _after(1)
        await until(lambda: passed() or site.journal("start", id=after), "the worker had its time")
        assert site.journal("start", id=after) == []
        site.open(gate)
        assert await after.result(timeout=WAIT_SECONDS) == 1
        await blocking.result(timeout=WAIT_SECONDS)
        await site.all_ended()


async def test_stopping_while_redis_is_frozen(own_server: RedisServer, own_site: Site) -> None:
    """A frozen Redis holds no exit: worker 1 (cut off by the grace) or 0, scheduler 0."""
    site = own_site
    busy = site.worker("--grace", "1", **PRODUCTION)
    async with site.app() as app:
        await app.submit(Gated(site.gate()))
        await site.until_event("start")
    idle = site.worker("--grace", "1", **PRODUCTION)
    scheduler = site.scheduler(**PRODUCTION)
    daemons = {"busy": busy, "idle": idle, "scheduler": scheduler}
    with frozen(own_server):
        await until(_after(2), "their scripts hang")
        for daemon in daemons.values():
            daemon.terminate()
        ended = {name: (await _exit(daemon, UNHURRIED)) for name, daemon in daemons.items()}
    assert ended == {"busy": 1, "idle": 0, "scheduler": 0}


async def test_second_signal_while_redis_is_frozen(own_server: RedisServer, own_site: Site) -> None:
    """The second SIGTERM ends a worker at once, with 143, also when Redis is frozen."""
    site = own_site
    worker = site.worker("--grace", "60", **PRODUCTION)
    async with site.app() as app:
        await app.submit(Gated(site.gate()))
        await site.until_event("start")
    with frozen(own_server):
        await until(_after(2), "its scripts hang")
        worker.terminate()
        await until(lambda: "draining" in worker.log, "the worker drains")
        worker.terminate()
        assert await _exit(worker, PROMPT) == 143


@pytest.mark.parametrize("kind", ["hollow", "mute"])
async def test_result_that_cannot_be_looked_at(site: Site, kind: str) -> None:
    """A task whose result breaks whoever touches it is done, after one execution."""
    site.worker()
    async with site.app() as app:
        handle = await app.submit(ReturnsOdd(kind))
        with pytest.raises(ResultUnavailable, match="cannot be stored"):
            await handle.result(timeout=WAIT_SECONDS)
        assert (await handle.status()).state == "done"
        await site.all_ended()
    assert len(site.journal("start")) == 1


async def _exit(daemon: Daemon, seconds: float) -> int:
    await until(lambda: not daemon.alive, "the daemon has ended", seconds=seconds)
    return daemon.wait()


def _after(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


async def _rows(url: str) -> list[DeadLetter]:
    store = DeadLetters(url, NAMESPACE)
    try:
        return list(await store.list())
    finally:
        await store.close()
