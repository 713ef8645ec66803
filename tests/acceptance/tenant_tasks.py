"""Tasks of the tests of what tenants use."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from nonet import BaseTask, NoRetry, Size


@dataclass
class Works(BaseTask):
    """Waits until its gate is open; then it fails for good, or not."""

    vo: str
    gate: str
    fails: bool = False
    size = Size.SMALL
    retry_policy = NoRetry()
    dlq_eligible = False

    async def execute(self) -> None:
        while not os.path.exists(self.gate):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
        if self.fails:
            raise ValueError("as the test wants")
