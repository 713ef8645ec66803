"""Tasks that are unique, and a task that submits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from acceptance.probe_tasks import Small, note, passed

from nonet import Unique, context


@dataclass
class Refresh(Small):
    """Runs until its gate opens; one of a site at a time."""

    gate: str
    site: str
    unique = Unique.until_done(key=lambda task: task.site)

    async def execute(self) -> str:
        note("start", site=self.site)
        await passed(self.gate)
        note("end")
        return context().id


@dataclass
class Brief(Small):
    """Takes a moment."""

    number: int
    seconds: float = 0.2

    async def execute(self) -> int:
        note("start")
        await asyncio.sleep(self.seconds)
        note("end")
        return self.number


@dataclass
class Submitter(Small):
    """Submits another one, whatever comes of it."""

    number: int

    async def execute(self) -> str:
        note("start")
        return str(await Brief(self.number, 0).schedule())
