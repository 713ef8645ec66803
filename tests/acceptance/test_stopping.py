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
from acceptance.site import Site
from servers import RedisServer
from waits import WAIT_SECONDS, until, wait_until

from nonet import BaseTask

# The grace of a test that must not wait for it, and of one that must.
LONG, SHORT = "600", "0.3"
# Far from the long grace, also on a busy machine.
PROMPT = 60.0


async def test_drain_lets_running_tasks_finish(site: Site) -> None:
    """SIGTERM: what runs ends and is settled, what is queued is left alone, exit code 0."""
    gate = site.gate()
    worker = site.worker("--concurrency", "2", "--grace", LONG)
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


async def test_grace_hands_back(site: Site) -> None:
    """A task longer than the grace goes back without using an attempt: exit code 1."""
    gate = site.gate()
    worker = site.worker("--grace", SHORT)
    async with site.app() as app:
        handle = await app.submit(Gated(gate))
        await site.started(handle)
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


async def test_second_signal_ends_at_once(site: Site) -> None:
    """A second SIGTERM does not wait for the grace: exit code 143, the task goes back."""
    gate = site.gate()
    worker = site.worker("--grace", LONG)
    async with site.app() as app:
        handle = await app.submit(Gated(gate))
        await site.started(handle)
        worker.terminate()
        await until(lambda: "draining" in worker.log, "the worker drains")
        worker.terminate()
        assert worker.wait(PROMPT) == 143
        status = await handle.status()
        assert (status.state, status.attempt) == ("queued", 0)
        site.open(gate)
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)


# A worker whose patience with a blocked loop is short; as the console script otherwise.
IMPATIENT = """
import sys
from nonet.daemon import service
service._BLOCKED_SECONDS = service._FORCED_BLOCKED_SECONDS = 0.5
sys.argv = ["task-worker", "--size", "small", "--grace", "0.3"]
from nonet.cli.daemons.worker import main
main()
"""


@pytest.mark.parametrize(
    ("signals", "code"), [([signal.SIGTERM], 1), ([signal.SIGTERM, signal.SIGINT], 143)]
)
async def test_a_blocked_loop_cannot_hold_the_exit(
    own_site: Site, signals: list[signal.Signals], code: int
) -> None:
    """A task that blocks the event loop in Python code ends with its worker, and runs elsewhere."""
    site = own_site
    worker = site.program("python", "-c", IMPATIENT).wait_ready()
    async with site.app() as app:
        handle = await app.submit(Blocking(3600))
        await site.started(handle)
        for number in signals:
            os.kill(worker.pid, number)
        assert worker.wait(PROMPT) == code
        assert "event loop blocked" in worker.log
        site.worker()
        await site.started(handle, 2)


@pytest.mark.parametrize("kind", [BlockingThread, BlockingToThread, Stubborn])
async def test_nothing_can_hold_the_exit(
    site: Site, kind: type[BlockingThread | BlockingToThread | Stubborn]
) -> None:
    """A thread that blocks, or a coroutine that swallows cancellations, cannot hold the exit."""
    gate = site.gate()
    worker = site.worker("--grace", SHORT)
    async with site.app() as app:
        task: BaseTask = kind(gate)
        handle = await app.submit(task)
        await site.started(handle)
        worker.terminate()
        assert worker.wait(PROMPT) == 1
        assert (await handle.status()).attempt in (0, 1)
        site.open(gate)
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)
        await site.all_ended()
    assert [event.attempt for event in site.journal("start", id=handle)] == [1, 1]


async def test_thread_that_was_handed_back_is_told(site: Site) -> None:
    """A ``def`` task that goes on after the grace learns from ensure_lease() that it lost all."""
    gate = site.gate()
    worker = site.worker("--grace", SHORT)
    async with site.app() as app:
        handle = await app.submit(VoidedThread(gate))
        await site.started(handle)
        worker.terminate()
        assert worker.wait(PROMPT) == 1
        (voided,) = site.journal("voided")
        assert "the worker stopped" in voided.details["error"]
        site.open(gate)
        site.worker()
        await handle.result(timeout=WAIT_SECONDS)


async def test_idle_daemons_stop_at_once(site: Site) -> None:
    """An idle worker and a scheduler end within a moment: exit code 0, no name left behind."""
    worker = site.worker("--grace", LONG)
    scheduler = site.scheduler()
    await until(lambda: site.redis.exists(site.key("leader")), "the scheduler leads")
    worker.terminate()
    scheduler.terminate()
    assert (worker.wait(PROMPT), scheduler.wait(PROMPT)) == (0, 0)
    assert not site.redis.exists(site.key("leader"))
    assert site.redis.zcard(site.key("workers")) == 0


async def test_what_a_worker_was_given_unseen_is_given_back(site: Site) -> None:
    """A stop that cuts a fetch off leaves its task queued at once, not after a lease."""
    gate = site.gate()
    worker = site.worker("--concurrency", "1", NONET_LEASE="45", NONET_LOCK_TTL="30")
    async with site.app() as app:
        running = await app.submit(Gated(gate))
        await site.started(running)
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


def test_nothing_is_fired_after_the_signal(site: Site) -> None:
    """Of five entries that are due, those whose turn comes after the signal are left to others.

    The signal comes with the first one. It may be heard after the answer of Redis to that one.
    """
    scheduler = site.scheduler(NONET_TASKS="acceptance.stopping_tasks")
    assert scheduler.wait() == 0
    assert len(site.live()) in (1, 2)
    assert not site.redis.exists(site.key("leader"))
    site.worker(NONET_TASKS="acceptance.stopping_tasks")
    wait_until(lambda: not site.live(), "what was fired has run")


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 143)])
def test_frozen_redis_cannot_hold_a_scheduler(
    own_site: Site, own_server: RedisServer, signals: int, code: int
) -> None:
    """Its last steps have a moment, which a second signal ends: the exit code says which."""
    scheduler = own_site.scheduler()
    wait_until(lambda: own_site.redis.exists(own_site.key("leader")), "the scheduler leads")
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        for n in range(signals):
            scheduler.terminate()
            if n == 0:
                wait_until(lambda: "stop requested" in scheduler.log, "it has heard of it")
        assert scheduler.wait(PROMPT) == code
    finally:
        os.kill(own_server.pid, signal.SIGCONT)


def test_a_worker_without_a_size_is_refused(site: Site) -> None:
    """Exit code 2, with the reason."""
    daemon = site.program("task-worker")
    assert daemon.wait() == 2
    assert "name a size, or --pipelines" in daemon.log
