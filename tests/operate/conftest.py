"""Applications of tests in this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from waits import WAIT_SECONDS

from nonet import Isolation, Nonet, Size
from nonet.daemon.service import Stop


@pytest.fixture
async def nonet(
    request: pytest.FixtureRequest, redis_url: str, tmp_path: Path
) -> AsyncIterator[Nonet]:
    """An open application that knows the classes in ``TASKS`` of the module."""
    made = Nonet.from_settings(redis_url=redis_url, namespace="test", state_dir=tmp_path, tasks=())
    for task_class in request.module.TASKS:
        made.registry.add(task_class, "test")
    async with made as opened:
        yield opened


async def run_worker(nonet: Nonet, size: Size, ids: Iterable[str]) -> None:
    """Run a worker until these tasks have ended."""
    stop = Stop()
    async with nonet.injector() as injector:
        worker = nonet.worker(size, injector, isolation=Isolation.LOOP)
        running = asyncio.create_task(worker.run(stop))
        for id in ids:
            await nonet.stores.results.wait(id, WAIT_SECONDS)
        stop.request()
        await running
