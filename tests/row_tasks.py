"""Pipelines whose rows are processed by tasks, for real workers; see tests/pipelines."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from nonet import ConcurrencyLimiter, ExponentialBackoff, LockedObjectType, Size
from nonet.pipelines import Changes, LeaseMixin, Pipeline, RowDatabase, RowTask

database = RowDatabase(lambda: os.environ["ROWS_DB_URL"], connections=5)


class Base(DeclarativeBase):
    """The tables."""


class Columns(LeaseMixin):
    """What both tables have."""

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(40))
    runs: Mapped[int] = mapped_column(default=0)
    together: Mapped[int] = mapped_column(default=0)
    pid: Mapped[int | None]


class Light(Columns, Base):
    """Its rows are processed in the event loop of a worker."""

    __tablename__ = "light"


class Heavy(Columns, Base):
    """Its rows are processed in a fresh process each."""

    __tablename__ = "heavy"


class LightTask(RowTask):
    """Two at a time."""

    size = Size.SMALL
    soft_timeout = 5.0

    @property
    def execution_locks(self) -> list[Any]:
        """A limiter of two."""
        return [Two(LockedObjectType.JOB, "rows")]


class HeavyTask(LightTask):
    """The same in a fresh process."""

    size = Size.LARGE


class Two(ConcurrencyLimiter):
    """Two at a time."""

    limit = 2


class LightRows(Pipeline[Any]):
    """Counts how many of its rows are in process at a time."""

    name = "small-rows"
    model: Any = Light
    database = database
    process_as = LightTask
    retry_policy = ExponentialBackoff(base_delay_seconds=0.1)
    lease = 3.0

    async def process(self, row: Any) -> Changes:
        """Fail once, exceed the time limit, or die with the process, if that is its name."""
        if row.name == "fails once" and row.attempts == 1:
            raise ValueError("once")
        if row.name == "sleeps once" and row.attempts == 1:
            await asyncio.sleep(600)
        if row.name == "dies once" and row.attempts == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        async with database.sessions() as session:
            held = self.model.lease_token.is_not(None)
            is_alive = self.model.name != "dies once"  # its lease ends later
            together = await session.scalar(sa.select(sa.func.count()).where(held, is_alive))
        await asyncio.sleep(0.2)
        return Changes(runs=row.runs + 1, together=together, pid=os.getpid()).finish()


class HeavyRows(LightRows):
    """The same in fresh processes."""

    name = "large-rows"
    model = Heavy
    process_as = HeavyTask
