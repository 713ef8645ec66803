"""A task that submits others while it runs, and has no retry policy."""

from __future__ import annotations

from dataclasses import dataclass

from acceptance.probe_tasks import Quick, note, passed

from nonet import BaseTask, Size, context


@dataclass
class Spawns(BaseTask):
    """Submits a task as soon as its gate is open; returns which attempt did."""

    gate: str
    size = Size.SMALL

    async def execute(self) -> int:
        note("start")
        await passed(self.gate)
        await Quick(1).schedule(id="spawned")
        note("end")
        return context().attempt
