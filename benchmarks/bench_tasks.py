"""The tasks of the benchmark; workers load them with ``--tasks bench_tasks``."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import probe

from nonet import BaseTask, LockedObjectType, MutexLock, Priority, Size
from nonet.tasks.locks import BaseLock

_BURN_NS = 1_000_000


@dataclass
class Noop(BaseTask):
    """Do nothing, so that only the system is measured."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Locked(BaseTask):
    """Do nothing, under a mutex that no other task takes."""

    number: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType.JOB, self.number)]

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Blocked(BaseTask):
    """Keep the only lock of all these tasks, so that the others wait."""

    number: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType.JOB, "blocked")]

    async def execute(self) -> None:
        probe.begin(self.number)
        await asyncio.sleep(600)


@dataclass
class Urgent(BaseTask):
    """Do nothing, at priority realtime."""

    number: int
    size = Size.SMALL
    priority = Priority.REALTIME

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Sleep(BaseTask):
    """Sleep for 10 ms, like a task that waits for another system."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.begin(self.number)
        await asyncio.sleep(0.01)
        probe.end(self.number)


@dataclass
class Flood(BaseTask):
    """Keep a slot busy for 5 ms, at priority background."""

    number: int
    size = Size.SMALL
    priority = Priority.BACKGROUND

    async def execute(self) -> None:
        probe.begin(self.number)
        await asyncio.sleep(0.005)
        probe.end(self.number)


@dataclass
class Burn(BaseTask):
    """Use 1 ms of CPU time."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.begin(self.number)
        until = time.thread_time_ns() + _BURN_NS
        while time.thread_time_ns() < until:
            pass
        probe.end(self.number)
