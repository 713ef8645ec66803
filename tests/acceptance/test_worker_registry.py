"""What real workers report of themselves, and when they take nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import records
from acceptance.probe_tasks import BlockingThread, Gated, Quick
from acceptance.site import Site, eventually, run, submit_all
from waits import WAIT_SECONDS, until

from nonet import Nonet, Size
from nonet.contrib.canary import Canary
from nonet.daemon.service import Stop
from nonet.worker.veto import Fitness, Veto
from nonet.worker.worker import Worker


def said(site: Site, worker: str) -> dict[str, Any]:
    """What a worker says of itself; empty when it is not registered."""
    found = site.redis.hgetall(site.key(f"w:{worker}"))
    return {**json.loads(found.get("info", "{}")), **found} if found else {}


def off(site: Site, worker: str) -> str:
    """Why it takes nothing, or empty."""
    return str(said(site, worker).get("off", ""))


def idle(site: Site) -> set[str]:
    return set(site.redis.zrange(site.key("idle:small"), 0, -1))


async def test_a_worker_that_cannot_renew_its_registration_stops(site: Site) -> None:
    """It fetches nothing and cancels what runs, as others take it for dead; then it recovers."""
    site.settings["NONET_WORKER_TTL"] = "3"  # its leases would last much longer
    worker = site.worker()
    key = site.key(f"w:{worker.incarnation}")
    gate = site.gate()
    async with site.app() as app:
        running = await site.begin(app, Gated(gate))
        site.redis.set(key, "of another type: only its beats fail")
        await site.until_event("cancelled", id=running)
        await until(lambda: "takes nothing: its registration" in worker.log, "it says so")
        assert worker.incarnation not in idle(site)
        queued = await app.submit(Quick(1))
        assert site.journal("start", id=queued) == []
        await until(
            lambda: (
                records.hget(site.redis, site.key(f"t:{running}"), "state") in ("queued", "waiting")
            ),
            "what ran was handed back",
        )
        site.redis.delete(key)
        assert await queued.result(timeout=WAIT_SECONDS) == 1
        await site.started(running, 2)
        (again,) = site.journal("start", id=running)[1:]
        assert again.attempt == 1
        await until(lambda: off(site, worker.incarnation) == "", "it says so")
        site.open(gate)
        await site.all_ended()


async def test_a_worker_whose_threads_are_busy_is_no_worker_without_slots(site: Site) -> None:
    """A coroutine waits behind `def` tasks: its explanation and the workers name the threads."""
    site.worker(NONET_THREADS="1")
    gate = site.gate()
    async with site.app() as app:
        await site.begin(app, BlockingThread(gate))
        await submit_all(app, [BlockingThread(gate)] * 2)
        queued = await app.submit(Quick(1))

        async def is_named() -> bool:
            found = await app.explain(queued)
            return "(2 of 100 slots): `def` tasks use all 1 thread of" in found.text

        await eventually(is_named)
        (found,) = await app.stores.results.workers()
        assert found.slots == "2/100, 1 thread"
        site.open(gate)
        assert await queued.result(timeout=WAIT_SECONDS) == 1
        await site.all_ended()


async def test_a_worker_drains_on_an_order_through_redis(site: Site) -> None:
    """It lets its tasks end, ends with 0, and takes nothing meanwhile; repeating it is safe."""
    site.settings["NONET_WORKER_TTL"] = "6"
    worker, other = site.worker(), site.worker("--concurrency", "7")
    gate = site.gate()
    async with site.app() as app:
        await until(lambda: len(site.redis.zrange(site.key("workers"), 0, -1)) == 2, "both beat")
        (kept,) = [item for item in await app.stores.results.workers() if item.concurrency == 7]
        drain = site.program("task-run", "workers", "drain", kept.name)
        assert drain.wait() == other.wait() == 0
        await site.begin(app, Gated(gate))
        orders = [
            site.program("task-run", "workers", "drain", "--size", "small", "--yes")
            for _ in range(2)
        ]
        assert [order.wait() for order in orders] == [0, 0]
        await until(lambda: off(site, worker.incarnation) == "it drains", "it obeys")
        (found,) = await app.stores.results.workers()
        assert (found.state, found.running) == ("draining", 1) and found.drained_by
        late = await app.submit(Quick(1))
        site.open(gate)
        assert worker.wait() == 0
        assert await app.cancel([late]) == {late: "cancelled"}  # it had waited
        kinds = [event.kind for event in await app.stores.events.last(10)]
        assert kinds.count("workers-drained") == 2
    assert said(site, worker.incarnation) == {}


@asynccontextmanager
async def running(app: Nonet, veto: Veto) -> AsyncIterator[Worker]:
    """A worker in this process, with a veto of the test's own."""
    async with app.injector() as injector:
        worker, stop = app.worker(Size.SMALL, injector), Stop()
        worker._reader._veto = veto
        work = asyncio.create_task(worker.run(stop))
        yield worker
        stop.request()
        await work


async def test_a_veto_ends_by_itself(site: Site) -> None:
    """What runs continues and is named; probes and registry report it; the worker is not woken."""
    free, gate = [10], site.gate()
    veto = Veto(Fitness(memory_floor=10), free=lambda: free[0])
    os.environ["PROBE_JOURNAL"] = site.settings["PROBE_JOURNAL"]
    async with site.app() as app, running(app, veto) as worker:
        before = await site.begin(app, Gated(gate))
        free[0] = 9
        await until(lambda: off(site, worker.id) != "", "it takes nothing")
        assert worker.report().reasons == [
            "it takes nothing: memory: 9 B free, below the floor of 10 B; it runs probe_tasks:Gated"
        ]
        assert worker.id not in idle(site)
        later = await app.submit(Quick(3))
        site.open(gate)
        await before.result(timeout=WAIT_SECONDS)
        assert (await later.status()).state == "queued"
        free[0] = 10
        assert await later.result(timeout=WAIT_SECONDS) == 3
        await until(lambda: off(site, worker.id) == "", "it says so")
        assert worker.report().ready
    del os.environ["PROBE_JOURNAL"]


async def test_a_task_waits_for_a_worker_of_its_version(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with older code than its class demands hands it on; explain says what is missing."""
    site.settings["NONET_TASKS"] += ",nonet.contrib.canary"
    site.worker()
    async with site.app() as app:
        monkeypatch.setattr(Canary, "min_version", "0.0.1")
        await run(app, Canary())
        monkeypatch.setattr(Canary, "min_version", "999")
        handle = await app.submit(Canary())
        await until(lambda: site.parked(handle), "it was handed on")
        status = await handle.status()
        assert status.attempt == 0
        assert re.fullmatch(r"needs nonet 999, but \S+ is installed here", status.blocker)
        text = (await app.explain(handle)).text
        assert "canary:Canary needs version 999, and no live small worker has" in text
        await handle.cancel()
