"""Task classes of the tests of the dashboard."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from nonet import BaseTask, Priority, Size


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
