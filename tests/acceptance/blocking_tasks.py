"""Tasks that hold the event loop up: one for long, many for a moment."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nonet import BaseTask, Size


@dataclass
class Blocks(BaseTask):
    """Sleeps in the loop."""

    seconds: float = 0.6
    size = Size.SMALL

    async def execute(self) -> None:
        time.sleep(self.seconds)  # noqa: ASYNC251  # what this is about
