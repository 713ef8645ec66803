"""The tasks of ``task-run demo --web``: a web shop that only pretends to work.

They wait where real tasks would call a server. Some fail, some wait for each other, so that the
dashboard has all that it can show.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from nonet.base.streams import Priority, Size
from nonet.client.shortcuts import CallbackSpawner
from nonet.tasks.execution import context
from nonet.tasks.locks import (
    BaseLock,
    ConcurrencyLimiter,
    MutexLock,
    RateLimiter,
    register_locked_object_type,
)
from nonet.tasks.retry import ExponentialBackoff
from nonet.tasks.schedules import CronSchedule, IntervalSecondsSchedule
from nonet.tasks.task import BaseTask, PeriodicBaseTask

CUSTOMER = register_locked_object_type("customer")
PARTNER = register_locked_object_type("partner")


@dataclass
class SendMail(BaseTask):
    """Send a mail."""

    to: str

    priority = Priority.REALTIME
    size = Size.SMALL

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(0.02, 0.3))


@dataclass
class ChargeCard(BaseTask):
    """Charge a customer: one order at a time."""

    customer: str
    order: int

    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [*super().execution_locks, MutexLock(CUSTOMER, self.customer)]

    async def execute(self) -> str:
        await asyncio.sleep(random.uniform(0.5, 2))
        return f"order {self.order} is paid"


@dataclass
class ImportFeed(BaseTask):
    """Import the prices of a partner, at a limited rate. Some partners send nonsense."""

    partner: str

    size = Size.SMALL
    retry_policy = ExponentialBackoff(base_delay_seconds=3, max_retries=2)
    dlq_eligible = True

    @property
    def execution_locks(self) -> list[BaseLock]:
        locks = super().execution_locks
        return [*locks, RateLimiter(PARTNER, "all", limit=25, window_seconds=60)]

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(0.1, 0.5))
        match self.partner:
            case "acme":
                raise ValueError("line 17: the price is 'on request'")
            case "initech":
                raise TimeoutError("feeds.initech.example did not answer within 30 s")


@dataclass
class ResizeImage(BaseTask):
    """Resize an image; two at a time."""

    image: int

    priority = Priority.BACKGROUND

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [*super().execution_locks, ConcurrencyLimiter(PARTNER, "images", limit=2)]

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(1, 3))


@dataclass
class WriteReport(BaseTask):
    """Write a report, slowly, and say how far it is."""

    month: int

    size = Size.LARGE
    priority = Priority.BACKGROUND

    async def execute(self) -> str:
        for page in range(1, 31):
            context().progress(page / 30, f"page {page} of 30")
            await asyncio.sleep(1)
        return f"report-{self.month}.pdf"


@dataclass
class SendNewsletter(BaseTask):
    """Send mails as a group, and count them at the end."""

    number: int

    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> str:
        mails = [SendMail(f"reader-{reader}@example.org") for reader in range(12)]
        return await spawn(mails, CountMails(self.number))


@dataclass
class CountMails(BaseTask):
    """Count the mails of a newsletter."""

    number: int

    size = Size.SMALL

    async def execute(self) -> int:
        return len(await context().group_results())


class SyncStock(PeriodicBaseTask):
    """Read the stock of the warehouse."""

    size = Size.SMALL
    _schedule = IntervalSecondsSchedule(10)

    async def execute(self) -> None:
        await asyncio.sleep(random.uniform(1, 4))


class CleanUpBaskets(PeriodicBaseTask):
    """Delete old baskets, at night."""

    size = Size.SMALL
    _schedule = CronSchedule("30 3 * * *")

    async def execute(self) -> None:
        await asyncio.sleep(0.5)
