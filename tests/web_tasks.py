"""Task classes of the tests of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

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
