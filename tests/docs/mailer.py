"""Tasks of the system that `docs/reference/screens.md` shows."""

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
    register_locked_object_type,
)
from nonet.tasks.schedules import CronSchedule

register_locked_object_type("invoice")
register_locked_object_type("mail_host")


@dataclass
class SendInvoice(BaseTask):
    """Runs until the test ends."""

    invoice: int
    size = Size.SMALL

    @property
    def execution_locks(self):  # type: ignore[no-untyped-def]
        return [MutexLock(LockedObjectType.INVOICE, self.invoice)]

    async def execute(self) -> None:
        await asyncio.Event().wait()


@dataclass
class Greet(BaseTask):
    """Is delayed, and its class is paused."""

    user: str
    size = Size.SMALL

    @property
    def execution_locks(self):  # type: ignore[no-untyped-def]
        return [ConcurrencyLimiter(LockedObjectType.MAIL_HOST, "smtp", limit=2)]

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
    size = Size.SMALL
    _schedule = CronSchedule("0 3 * * *")

    async def execute(self) -> None: ...
