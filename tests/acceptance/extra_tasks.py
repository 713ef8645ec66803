"""A task that only some workers know, as in the middle of a deploy."""

from __future__ import annotations

import os
from dataclasses import dataclass

from acceptance.probe_tasks import Small, note


@dataclass
class Newer(Small):
    """Not known to workers of the old release."""

    value: int

    async def execute(self) -> int:
        note("start")
        return os.getpid()
