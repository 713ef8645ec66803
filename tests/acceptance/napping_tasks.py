"""Tasks that take time and no CPU."""

from __future__ import annotations

import asyncio

from acceptance.probe_tasks import note

from nonet import BaseTask, Size

NAP_SECONDS = 0.5


class Nap(BaseTask):
    """Sleeps, and writes down when it began and ended."""

    size = Size.SMALL

    async def execute(self) -> None:
        note("start")
        await asyncio.sleep(NAP_SECONDS)
        note("end")


class Blink(BaseTask):
    """Does nothing: it only wakes a worker."""

    size = Size.SMALL

    async def execute(self) -> None: ...
