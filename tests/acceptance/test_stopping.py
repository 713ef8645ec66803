"""Stopping is at least as kind as crashing: promise 15."""

from __future__ import annotations

import os
import signal

import pytest
from acceptance.probe_tasks import (
    Blocking,
    BlockingThread,
    BlockingToThread,
    Gated,
    Quick,
    Stubborn,
    VoidedThread,
)
from acceptance.site import SHORT, Site
from servers import RedisServer
from waits import WAIT_SECONDS, until


async def test_drain_lets_running_tasks_finish(site: Site) -> None:
    """SIGTERM: what runs ends and is settled, what is queued is left alone, exit code 0."""
    gate = site.gate()
    worker = site.worker("--concurrency", "2", "--grace", "600")
    async with site.app() as app:
        running = await app.submit_many([Gated(gate), Gated(gate)])
        for handle in running:
            await site.started(handle)
        queued = await app.submit_many([Quick(n) for n in range(10)])
        worker.terminate()
        await until(lambda: "draining" in worker.log, "the worker drains")
        site.open(gate)
        assert worker.wait() == 0
        assert [(await handle.status()).state for handle in running] == ["done", "done"]
        for handle in queued:
            status = await handle.status()
            assert (status.state, status.attempt, status.worker_deaths) == ("queued", 0, 0)
        assert (site.entries(), site.pending()) == (10, 0)
        assert site.redis.zcard(site.key("workers")) == 0
        assert site.consumers(site.key("tasks:normal:small")) == set()
        other = site.worker()
        await site.all_ended()
    assert {event.pid for event in site.journal("start", task="Quick")} == {other.pid}


async def test_a_task_longer_than_the_grace_is_handed_back(site: Site) -> None:
    """A task longer than the grace goes back without using an attempt: exit code 1."""
    gate = site.gate()
    worker = site.worker("--grace", "0.3")
    async with site.app() as app:
        handle = await site.begin(app, Gated(gate))
        worker.terminate()
        assert worker.wait() == 1
        status = await handle.status()
        assert (status.state, status.attempt, status.worker_deaths) == ("queued", 0, 0)
        assert (site.entries(), site.pending()) == (1, 0)
        assert len(site.journal("cancelled")) == 1
        other = site.worker()
        first, second = await site.started(handle, 2)
        assert (first.attempt, second.attempt) == (1, 1)
        site.open(gate)
        assert await handle.result(timeout=WAIT_SECONDS) == other.pid


async def test_a_second_signal_ends_a_worker_at_once(site: Site) -> None:
    """A second SIGTERM does not wait for the grace: exit code 143, the task goes back."""
    gate = site.gate()
    worker = site.worker("--grace", "600")
    async with site.app() as app:
        handle = await site.begin(app, Gated(gate))
        worker.terminate()
        await until(lambda: "draining" in worker.log, "the worker drains")
        worker.terminate()
        assert worker.wait() == 143
        status = await handle.status()
        assert (status.state, status.attempt) == ("queued", 0)
        site.open(gate)
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)


async def test_a_blocked_loop_cannot_hold_the_exit(own_site: Site) -> None:
    """A task that blocks the event loop in Python code ends with its worker, and runs elsewhere."""
    site = own_site
    site.settings |= SHORT
    patience = {"_BLOCKED_SECONDS": 0.5, "_FORCED_BLOCKED_SECONDS": 0.5}
    worker = site.changed_worker("nonet.daemon.service", "--grace", "0.3", **patience)
    async with site.app() as app:
        handle = await site.begin(app, Blocking(3600))
        worker.terminate()
        assert worker.wait() == 1
        assert "event loop blocked" in worker.log
        site.worker()
        await site.started(handle, 2)


async def test_nothing_can_hold_the_exit(site: Site) -> None:
    """Neither threads that block nor coroutines that swallow cancellations; they lose their lease.

    Each of them runs again as the same attempt.
    """
    site.settings |= SHORT
    gate = site.gate()
    worker = site.worker("--grace", "0.3")
    async with site.app() as app:
        kinds = (BlockingThread, BlockingToThread, Stubborn, VoidedThread)
        handles = [await site.begin(app, kind(gate)) for kind in kinds]
        worker.terminate()
        assert worker.wait() == 1
        (voided,) = site.journal("voided")
        assert "the worker stopped" in voided.details["error"]
        site.open(gate)
        site.worker()
        for handle in handles:
            await handle.result(timeout=WAIT_SECONDS)
            assert [event.attempt for event in site.journal("start", id=handle)] == [1, 1]
        await site.all_ended()


async def test_a_task_that_a_stopping_worker_did_not_see_is_queued_again(site: Site) -> None:
    """A stop that cuts a fetch off leaves its task queued at once, not after a lease."""
    gate = site.gate()
    worker = site.worker("--concurrency", "1")
    async with site.app() as app:
        await site.begin(app, Gated(gate))
        unseen = await app.submit(Quick())
        deliveries, _ = await app.broker.fetch(worker.incarnation, "small", 1)
        assert [delivery.id for delivery in deliveries] == [unseen]
        worker.terminate()
        site.open(gate)
        assert worker.wait() == 0
        status = await unseen.status()
        assert (status.state, status.attempt, status.worker_deaths) == ("queued", 0, 0)
        assert site.pending() == 0
        site.worker()
        assert await unseen.result(timeout=WAIT_SECONDS) == 0


@pytest.mark.parametrize(
    ("signals", "codes"), [(1, {"busy": 1, "idle": 0, "scheduler": 0}), (2, {"busy": 143})]
)
async def test_a_frozen_redis_cannot_hold_the_exit(
    own_server: RedisServer, own_site: Site, signals: int, codes: dict[str, int]
) -> None:
    """The last steps have a moment, which a second signal ends: the exit code says which."""
    site = own_site
    busy = site.worker("--grace", "1" if signals == 1 else "600")
    async with site.app() as app:
        await app.submit(Gated(site.gate()))
        await site.until_event("start")
    daemons = {"busy": busy, "idle": site.worker(), "scheduler": site.scheduler()}
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        for name in codes:
            daemons[name].terminate()
        if signals == 2:
            await until(lambda: "draining" in busy.log, "the worker drains")
            busy.terminate()
        assert {name: daemons[name].wait() for name in codes} == codes
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
