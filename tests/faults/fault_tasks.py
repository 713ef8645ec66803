"""Tasks of the fault tests: they take time, hold locks, fail and spawn, and write it all down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from acceptance.probe_tasks import SOON, MayFail, Report, note

from nonet import BaseTask, CallbackSpawner, MutexLock, Size, StopRetrying, context


@dataclass
class Timed(BaseTask):
    """Takes `seconds`, under the mutex `lock` if it has one."""

    seconds: float
    lock: str = ""
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[Any]:
        return [MutexLock("job", self.lock)] if self.lock else []

    async def execute(self) -> None:
        note("start", lock=self.lock)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        context().ensure_lease()
        note("end")


@dataclass
class FailsOnce(BaseTask):
    """Fails in its first attempt."""

    size = Size.SMALL
    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        if context().attempt == 1:
            raise ValueError("not yet")
        note("end")


@dataclass
class Hopeless(BaseTask):
    """Fails for good, and is kept in SQL."""

    size = Size.SMALL
    dlq_eligible = True

    async def execute(self) -> None:
        note("start")
        raise StopRetrying("hopeless")


@dataclass
class Family(BaseTask):
    """Spawns a group of `children`; its callback writes down the name."""

    name: str
    children: int = 3
    size = Size.SMALL

    async def execute(self, spawn: CallbackSpawner) -> str:
        note("start")
        return await spawn([MayFail(n) for n in range(self.children)], Report(self.name))
