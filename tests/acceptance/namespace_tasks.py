"""Tasks of the tests of namespaces, which submit others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from acceptance.probe_tasks import note

from nonet import (
    BaseTask,
    CallbackSpawner,
    IntervalSecondsSchedule,
    MutexLock,
    NoRetry,
    PeriodicVoAwareBaseTask,
    Size,
    context,
)


@dataclass
class Followed(BaseTask):
    """Notes its tenant."""

    vo: str
    size = Size.SMALL

    async def execute(self) -> None:
        note("followed", tenant=self.vo)


@dataclass
class Follow(BaseTask):
    """Of `vo`; it submits one of `other` when it is done."""

    vo: str
    other: str
    size = Size.SMALL
    retry_policy = NoRetry()

    async def execute(self) -> None:
        context().after_commit(Followed(self.other))


@dataclass
class Spawn(BaseTask):
    """Of `vo`; it opens a group of `other`."""

    vo: str
    other: str
    size = Size.SMALL
    retry_policy = NoRetry()

    async def execute(self, spawner: CallbackSpawner) -> None:
        await spawner([Followed(self.other)], Followed(self.other))


@dataclass
class Exclusive(BaseTask):
    """Holds a mutex that all tasks of its tenant need, and notes for how long."""

    vo: str
    number: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[MutexLock]:
        return [MutexLock("job", f"{self.vo}.{self.number % 3}")]

    async def execute(self) -> None:
        note("held", lock=self.number % 3, tenant=self.vo)
        await asyncio.sleep(0.01)
        note("freed", lock=self.number % 3, tenant=self.vo)


class Ticking(PeriodicVoAwareBaseTask):
    """Notes each occurrence."""

    _schedule = IntervalSecondsSchedule(0.5)
    size = Size.SMALL

    async def execute(self) -> None:
        note("ticked", tenant=self.vo, occurrence=context().labels.get("occurrence"))
