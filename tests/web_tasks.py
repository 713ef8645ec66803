"""Task classes of the tests of the dashboard."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from pydantic import SecretStr

from nonet import BaseTask, LockedObjectType, MutexLock, Priority, Size, context
from nonet.tasks.locks import BaseLock


@dataclass
class Report(BaseTask):
    """Answers its number."""

    number: int = 0

    async def execute(self) -> int:
        """See `BaseTask.execute`."""
        return self.number


@dataclass
class Mail(BaseTask):
    """A small, urgent task."""

    priority = Priority.REALTIME
    size = Size.SMALL

    to: str = "me@example.org"

    async def execute(self) -> None:
        """See `BaseTask.execute`."""


@dataclass
class Failing(BaseTask):
    """Fails."""

    text: str = "no"

    async def execute(self) -> None:
        """See `BaseTask.execute`."""
        raise ValueError(self.text)


@dataclass
class Held(BaseTask):
    """Runs until a test sets its event; for workers in the process of the test."""

    priority = Priority.REALTIME
    size = Size.SMALL
    gate: ClassVar[asyncio.Event] = asyncio.Event()

    async def execute(self) -> None:
        """See `BaseTask.execute`."""
        await self.gate.wait()


@dataclass
class Login(BaseTask):
    """Has a secret argument, and answers with another one."""

    user: str
    password: SecretStr

    async def execute(self) -> dict[str, str]:
        """See `BaseTask.execute`."""
        return {"user": self.user, "token": "t0ps3cret"}


@dataclass
class Locked(BaseTask):
    """Needs a lock, and reports its progress while it has it."""

    text: str = "half"

    @property
    def execution_locks(self) -> list[BaseLock]:
        """See `BaseTask.execution_locks`."""
        return [*super().execution_locks, MutexLock(LockedObjectType.JOB, 7)]

    async def execute(self) -> None:
        """See `BaseTask.execute`."""
        await context().progress(0.5, self.text)
