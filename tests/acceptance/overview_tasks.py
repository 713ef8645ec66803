"""Tasks that get stuck, each for another reason; see `test_overview`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from acceptance.probe_tasks import AtGate, Small, passed

from nonet import BaseTask, MutexLock, Priority, RateLimiter, Size, context


class Exports(AtGate):
    """Holds a mutex until its gate opens."""

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", "export")]

    async def execute(self) -> None:
        context().progress(0.4, "page 12 of 30")
        await passed(self.gate)


@dataclass
class Mails(Small):
    """May start often, unless an operator lowers the limit."""

    number: int

    @property
    def execution_locks(self) -> list[Any]:
        limiter = RateLimiter("job", "smtp")
        limiter.limit, limiter.window_seconds = 100, 600
        return [limiter]

    async def execute(self) -> None:
        pass


class Cleans(Small):
    """Goes through a stream that is paused."""

    priority = Priority.BACKGROUND

    async def execute(self) -> None:
        pass


@dataclass
class Merges(BaseTask):
    """Needs a large worker."""

    size = Size.LARGE

    async def execute(self) -> None:
        pass


class Poison(Small):
    """Always fails."""

    async def execute(self) -> None:
        raise ValueError("the catalogue has no such column")


@dataclass
class Kept(Poison):
    """Always fails, and becomes a dead letter."""

    dlq_eligible = True
