"""Tasks that run until somebody ends them, and write down how."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from acceptance.probe_tasks import SOON, is_open, note, passed, passed_blocking

from nonet import BaseTask, Depends, LeaseLostError, MutexLock, Size, context

_POLL = 0.01


async def rolled_back() -> AsyncIterator[None]:
    """Tells how the block around it ended."""
    try:
        yield
    except BaseException:
        note("rolled back")
        raise
    note("committed")


@dataclass
class Endless(BaseTask):
    """Waits at a gate; is retried unless it was cancelled."""

    gate: str
    size = Size.SMALL
    retry_policy = SOON

    async def execute(self, transaction: Annotated[None, Depends(rolled_back)]) -> str:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            note("told")
            raise
        return "passed"


@dataclass
class EndlessWithMutex(Endless):
    """The same, with a lock."""

    @property
    def execution_locks(self) -> list[MutexLock]:
        return [MutexLock("job", "cancel")]


@dataclass
class EndlessThread(BaseTask):
    """A plain function, which asks now and then whether it is still wanted."""

    gate: str
    size = Size.SMALL
    retry_policy = SOON

    def execute(self) -> None:
        note("start")
        try:
            while True:
                context().ensure_lease()
                time.sleep(_POLL)
        except LeaseLostError as error:
            note("told", why=str(error))
            passed_blocking(self.gate)
            raise


@dataclass
class EndlessChild(Endless):
    """In a child process."""

    size = Size.MEDIUM


@dataclass
class RaisesWhenCancelled(BaseTask):
    """Fails in its own way instead of ending as it should."""

    gate: str
    size = Size.SMALL
    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            raise ValueError("I was not ready") from None


@dataclass
class Swallows(BaseTask):
    """Goes on although it was cancelled, until its hard timeout and beyond."""

    gate: str
    size = Size.SMALL
    hard_timeout = 2.0
    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        while not is_open(self.gate):
            try:
                await passed(self.gate)
            except asyncio.CancelledError:
                note("told")


@dataclass
class Finishes(BaseTask):
    """Succeeds although it was cancelled."""

    gate: str
    size = Size.SMALL

    async def execute(self) -> str:
        note("start")
        try:
            await passed(self.gate)
        except asyncio.CancelledError:
            return "done nevertheless"
        return "passed"


@dataclass
class Urgent(BaseTask):
    """Makes no sense later."""

    size = Size.SMALL
    start_by = timedelta(seconds=0.5)
    retry_policy = SOON

    async def execute(self) -> str:
        note("start")
        return "in time"


@dataclass
class UrgentKept(Urgent):
    """Operators want to hear of those that were missed."""

    dlq_eligible = True


@dataclass
class UrgentDurable(Urgent):
    """Kept in SQL until it has ended."""

    durable = True
