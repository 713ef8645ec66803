"""Tasks that take time and no CPU."""

from __future__ import annotations

from nonet import BaseTask, Size


class Blink(BaseTask):
    """Does nothing: it only wakes a worker."""

    size = Size.SMALL

    async def execute(self) -> None: ...
