"""What a worker looks for without being woken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waits import until

from nonet import Nonet, Size
from nonet.base.errors import ServerUnreachableError
from nonet.daemon.service import Stop


async def test_an_outage_right_after_the_start_delays_a_worker(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis answers the first check and not the next calls: the worker waits instead of ending."""
    async with (
        Nonet.from_settings(redis_url=redis_url, tasks=()) as app,
        app.injector() as injector,
    ):
        worker, stop = app.worker(Size.SMALL, injector), Stop()
        orders, beat, failures = app.broker.orders, worker._watchdog._beat, [1, 2]

        async def read(id: str) -> Any:
            fail_once(1)
            return await orders(id)

        def register() -> None:
            fail_once(2)
            beat()

        def fail_once(which: int) -> None:
            if which in failures:
                failures.remove(which)
                raise ServerUnreachableError("as the test wants")

        monkeypatch.setattr(app.broker, "orders", read)
        monkeypatch.setattr(worker._watchdog, "_beat", register)
        running = asyncio.create_task(worker.run(stop))
        await until(lambda: worker._reader.is_idle or running.done(), "it sleeps")
        assert failures == []
        stop.request()
        await running


async def test_an_idle_worker_looks_again_after_a_loss_until_it_has_looked(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    async with (
        Nonet.from_settings(redis_url=redis_url, tasks=()) as app,
        app.injector() as injector,
    ):
        worker, stop = app.worker(Size.SMALL, injector), Stop()
        running = asyncio.create_task(worker.run(stop))
        await until(lambda: worker._reader.is_idle, "it sleeps")
        orders = app.broker.orders

        async def fails_once(id: str) -> Any:
            asked.append(id)
            if len(asked) == 1:
                raise ServerUnreachableError("as the test wants")
            return await orders(id)

        monkeypatch.setattr(app.broker, "orders", fails_once)
        worker._notice_loss()
        await until(lambda: worker._looked_for == worker._lost_at, "it has looked")
        seen = len(asked)
        assert seen >= 2
        stop.request()
        await running
