"""A task that programs schedule."""

from __future__ import annotations

from acceptance.probe_tasks import note

from nonet import BaseTask, Overlap, Size, context


class Ring(BaseTask):
    """Notes the occurrence that it stands for."""

    bell: str

    size = Size.SMALL
    _overlap = Overlap.QUEUE
    _misfire_grace = 60.0

    async def execute(self) -> None:
        note("start", bell=self.bell, occurrence=context().labels.get("occurrence"))
