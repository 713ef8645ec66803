"""Tasks of a shop, which bring the system of the walk and of the screens into all states."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nonet import (
    BaseTask,
    ConcurrencyLimiter,
    LockedObjectType,
    MutexLock,
    NoRetry,
    PeriodicBaseTask,
    Size,
    context,
    register_locked_object_type,
    spawn_with_callback,
)
from nonet.tasks.schedules import CronSchedule

register_locked_object_type("invoice")
register_locked_object_type("mail_host")


@dataclass
class SendInvoice(BaseTask):
    """Holds the lock of its invoice, reports progress, and runs until the test ends."""

    invoice: int
    size = Size.SMALL

    @property
    def execution_locks(self):  # type: ignore[no-untyped-def]
        return [MutexLock(LockedObjectType.INVOICE, self.invoice)]

    async def execute(self) -> None:
        context().progress(0.4, "page 12 of 30")
        await asyncio.Event().wait()


@dataclass
class SendMail(BaseTask):
    """Ends at once; one mail at a time."""

    to: str
    size = Size.SMALL

    @property
    def execution_locks(self):  # type: ignore[no-untyped-def]
        return [ConcurrencyLimiter(LockedObjectType.MAIL_HOST, "smtp", limit=1)]

    async def execute(self) -> str:
        return f"sent to {self.to}"


@dataclass
class Greet(BaseTask):
    """Is delayed, and its class is paused."""

    user: str
    size = Size.SMALL

    async def execute(self) -> None: ...


@dataclass
class ImportUsers(BaseTask):
    """Fails for good."""

    file: str
    size = Size.SMALL
    dlq_eligible = True
    retry_policy = NoRetry()

    async def execute(self) -> None:
        raise FileNotFoundError(2, "No such file or directory", self.file)


@dataclass
class RenderArchive(BaseTask):
    """Needs a large worker, which does not run."""

    year: int
    size = Size.LARGE

    async def execute(self) -> None: ...


class NightlyReport(PeriodicBaseTask):
    """Runs each night."""

    size = Size.SMALL
    _schedule = CronSchedule("0 3 * * *")

    async def execute(self) -> None: ...


@dataclass
class Campaign(BaseTask):
    """Sends mails as a group."""

    mails: int
    size = Size.SMALL

    async def execute(self) -> None:
        mails = [SendMail(f"user{number}@example.org") for number in range(self.mails)]
        await spawn_with_callback(mails, SendMail("boss@example.org"))
