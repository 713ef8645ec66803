"""The tasks that the benchmark runs; a worker loads them with ``--tasks bench_tasks``."""

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
    """Nothing at all: what is measured is the system."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Locked(BaseTask):
    """Nothing, under a mutex that no other task wants."""

    number: int
    size = Size.SMALL

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [MutexLock(LockedObjectType.JOB, self.number)]

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Urgent(BaseTask):
    """Nothing, before all others."""

    number: int
    size = Size.SMALL
    priority = Priority.REALTIME

    async def execute(self) -> None:
        probe.hit(self.number)


@dataclass
class Sleep(BaseTask):
    """Waits for 10 ms, as a task does that talks to another system."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.begin(self.number)
        await asyncio.sleep(0.01)
        probe.end(self.number)


@dataclass
class Flood(BaseTask):
    """Background work that keeps a slot busy for 5 ms."""

    number: int
    size = Size.SMALL
    priority = Priority.BACKGROUND

    async def execute(self) -> None:
        probe.begin(self.number)
        await asyncio.sleep(0.005)
        probe.end(self.number)


@dataclass
class Burn(BaseTask):
    """Computes: 1 ms of CPU time."""

    number: int
    size = Size.SMALL

    async def execute(self) -> None:
        probe.begin(self.number)
        until = time.thread_time_ns() + _BURN_NS
        while time.thread_time_ns() < until:
            pass
        probe.end(self.number)
