"""Tasks of the tests of contention: they hold the locks that a test names, for as long as it says.

A lock travels as text: its kind, its key and the numbers of a limiter.

    M a · W a · R a         mutex, writer, reader of job a
    C a 2                   at most two at a time
    L a 10 60 · L a 10 60 3 at most ten items in 60 s; one execution counts for three of them
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from acceptance.probe_tasks import Small, note, passed

from nonet import ConcurrencyLimiter, ExclusiveRWLock, MutexLock, RateLimiter, SharedRWLock
from nonet.tasks.locks import BaseLock

_STRUCTURAL = {"M": MutexLock, "W": ExclusiveRWLock, "R": SharedRWLock}


def lock_of(text: str) -> BaseLock:
    """The lock that a text names."""
    kind, key, *numbers = text.split()
    if kind in _STRUCTURAL:
        return _STRUCTURAL[kind]("job", key)
    if kind == "C":
        return ConcurrencyLimiter("job", key, limit=int(numbers[0]))
    limit, window, *items = numbers
    n_items = int(items[0]) if items else 1
    return RateLimiter("job", key, limit=int(limit), window_seconds=float(window), n_items=n_items)


@dataclass
class Holding(Small):
    """Holds its locks for `seconds`, and until its gate is open if it has one."""

    locks: list[str]
    seconds: float = 0.0
    gate: str = ""

    @property
    def execution_locks(self) -> list[BaseLock]:
        return [lock_of(text) for text in self.locks]

    async def execute(self) -> int:
        note("start", locks=self.locks)
        try:
            await asyncio.sleep(self.seconds)
            if self.gate:
                await passed(self.gate)
        except asyncio.CancelledError:
            note("cancelled")
            raise
        note("end")
        return os.getpid()
