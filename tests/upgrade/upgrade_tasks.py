"""Tasks that were submitted to an older release: imported by that one and by today's.

``UPGRADE_GO`` in the environment lets those end that the older release must leave unfinished.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from nonet import (
    BaseTask,
    ConcurrencyLimiter,
    ExponentialBackoff,
    IntervalSecondsSchedule,
    LockedObjectType,
    MutexLock,
    PeriodicBaseTask,
    Size,
    Unique,
    context,
    spawn_with_callback,
)


def note() -> None:
    """One line for each execution that came to its end."""
    with open(os.environ["UPGRADE_JOURNAL"], "a") as journal:
        journal.write(f"{context().id}\n")


async def allowed() -> None:
    """Go on, if this is the newer release; else wait to be killed."""
    if "UPGRADE_GO" not in os.environ:
        await asyncio.sleep(3600)


@dataclass
class Plain(BaseTask):
    """Returns what it was given."""

    number: int = 0
    text: str = ""
    amount: Decimal = Decimal("1.10")
    at: datetime = field(default_factory=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    size = Size.SMALL

    async def execute(self) -> list[Any]:
        note()
        return [self.number, len(self.text), str(self.amount), self.at.year]


class Kept(Plain):
    """The same, kept in SQL."""

    durable = True


class Paused(Plain):
    """The same, of a class that is paused."""


@dataclass
class Sized(BaseTask):
    """For a worker of another size."""

    number: int = 0
    size = Size.LARGE

    async def execute(self) -> int:
        note()
        return self.number


@dataclass
class Retried(BaseTask):
    """Fails in the older release, and has one more try in the newer one."""

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=20, max_retries=1)

    async def execute(self) -> int:
        if "UPGRADE_GO" not in os.environ:
            raise ValueError("the first attempt fails")
        note()
        return context().attempt


@dataclass
class Locked(BaseTask):
    """One at a time."""

    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock(LockedObjectType.JOB, "7")]

    async def execute(self) -> str:
        await allowed()
        note()
        return "locked"


@dataclass
class Limited(BaseTask):
    """One at a time, by a limiter."""

    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [ConcurrencyLimiter(LockedObjectType.JOB, "limited", limit=1)]

    async def execute(self) -> str:
        await allowed()
        note()
        return "limited"


@dataclass
class Saver(BaseTask):
    """Continues where it was killed."""

    size = Size.SMALL

    async def execute(self) -> Any:
        saved = context().saved
        await context().checkpoint({"page": 3})
        await allowed()
        note()
        return saved


@dataclass
class Buried(BaseTask):
    """Fails for good in the older release."""

    size = Size.SMALL
    dlq_eligible = True

    async def execute(self) -> str:
        if "UPGRADE_GO" not in os.environ:
            raise ValueError("it cannot be done yet")
        note()
        return "resubmitted"


@dataclass
class Parent(BaseTask):
    """Opens a group: one child is done in the older release, the other is not."""

    size = Size.SMALL

    async def execute(self) -> str:
        note()
        return await spawn_with_callback([Plain(1), Sized(2)], Callback())


@dataclass
class Callback(BaseTask):
    """Tells what the children have returned."""

    size = Size.SMALL

    async def execute(self) -> list[Any]:
        note()
        return [child.value for child in await context().group_results()]


class Swept(PeriodicBaseTask):
    """Periodic, and never due while a test runs."""

    _schedule = IntervalSecondsSchedule(86400 * 365)

    async def execute(self) -> None:
        note()


class Only(Plain):
    """One of its key at a time."""

    unique = Unique.until_done()
