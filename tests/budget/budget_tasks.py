"""The tasks whose costs are counted."""

from __future__ import annotations

from dataclasses import dataclass

from nonet import BaseTask, LockedObjectType, MutexLock, Size
from nonet.tasks.locks import BaseLock


@dataclass
class Noop(BaseTask):
    """Nothing at all: what is counted is the system."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None: ...


@dataclass
class Locked(BaseTask):
    """Nothing, under a mutex that no other task wants."""

    number: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType.JOB, self.number)]

    async def execute(self) -> None: ...


@dataclass
class Contended(Locked):
    """Nothing, under a mutex that a tenth of all tasks want."""

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType.JOB, self.number % 10)]
