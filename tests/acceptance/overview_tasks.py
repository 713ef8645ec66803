"""Tasks that get stuck, each for another reason; see `test_overview`."""

from __future__ import annotations

import asyncio
import os
import time
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


class Works(AtGate):
    """An innocent: it runs until its gate opens."""

    async def execute(self) -> None:
        await passed(self.gate)


class Blocks(Small):
    """Stops the event loop."""

    async def execute(self) -> None:
        time.sleep(20)  # noqa: ASYNC251  # that is the fault


class Eats(BaseTask):
    """Takes more memory than its class may have."""

    size = Size.MEDIUM
    memory_limit = "200 MiB"

    async def execute(self) -> None:
        eaten = bytearray(2**30)
        await asyncio.sleep(len(eaten))


class Bomb(Small):
    """Kills its worker."""

    async def execute(self) -> None:
        os._exit(3)


@dataclass
class Fails(Small):
    """Fails in one of three ways."""

    way: int

    async def execute(self) -> None:
        raise (ValueError, KeyError, OSError)[self.way]("no")
