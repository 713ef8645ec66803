"""Pipelines that run in the process of a test, and what happens to their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import structs
from row_tables import Instance
from waits import WAIT_SECONDS

from nonet import BaseTask, Nonet, Size
from nonet.daemon.service import Stop
from nonet.pipelines import RowDatabase, pipeline_runner
from nonet.pipelines.host import PipelineHost

PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Note(BaseTask):
    size = Size.SMALL

    async def execute(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def hosted(nonet: Nonet, pipelines: Any) -> Any:
    async with nonet.injector() as injector:
        host, stop = PipelineHost(nonet.client, injector, pipelines, list(pipelines)), Stop()
        running = asyncio.create_task(host.run(stop))
        try:
            yield host, stop, running
        finally:
            stop.request()
            await asyncio.wait({running})
            running.result()


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a function, or a coroutine function, returns something true."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def count(database: RowDatabase, model: Any, **values: Any) -> int:
    async with database.sessions() as session:
        query = sa.select(sa.func.count()).select_from(model).filter_by(**values)
        return int(await session.scalar(query) or 0)


async def are_done(database: RowDatabase, number: int) -> bool:
    return await count(database, Instance, status="done") == number


async def change(database: RowDatabase, model: Any, key: Any, **values: Any) -> None:
    async with database.transaction() as session:
        await session.execute(sa.update(model).where(model.id == key).values(values))


def set_grace(nonet: Nonet, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the grace period; rows have as long as it takes to be released after it."""
    settings = structs.replace(nonet.client.settings, grace=seconds)
    monkeypatch.setattr(nonet.client, "settings", settings)
    for limit in ("_CANCEL_SECONDS", "_RELEASE_SECONDS"):
        monkeypatch.setattr(pipeline_runner, limit, WAIT_SECONDS)
