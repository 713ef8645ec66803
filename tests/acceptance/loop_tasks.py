"""A task that says in whose event loop it runs."""

from __future__ import annotations

import asyncio

from nonet import BaseTask, Size
from nonet.base.loop import name_of


class WhichLoop(BaseTask):
    """Runs in a child process, which has a loop of its own."""

    size = Size.MEDIUM

    async def execute(self) -> str:
        """Return the library of its loop."""
        return name_of(asyncio.get_running_loop())
