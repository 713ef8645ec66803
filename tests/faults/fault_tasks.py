"""Tasks of the fault tests: they take time, hold locks, fail and spawn, and write it all down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from typing import Any

from acceptance import probe_tasks
from acceptance.probe_tasks import SOON, MayFail, Report, Small, note, passed

from nonet import CallbackSpawner, MutexLock, context


@dataclass
class Timed(Small):
    """Takes `seconds`, under the mutex `lock` if it has one.

    If it is the only suspect in a worker that dies or stands still, an attempt of it has failed.
    """

    seconds: float
    lock: str = ""
    retry_policy = SOON

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


class FailsOnce(Small):
    retry_policy = SOON

    async def execute(self) -> None:
        note("start")
        if context().attempt == 1:
            raise ValueError("not yet")
        note("end")


@dataclass
class Family(Small):
    """Spawns a group of `children`; its callback writes down the name."""

    name: str
    children: int = 3

    async def execute(self, spawn: CallbackSpawner) -> str:
        note("start")
        return await spawn([MayFail(n) for n in range(self.children)], Report(self.name))


@dataclass
class Heavy(Small):
    data: bytes

    async def execute(self) -> int:
        note("start")
        note("end")
        return len(self.data)


class Greedy(Small):
    """Opens more files than its process may have, and keeps them for a moment."""

    async def execute(self) -> None:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            await asyncio.sleep(0.5)


class Tallied(Small):
    """Adds one byte to a file: for so many tasks that a journal of them would be long."""

    async def execute(self) -> None:
        file = os.open(
            os.environ["PROBE_JOURNAL"] + ".tally", os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        try:
            os.write(file, b".")
        finally:
            os.close(file)


@dataclass
class Talks(Small):
    """Logs a line before its gate is open, and one after that."""

    gate: str

    async def execute(self) -> None:
        note("start")
        log = logging.getLogger("author")
        log.info("before, with fence %d", context().fence)
        await passed(self.gate)
        log.info("after, with fence %d", context().fence)


class KeptTalks(Talks):
    """Has a row in SQL until it has ended."""

    durable = True


class Exhausted(probe_tasks.Fails):
    """Fails in three attempts and is kept in SQL."""

    dlq_eligible = True
