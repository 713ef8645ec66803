"""A task that counts in SQL under a mutex, in the way that goes wrong without one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import sqlalchemy as sa
from acceptance.probe_tasks import Small, note
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from nonet import Depends, MutexLock, context
from nonet.tasks.locks import BaseLock


@cache
def _engine() -> AsyncEngine:
    return create_async_engine(os.environ["PROBE_DB"])


async def transaction() -> AsyncIterator[AsyncConnection]:
    """One transaction; says when it began and when it was committed."""
    note("began")
    async with _engine().begin() as connection:
        yield connection
    note("committed")


@dataclass
class Increment(Small):
    """Reads a counter, sleeps, and writes it: exact only if no other task does so meanwhile.

    Tasks are executed at least once, so it remembers in the same transaction what it has done.
    """

    seconds: float

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock("job", "counter")]

    async def execute(self, db: Annotated[AsyncConnection, Depends(transaction)]) -> None:
        own = {"id": context().id}
        if await db.scalar(sa.text("SELECT 1 FROM counted WHERE id = :id"), own):
            return
        value = await db.scalar(sa.text("SELECT value FROM counter"))
        await asyncio.sleep(self.seconds)
        await db.execute(sa.text("UPDATE counter SET value = :value"), {"value": value + 1})
        await db.execute(sa.text("INSERT INTO counted (id) VALUES (:id)"), own)
