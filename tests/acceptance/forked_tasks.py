"""A task that returns what its child process has done before it, and a durable class beside it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from nonet import BaseTask, Size

_at_fork: set[str] = set()
os.register_at_fork(after_in_child=lambda: _at_fork.update(sys.modules))


@dataclass
class Fresh(BaseTask):
    """Gives the modules that were imported since the fork, and the seconds of CPU time."""

    size = Size.LARGE

    async def execute(self) -> tuple[list[str], float]:
        return sorted(set(sys.modules) - _at_fork), time.process_time()


@dataclass
class Kept(BaseTask):
    """Makes the processes that load this module able to use SQL."""

    durable = True

    async def execute(self) -> None: ...
