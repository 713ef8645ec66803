"""Functions that are tasks, in a module of their own, as a worker imports it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from nonet import (
    CronSchedule,
    Depends,
    ExponentialBackoff,
    Isolation,
    LockedObjectType,
    MutexLock,
    Priority,
    Size,
    TaskContext,
    context,
    task,
)


class Database:
    closed: bool = False


async def session() -> AsyncIterator[Database]:
    database = Database()
    yield database
    database.closed = True


Session = Annotated[Database, Depends(session)]


@task(size=Size.SMALL)
async def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@task(size=Size.SMALL, priority=Priority.REALTIME)
def shout(text: str, *, times: int = 1) -> list[str]:
    return [f"{text.upper()} by {context().name}"] * times


@task(size=Size.SMALL)
async def between(first: int, db: Session, last: int, ctx: TaskContext = Depends()) -> Any:
    return [first, type(db).__name__, db.closed, last, ctx.attempt]


@task(
    size=Size.SMALL,
    isolation=Isolation.CHILD,
    retry_policy=ExponentialBackoff(base_delay_seconds=0, max_retries=2),
    dlq_eligible=True,
    start_by=60,
    locks=lambda path: [MutexLock(LockedObjectType.JOB, path)],
)
def resize(path: str, size: int, vo: str = "lhcb", db: Database = Depends(session)) -> int:
    return size


@task(schedule=CronSchedule("0 3 * * *"))
async def nightly() -> None: ...


@task(locks=[MutexLock(LockedObjectType.JOB, "all")])
async def clean(**days: int) -> dict[str, int]:
    return days
