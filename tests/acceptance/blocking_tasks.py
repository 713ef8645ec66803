"""Tasks about the event loop: one holds it up, one wakes it, one says whose it is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from nonet import BaseTask, Size
from nonet.base.loop import name_of


@dataclass
class Blocks(BaseTask):
    """Sleeps in the loop."""

    seconds: float = 0.6
    size = Size.SMALL

    async def execute(self) -> None:
        time.sleep(self.seconds)  # noqa: ASYNC251  # what this is about


class WhichLoop(BaseTask):
    """Runs in a child process, which has a loop of its own."""

    size = Size.MEDIUM

    async def execute(self) -> str:
        """Return the library of its loop."""
        return name_of(asyncio.get_running_loop())
