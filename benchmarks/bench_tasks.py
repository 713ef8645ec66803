"""The tasks that the benchmark runs; a worker loads them with ``--tasks bench_tasks``."""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from functools import cache

from nonet import BaseTask, LockedObjectType, MutexLock, Size
from nonet.locks import BaseLock

STAMPS = "BENCH_STAMPS"  # environment variable: a file of 8-byte slots


@dataclass
class Noop(BaseTask):
    """Nothing at all: what is measured is the system."""

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
class Stamp(BaseTask):
    """Writes into shared memory when its body started, so that nothing is added to Redis."""

    slot: int
    size = Size.SMALL

    async def execute(self) -> None:
        stamp(self.slot, time.monotonic_ns())


@cache
def _stamps() -> mmap.mmap:
    with open(os.environ[STAMPS], "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def stamp(slot: int, nanoseconds: int) -> None:
    """Write one slot."""
    _stamps()[slot * 8 : slot * 8 + 8] = nanoseconds.to_bytes(8, "little")


def stamped(slot: int) -> int:
    """One slot; 0 if it was not written. Linux has one monotonic clock for all processes."""
    return int.from_bytes(_stamps()[slot * 8 : slot * 8 + 8], "little")
