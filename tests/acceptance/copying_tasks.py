"""Tasks that fork themselves, and return the exit code of the copy."""

from __future__ import annotations

import os
from dataclasses import dataclass

from copying import KINDS, blocking

from nonet import BaseTask, context


@dataclass
class Forks(BaseTask):
    """A coroutine that forks, itself or in what it starts."""

    kind: str
    way: str

    async def execute(self) -> int | None:
        return await KINDS[self.kind](self.way)


@dataclass
class ForksInDef(BaseTask):
    """A function that forks."""

    way: str

    def execute(self) -> int | None:
        return blocking(self.way)


@dataclass
class SavesInCopy(BaseTask):
    """A function whose copy calls what needs the event loop."""

    def execute(self) -> int:
        if (pid := os.fork()) == 0:
            context().checkpoint_from_thread(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
